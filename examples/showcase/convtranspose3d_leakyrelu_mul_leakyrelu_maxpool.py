"""ConvTranspose3d -> LeakyReLU -> x multiplier -> LeakyReLU -> MaxPool3d."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, output_padding, multiplier_shape):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose3d(
            in_channels, out_channels, kernel_size, stride, padding, output_padding
        )
        self.multiplier = nn.Parameter(torch.randn(multiplier_shape))
        self.leaky_relu = nn.LeakyReLU(0.2)
        self.max_pool = nn.MaxPool3d(2)

    def forward(self, x):
        x = self.conv_transpose(x)
        x = self.leaky_relu(x)
        x = x * self.multiplier
        x = self.leaky_relu(x)
        return self.max_pool(x)


SIZES = {  # batch, in_channels, out_channels, depth, height, width
    "full": (16, 16, 32, 16, 32, 32),
    "small": (4, 16, 32, 8, 16, 16),
}


def get_inputs(scale="full"):
    batch, in_channels, _, depth, height, width = SIZES[scale]
    return [torch.rand(batch, in_channels, depth, height, width)]


def get_init_inputs(scale="full"):
    in_channels, out_channels = SIZES[scale][1:3]
    return [in_channels, out_channels, 3, 2, 1, 1, (out_channels, 1, 1, 1)]
