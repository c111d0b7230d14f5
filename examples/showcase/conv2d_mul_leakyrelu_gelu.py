"""Conv2d -> x multiplier -> LeakyReLU -> GELU."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, multiplier_shape):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.multiplier = nn.Parameter(torch.randn(multiplier_shape))
        self.leaky_relu = nn.LeakyReLU(0.01)

    def forward(self, x):
        x = self.conv(x)
        x = x * self.multiplier
        x = self.leaky_relu(x)
        return F.gelu(x)


SIZES = {  # batch, in_channels, out_channels, height, width
    "full": (64, 64, 64, 256, 256),
    "small": (8, 64, 64, 64, 64),
}


def get_inputs(scale="full"):
    batch, in_channels, _, height, width = SIZES[scale]
    return [torch.rand(batch, in_channels, height, width)]


def get_init_inputs(scale="full"):
    _, in_channels, out_channels, _, _ = SIZES[scale]
    return [in_channels, out_channels, 3, (out_channels, 1, 1)]
