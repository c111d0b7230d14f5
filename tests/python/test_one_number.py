"""A value has one number, whoever reads it: a 16-bit value with a copy in memory is rounded where it is computed.

And places are places of the reduced tensor: pooling in front of a maximum. test_emulated.py runs the same for a GPU.
"""

import pytest
import torch
import torch.nn.functional as F
from check import check

from fusewright import optimize

pytestmark = pytest.mark.real_core
HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def rows(dtype=torch.float32, shape=(64, 300)):
    return (torch.randn(shape) * 3).to(dtype)


# ---- extrema of computed values -----------------------------------------------------------------------------------

EXTREMA = {
    "amax": lambda y: torch.amax(y, -1),
    "amin": lambda y: torch.amin(y, -1),
    "max": lambda y: y.max(-1).values,
    "min": lambda y: y.min(-1).values,
    "max of all": lambda y: y.max(),
    "of columns": lambda y: torch.amax(y, 0),
}
CHAINS = {
    "x * 1.5": lambda x: x * 1.5,
    "gelu": lambda x: F.gelu(x) * 1.1,
    "softmax": lambda x: torch.softmax(x * 1.3, -1) * 1.7,
    "transposed": lambda x: (x * 1.5).t(),
    "centred": lambda x: (x - x.mean(-1, keepdim=True)) * 1.5,
}


@HALVES
@pytest.mark.parametrize("chain", CHAINS)
def test_a_maximum_is_one_of_its_elements(chain, dtype):
    """Beside the elements, and alone: then its whole gradient goes to elements."""

    def all_extrema(x):
        y = CHAINS[chain](x)
        return y, *(extremum(y) for extremum in EXTREMA.values())

    x = rows(dtype)
    y, *extrema = optimize(all_extrema, strict=True)(x)
    for extremum, found in zip(EXTREMA.values(), extrema, strict=True):
        assert torch.equal(found, extremum(y))
    if chain in ("softmax", "centred"):  # the gradient of one element goes to all of its row
        return
    for name, extremum in EXTREMA.items():
        leaf = x.clone().requires_grad_()
        y = optimize(lambda x, e=extremum: e(CHAINS[chain](x)), strict=True)(leaf)
        y.sum().backward()
        assert not leaf.grad.isnan().any() and (leaf.grad != 0).sum() >= y.numel(), name


@HALVES
@pytest.mark.parametrize("name", EXTREMA)
def test_extrema_against_float64(name, dtype):
    check(lambda x: EXTREMA[name](x * 1.5), [rows(dtype)], layouts=["contiguous", "transposed"])


@HALVES
def test_distances_from_a_maximum(dtype):
    """0 at the maximum, in the result and where it is compared."""

    def distances(x):
        y = x * 1.5
        return y - y.amax(-1, keepdim=True)

    def kept(x):
        y = x * 1.5
        return torch.where(y >= y.amax(-1, keepdim=True), x, -1.0)

    x = rows(dtype)
    assert (optimize(distances, strict=True)(x).amax(-1) == 0).all()
    ours, eager = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, expected = optimize(kept, strict=True)(ours), kept(eager)
    assert torch.equal(found, expected)
    found.sum().backward(), expected.sum().backward()
    assert torch.equal(ours.grad, eager.grad)


def test_a_maximum_under_autocast():
    layer = torch.nn.Linear(40, 60)

    def scores(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            s = layer(x) * 1.5
            return s - s.amax(-1, keepdim=True)

    x = torch.randn(50, 40, requires_grad=True)
    y = optimize(scores)(x)
    assert (y.amax(-1) == 0).all()
    y.float().square().sum().backward()
    assert not x.grad.isnan().any()


# ---- a value that is stored and goes on ------------------------------------------------------------------------------


def pooled(x):
    r = F.avg_pool2d(x * 1.5, 2) * 2 + 1
    return r - r.mean(-1, keepdim=True), r.sum(0), torch.softmax(r, -1)


STORED = {
    "pooled and reduced": (pooled, (4, 16, 64)),
    "max pooled": (lambda x: (y := F.max_pool2d(x * 1.5, 2), torch.softmax(y * 2, -1), y.sum(0)), (4, 16, 64)),
    "a result used again": (lambda x: (y := torch.sigmoid(x) * 3, torch.softmax(y, -1), y.mean(0)), (64, 300)),
    "a sum used again": (lambda x: (s := (x * 1.5).sum(-1, keepdim=True), torch.exp(x - s / 300)), (64, 300)),
    "a column sum used again": (lambda x: (s := (x * 1.5).mean(0), torch.tanh(x - s), s * 2), (64, 300)),
    "saved for the backward": (lambda x: torch.softmax(torch.exp(x * 0.3), -1) * x, (64, 300)),
    "a norm": (lambda x: (y := F.layer_norm(x * 1.5, x.shape[-1:]), y - y.amax(-1, keepdim=True)), (64, 300)),
}


@HALVES
@pytest.mark.parametrize("name", STORED)
def test_stored_values_go_on_as_stored(name, dtype):
    fn, shape = STORED[name]
    check(fn, [rows(dtype, shape)], layouts=["contiguous"])


@HALVES
def test_the_softmax_of_a_stored_value(dtype):
    """Rows sum to 1 as exactly as eager's: the maximum, the sum and the elements are of one rounding."""
    x = rows(dtype, (4, 16, 64))
    off = (optimize(pooled, strict=True)(x)[2].float().sum(-1) - 1).abs().max()
    assert off <= 1.5 * (pooled(x)[2].float().sum(-1) - 1).abs().max() + torch.finfo(dtype).eps


# ---- pooling, then an extremum over what was pooled ------------------------------------------------------------------


def same_gradients(fn, x):
    """In float32 the largest element is certain: result and gradient are eager's except for rounding."""
    found = []
    for f in (optimize(fn, strict=True), fn):
        leaf = x.clone().requires_grad_()
        y = f(leaf)
        if y.is_floating_point():
            y.sum().backward()
        found.append((y.detach(), leaf.grad))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


POOLS = {
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 4), (5, 3, 64)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, 2, 1), (5, 3, 61)),
    "overlapping avg_pool1d": (lambda x: F.avg_pool1d(x, 5, 2, 2), (5, 3, 63)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), (3, 4, 12, 10)),
    "max_pool2d": (lambda x: F.max_pool2d(x, (3, 2), (2, 3)), (3, 4, 13, 11)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), (2, 3, 6, 4, 8)),
}
OVER = {
    "max of the last": lambda y: y.max(-1).values,
    "min of the last": lambda y: y.min(-1).values,
    "max of all that is flattened": lambda y: y.flatten(1).max(-1).values,
    "min of what is flattened in part": lambda y: y.flatten(2).min(-1).values,
    "position": lambda y: y.argmax(-1),
}


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("pool", POOLS)
def test_an_extremum_of_what_was_pooled(pool, over):
    fn, shape = POOLS[pool]
    for chain in (lambda x: x, lambda x: F.gelu(x) * 1.5):
        for before in (lambda x: x, lambda x: x * 1.25):
            same_gradients(lambda x, c=chain, b=before: OVER[over](c(fn(b(x)))), torch.randn(shape))


def test_a_linear_layer_in_front_of_pooling_trains():
    layer = torch.nn.Linear(32, 48)
    model = torch.nn.Sequential(layer, torch.nn.AvgPool1d(4), torch.nn.GELU())
    fused = optimize(lambda x: (model(x.unsqueeze(1)).squeeze(1) * 2.0).max(1).values)
    fused(torch.randn(9, 32)).sum().backward()
    assert (layer.weight.grad != 0).any(1).sum() >= 4 and layer.bias.grad.sum().abs() > 0
