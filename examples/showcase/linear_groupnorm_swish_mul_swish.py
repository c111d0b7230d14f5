"""Linear -> GroupNorm -> Swish -> x weight -> Swish."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features, num_groups, multiplier_shape):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.group_norm = nn.GroupNorm(num_groups, out_features)
        self.multiplier = nn.Parameter(torch.randn(multiplier_shape))

    def forward(self, x):
        x = self.linear(x)
        x = self.group_norm(x)
        x = x * torch.sigmoid(x)
        x = x * self.multiplier
        return x * torch.sigmoid(x)


SIZES = {  # batch, in_features, out_features, num_groups
    "full": (1024, 8192, 8192, 256),
    "small": (512, 1024, 1024, 32),
}


def get_inputs(scale="full"):
    batch, in_features, _, _ = SIZES[scale]
    return [torch.rand(batch, in_features)]


def get_init_inputs(scale="full"):
    _, in_features, out_features, num_groups = SIZES[scale]
    return [in_features, out_features, num_groups, (out_features,)]
