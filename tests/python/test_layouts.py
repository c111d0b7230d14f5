"""Shapes, strides and aliases: empty, rank 0 and 1, every layout, overlapping views, gradients that arrive oddly."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from check import LAYOUTS, check, lay_out
from torch import nn

from fusewright import optimize, stats

pytestmark = pytest.mark.real_core


def chain(x, y):
    return torch.sigmoid(x * y) + x


def row(x, y):
    return (x * y).softmax(-1) * y


def column(x, y):
    return (x * y - (x * y).mean(0)).tanh()


# ---- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [chain, row, column], ids=lambda f: f.__name__)
def test_awkward_sizes(fn):
    """One optimised function through all sizes: few captures, one set of kernels."""
    ours = optimize(fn, strict=True)
    for rows, columns in itertools.product([31, 1, 33, 127, 1025], [33, 1, 31, 257, 1023]):
        x, y = torch.randn(rows, columns), torch.rand(columns) + 0.5
        results = []
        for f in (fn, ours):
            a, b = x.clone().requires_grad_(), y.clone().requires_grad_()
            out = f(a, b)
            out.backward(torch.cos(out.detach() * 3))
            results.append((out.detach(), a.grad, b.grad))
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4, msg=lambda m, at=x.shape: f"{at}: {m}")
    assert stats()["fallback_calls"] == 0 and stats()["captures"] <= 8


EMPTY = {
    "chain": (chain, [(0,), (0, 5), (5, 0), (2, 0, 3)]),
    "sum": (lambda x, y: (x * y).sum(), [(0,), (0, 5), (2, 0, 3)]),
    "sum of the empty dimension": (lambda x, y: (x * y).sum(0), [(0,), (0, 5)]),
    "mean of nothing": (lambda x, y: (x * y).mean(0), [(0,), (0, 5)]),
    "prod": (lambda x, y: (x * y).prod(0), [(0, 5)]),
    "amax of the other dimension": (lambda x, y: (x * y).amax(1), [(0, 5)]),
    "softmax": (row, [(0, 5), (5, 0)]),
    "column": (column, [(0, 5), (5, 0)]),
    "layer_norm": (lambda x, y: F.layer_norm(x * y, x.shape[-1:]), [(0, 5)]),
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty(name):
    fn, shapes = EMPTY[name]
    for shape in shapes:
        check(fn, [torch.randn(shape), torch.rand(shape) + 1], layouts=["contiguous"], fused=False)


@pytest.mark.parametrize(
    "model, shape",
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU()), (0, 3, 7, 7)),
        (nn.Sequential(nn.Linear(5, 4), nn.GroupNorm(2, 4), nn.SiLU()), (0, 5)),
        (nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.MaxPool1d(2)), (0, 3, 9)),
        (nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4).eval(), nn.Tanh()), (0, 5)),
    ],
    ids=str,
)
def test_batch_of_none(model, shape):
    x = torch.randn(shape)
    try:
        expected = model(x)
    except Exception as error:  # what eager refuses is refused as eager does it
        with pytest.raises(type(error)):
            optimize(model)(x)
        return
    check(model, [x], layouts=["contiguous"])
    assert expected.shape[0] == 0


def test_empty_extrema_raise_as_eager():
    fn = lambda x: (x * 2).amax(0)  # noqa: E731
    with pytest.raises(IndexError) as eager:
        fn(torch.randn(0, 5))
    with pytest.raises(IndexError) as ours:
        optimize(fn)(torch.randn(0, 5))
    assert str(ours.value) == str(eager.value)


def test_rank_0_and_1():
    for shape in ((), (1,), (7,)):
        check(lambda x: torch.sigmoid(x * 2) + x, [torch.randn(shape)], fused=False, layouts=["contiguous", "strided"])
    # Numbers beside tensors.
    check(lambda x, s: torch.sigmoid(x * s) - s, [torch.randn(31), torch.tensor(0.75)], layouts=["contiguous"])
    check(lambda x, s: (x * s).sum(), [torch.randn(31), torch.randn(1)], layouts=["contiguous"])
    check(lambda x: x.sum().exp() + x.mean(), [torch.randn(33) / 33], layouts=["contiguous"])


# ---- strides ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [chain, row, column], ids=lambda f: f.__name__)
def test_layouts(fn):
    check(fn, [torch.randn(31, 33), torch.rand(31, 33) + 0.5])


def test_layouts_of_images():
    def fn(x, m):
        return F.max_pool2d(F.leaky_relu(x * m, 0.1), 2) + 1

    check(fn, [torch.randn(3, 5, 9, 8), torch.rand(5, 1, 1) + 0.5])
    check(nn.Sequential(nn.GroupNorm(2, 6), nn.SiLU()), [torch.randn(3, 6, 5, 4)])


@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 5, 4)], ids=str)
def test_output_strides_of_mixed_operands(shape):
    """Two operands of different layout: where does eager put the result?"""
    for first, second in itertools.product([layout for layout in LAYOUTS if layout != "expanded"], repeat=2):
        x, y = lay_out(torch.randn(shape), first), lay_out(torch.randn(shape), second)
        ours, eager = optimize(chain, strict=True)(x, y), chain(x, y)
        assert ours.stride() == eager.stride(), f"{first}, {second}: {ours.stride()} instead of {eager.stride()}"
        torch.testing.assert_close(ours, eager)


def test_storage_offset_and_negative_free_views():
    base = torch.randn(1000)
    ours = optimize(chain, strict=True)
    for offset in (1, 3, 7):
        x, y = base[offset : offset + 35].view(5, 7), base[offset::13][:7]
        torch.testing.assert_close(ours(x, y), chain(x, y))
    x = base.as_strided((5, 7), (2, 3), 11)  # overlaps itself
    torch.testing.assert_close(ours(x, x), chain(x, x))
    torch.testing.assert_close(ours(base[:-1], base[1:]), chain(base[:-1], base[1:]))
    assert stats()["fallback_calls"] == 0


def test_gradients_of_overlapping_views():
    found = []
    for f in (chain, optimize(chain, strict=True)):
        base = torch.linspace(-2, 2, 100, requires_grad=True)
        f(base[:-1], base[1:]).sum().backward()
        window = base.unfold(0, 5, 2)
        f(window, window.flip(1)).mean().backward()
        f(base, base).sum().backward()  # the same tensor twice
        found.append(base.grad)
    torch.testing.assert_close(found[1], found[0])


def test_joined_and_padded_parts():
    """PyTorch joins and pads; what stands before and behind is ours."""
    x, y = torch.randn(5, 33), torch.randn(5, 31)
    check(lambda x, y: torch.cat([x * 2 + 1, y.tanh() * 3], 1).softmax(1) * 2, [x, y], fused=False)
    check(lambda x: F.pad(torch.sigmoid(x) + 1, (1, 2, 0, 3)).sum(1) * 2, [x], fused=False)
    check(lambda x: F.pad(torch.sigmoid(x) + 1, (3, 1), value=-torch.inf).amax(1) * 2, [x], fused=False)
    assert stats()["region_calls"] > 0


# ---- gradients that arrive ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [chain, row, column], ids=lambda f: f.__name__)
def test_incoming_gradients_of_any_layout(fn):
    """Expanded (a sum's), transposed, strided, of one number: the same kernel reads them all."""
    ours = optimize(fn, strict=True)
    x, y = torch.randn(31, 33), torch.rand(31, 33) + 0.5
    losses = {
        "contiguous": lambda out: (out * 1).sum(),
        "expanded": lambda out: out.sum(),
        "expanded row": lambda out: (out.sum(0) * torch.arange(33.0)).sum(),
        "transposed": lambda out: (out.t().contiguous() * torch.arange(31.0)).sum(),
        "strided": lambda out: out[:, ::2].square().sum(),
        "one element": lambda out: out[3, 5],
        "repeated": lambda out: out[[0, 0, 30]].square().sum(),
    }
    compiled = None
    for name, loss in losses.items():
        found = []
        for f in (fn, ours):
            a, b = x.clone().requires_grad_(), y.clone().requires_grad_()
            loss(f(a, b)).backward()
            found.append((a.grad, b.grad))
        torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
        compiled = compiled or _kernels()
        assert _kernels() == compiled, f"{name} took another kernel"
    assert stats()["captures"] == 1


def _kernels():
    counts = stats()
    return counts["kernels_compiled"] + counts["cache_hits"] + counts["memory_hits"]


def two_outputs(x, y):
    z = x * y
    return torch.tanh(z), z.sigmoid().sum(1)


def test_undefined_gradients():
    """One of two outputs is not used: the other's gradients are eager's, without another kernel."""
    ours = optimize(two_outputs, strict=True)
    x, y = torch.randn(31, 33), torch.rand(31, 33)
    uses = {"both": (1, 1), "first": (1, 0), "second": (0, 1)}
    compiled = None
    for name, (first, second) in uses.items():
        found = []
        for f in (two_outputs, ours):
            a, b = x.clone().requires_grad_(), y.clone().requires_grad_()
            p, q = f(a, b)
            (first * p.square().sum() if first else q.cos().sum() * second).backward(
                retain_graph=bool(first and second)
            )
            if first and second:
                q.cos().sum().backward()
            found.append((a.grad, b.grad))
        torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
        compiled = compiled or _kernels()
        assert _kernels() == compiled
    a = x.clone().requires_grad_()
    p, q = ours(a, y)
    assert torch.autograd.grad(q.sum(), a, retain_graph=True)[0].shape == x.shape
    assert torch.autograd.grad(p.sum(), a)[0].shape == x.shape


def test_the_layout_of_gradients():
    """A gradient lies in memory as its leaf does, or as eager's: AccumulateGrad would copy it otherwise."""
    for layout in ("contiguous", "transposed"):
        grads = []
        for f in (chain, optimize(chain, strict=True)):
            x = lay_out(torch.randn(5, 7), layout).detach().requires_grad_()
            f(x, torch.rand(5, 7)).sum().backward()
            grads.append(x.grad.stride())
        assert grads[0] == grads[1], layout
    x = torch.randn(2, 3, 5, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    optimize(chain)(x, torch.rand(3, 1, 1)).sum().backward()
    assert x.grad.is_contiguous(memory_format=torch.channels_last)
