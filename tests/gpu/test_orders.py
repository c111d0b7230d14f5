"""Memory orders on a device: tiles, pooling in channels last, depthwise convolutions, long rows in pieces."""

import copy

import pytest
import torch
from torch import nn

import fusewright
from fusewright import optimize

# Whole vectors both ways, along one axis alone, along none; 9, 25 and 27 taps; more tiles than one both ways.
SHAPES = [
    (4, 96, 64, 64), (3, 512, 51, 51), (2, 67, 80, 64), (3, 131, 51, 53), (512, 256, 3, 3), (96, 64, 5, 5),
    (48, 27, 32, 32), (40, 12, 40, 300), (2, 5, 301, 299),
]  # fmt: skip


def last(x):
    return x.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mixed_layouts(shape, dtype):
    """Read through tiles, written through them, both; with what is one for each channel."""
    x, y, m = torch.randn(shape).to(dtype), last(torch.randn(shape).to(dtype)), torch.randn(shape[1], 1, 1).to(dtype)

    def model(x, y, m):
        return x * m + y, (x - y).float(), (y > 0)

    ours = optimize(model, strict=True)
    for one, other in ((x, y), (y, x)):
        for found, expected in zip(ours(one, other, m), model(one.double(), other.double(), m.double()), strict=True):
            rounding = 2e-2 if dtype is torch.bfloat16 else 1e-5
            torch.testing.assert_close(found.double(), expected.double(), rtol=rounding, atol=rounding)
    assert all(a.stride() == b.stride() for a, b in zip(ours(x, y, m), model(x, y, m), strict=True))


def matches_float64(model, x, allowed=2e-3):
    """Against row-major tensors: on a GPU eager is wrong for padded average pooling in channels last (2.11)."""
    exact, strides = copy.deepcopy(model).double(), copy.deepcopy(model)(x).stride()
    ours = optimize(model, strict=True)
    x.requires_grad_()
    y, expected = ours(x), exact(x.double().contiguous())
    assert y.stride() == strides
    g = torch.randn_like(y)
    found = [y, *torch.autograd.grad(y, [x, *ours.parameters()], g)]
    wanted = [expected, *torch.autograd.grad(expected, [x, *exact.parameters()], g.double().contiguous())]
    for one, other in zip(found, wanted, strict=True):
        distance, size = (one - other).norm(), max(other.norm(), 1e-3 * g.double().norm())  # a sum may be zero
        assert distance <= allowed * size, f"{distance / size:.1e} of {tuple(other.shape)}"


@pytest.mark.parametrize(
    "model, channels, side",
    [
        (lambda: nn.Conv2d(96, 96, 3, padding=1, groups=96), 96, 56),
        (lambda: nn.Conv2d(40, 40, 7, padding=3, groups=40), 40, 41),
        (lambda: nn.Conv2d(64, 64, 5, stride=2, groups=64), 64, 57),
        (lambda: nn.Conv2d(48, 48, 1, groups=48), 48, 64),
        (lambda: nn.Conv2d(32, 64, 3, padding=1, groups=32), 32, 40),
        (lambda: nn.Conv2d(64, 64, 3, padding=1, groups=4), 64, 40),
        (lambda: nn.Conv2d(32, 3, 3, padding=1), 32, 64),
    ],
)
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_convolutions_between_chains(model, channels, side, format):
    convolution = model()
    x = torch.randn(4, channels, side, side).contiguous(memory_format=format)
    matches_float64(nn.Sequential(nn.SiLU(), convolution, nn.BatchNorm2d(convolution.out_channels), nn.SiLU()), x)


@pytest.mark.parametrize(
    "pool",
    [
        nn.AvgPool2d(2), nn.AvgPool2d(3, 2, 1), nn.AvgPool2d(3, 1, 1), nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d(2, 3), nn.MaxPool2d(3, 2, dilation=2),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_pooling_behind_norms(pool, format):
    for side in (64, 35):
        x = torch.randn(4, 24, side, side).contiguous(memory_format=format)
        matches_float64(nn.Sequential(nn.BatchNorm2d(24), nn.ReLU(), pool, nn.GELU()), x, 1e-4)
        matches_float64(nn.Sequential(nn.GroupNorm(4, 24), nn.Tanh(), pool, nn.GELU()), x.detach(), 1e-4)


@pytest.mark.parametrize(
    "norm", [lambda: nn.GroupNorm(8, 64), lambda: nn.GroupNorm(16, 64), lambda: nn.BatchNorm2d(64)]
)
def test_long_rows_of_channels_last(norm):
    """A pointwise kernel writes their results, and reads roots and quotients of rows from memory."""
    model = nn.Sequential(norm(), nn.SiLU(), nn.Conv2d(64, 32, 3, padding=1), nn.SiLU())
    for parameter in model[0].parameters():
        nn.init.normal_(parameter)
    matches_float64(model, last(torch.randn(3, 64, 160, 150)))
    explanation = fusewright.explain(model, last(torch.randn(3, 64, 160, 150)).requires_grad_())
    assert explanation.kernels
