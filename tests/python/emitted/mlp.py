"""LayerNorm, softmax, a residual add, an operator between two regions that stays PyTorch's, two inputs, a dict."""

import math

import torch
import torch.nn.functional as F
from torch import nn

SCALE = 0.5
UNUSED = __import__("json")


def scaled(x, factor=SCALE):
    return x * factor


class Block(nn.Module):
    def __init__(self, width, slope):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)
        self.slope = slope

    def forward(self, x):
        return x + F.leaky_relu(self.linear(self.norm(x)), self.slope)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.full((1,), 0.25))


class Model(Base):
    def __init__(self, width=24, depth=2):
        super(Model, self).__init__()  # noqa: UP008 (the name must change with the class)
        self.blocks = nn.Sequential(*[Block(width, 0.1 * (i + 1)) for i in range(depth)])
        self.drop = nn.Dropout(0.0)
        self.temperature = math.sqrt(width)

    def forward(self, x, gate):
        y = self.blocks(scaled(x) + self.shift)
        y = torch.cumsum(torch.tanh(y) * gate, dim=-1)
        attention = F.softmax(self.drop(y) / self.temperature, dim=-1) * x.shape[0] - len(gate)
        return {"attention": attention, "parts": (torch.exp(-y.abs()), y.mean(dim=1))}


def get_inputs():
    return [torch.randn(6, 24), torch.rand(6, 24)]
