"""A negated vector, which a kind of kernel that only tests know may compute (tests/support/toy), beside a softmax."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width))

    def forward(self, x, y):
        return -x, torch.softmax(y * self.scale, dim=-1)


def get_inputs():
    return [torch.randn(37), torch.randn(6, 24)]
