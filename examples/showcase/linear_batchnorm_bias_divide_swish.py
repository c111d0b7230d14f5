"""Linear -> BatchNorm1d -> + bias -> / value -> Swish."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features, out_features, bias_shape=(1,), divide_value=1.5, eps=1e-5, momentum=0.1):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.batch_norm = nn.BatchNorm1d(out_features, eps=eps, momentum=momentum)
        self.bias = nn.Parameter(torch.randn(bias_shape))
        self.divide_value = divide_value

    def forward(self, x):
        x = self.linear(x)
        x = self.batch_norm(x)
        x = x + self.bias
        x = x / self.divide_value
        return x * torch.sigmoid(x)


SIZES = {  # batch, in_features, out_features
    "full": (1024, 8192, 8192),
    "small": (512, 1024, 1024),
}


def get_inputs(scale="full"):
    batch, in_features, _ = SIZES[scale]
    return [torch.rand(batch, in_features)]


def get_init_inputs(scale="full"):
    _, in_features, out_features = SIZES[scale]
    return [in_features, out_features]
