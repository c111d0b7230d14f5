"""`fusewright::run` as an operator of PyTorch's dispatcher: schema, fake kernel, autograd."""

import copy
import sys
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

from fusewright import _core, optimize

pytestmark = pytest.mark.real_core
ALL_CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def call_of(fn, *inputs, dynamic=None):
    """Arguments of the operator, as the function's one region is called with; and what keeps the region alive."""
    given, run = [], _core.run_region
    try:
        _core.run_region = lambda *call: given.append(call) or run(*call)
        ours = optimize(fn, strict=True, dynamic=dynamic)
        ours(*inputs)
    finally:
        _core.run_region = run
    (call,) = given
    return call, ours


def pointwise(x, w):
    return F.gelu(x * w) + x


def norm(x, w):
    return F.silu(F.layer_norm(x, x.shape[1:], w))


def pooled(x, w):
    return F.max_pool2d(F.leaky_relu(F.conv2d(x, w), 0.2), 2)


def product(x, w):
    y = torch.tanh(x @ w)
    return y, y.sum(1), y.argmax(1)  # one result without a gradient


REGIONS = {
    "pointwise": (pointwise, [(3, 5), (5,)]),
    "norm": (norm, [(3, 7), (7,)]),
    "pooled": (pooled, [(2, 2, 6, 5), (3, 2, 3, 2)]),
    "product": (product, [(3, 4), (4, 5)]),
}


@pytest.mark.parametrize("wanted", ["both", "one", "none"])
@pytest.mark.parametrize("name", REGIONS)
def test_opcheck(name, wanted):
    fn, shapes = REGIONS[name]
    inputs = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    for x in inputs[: {"both": 2, "one": 1, "none": 0}[wanted]]:
        x.requires_grad_()
    (handle, tensors, scalars), _alive = call_of(fn, *inputs)
    result = torch.library.opcheck(torch.ops.fusewright.run.default, (handle, tensors, scalars), test_utils=ALL_CHECKS)
    assert result == dict.fromkeys(ALL_CHECKS, "SUCCESS")


def test_fake_tensors_keep_symbols():
    """Sizes of results are expressions over those of the inputs: another size needs no other graph."""
    weight = torch.randn(3, 2, 3, 2)  # the sizes of a convolution's kernel are part of the graph
    torch._dynamo.mark_static(weight)
    (handle, tensors, scalars), _alive = call_of(pooled, torch.randn(9, 2, 6, 5), weight, dynamic=True)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        fakes = [mode.from_tensor(t) for t in tensors]
        (y,) = torch.ops.fusewright.run(handle, fakes, scalars)
    assert tuple(y.shape) == (9, 3, 2, 2) and y.device.type == "cpu" and y.dtype is torch.float32
    assert isinstance(y.shape[0], torch.SymInt) and len(y.shape[2].node.expr.free_symbols) == 1
    image = next(i for i, t in enumerate(tensors) if t.shape[0] == 9)
    fakes[image] = fakes[image].new_empty(fakes[image].shape[0], 7, *fakes[image].shape[2:])
    with mode, pytest.raises(RuntimeError, match="fusewright: input .*dimension"):
        torch.ops.fusewright.run(handle, fakes, scalars)


def test_fake_strides_are_the_real_ones():
    x = torch.randn(2, 3, 5, 4).contiguous(memory_format=torch.channels_last)
    (handle, tensors, scalars), _alive = call_of(lambda x: ((y := torch.sigmoid(x)) * 2, y.transpose(1, 3) + 1), x)
    real = torch.ops.fusewright.run(handle, tensors, scalars)
    with FakeTensorMode() as mode:
        fake = torch.ops.fusewright.run(handle, [mode.from_tensor(t) for t in tensors], scalars)
    assert [(t.shape, t.stride()) for t in fake] == [(t.shape, t.stride()) for t in real]


def test_a_tracer_sees_both_halves():
    (handle, tensors, scalars), _alive = call_of(pointwise, torch.randn(3, 5), torch.randn(5))

    def step(*tensors):
        leaves = [t.detach().requires_grad_() for t in tensors]
        (y,) = torch.ops.fusewright.run(handle, leaves, scalars)
        return torch.autograd.grad(y.sum(), leaves)

    traced = make_fx(step, tracing_mode="symbolic")(*tensors)
    names = [str(node.target) for node in traced.graph.nodes if "fusewright" in str(node.target)]
    assert names == ["fusewright.run_training.default", "fusewright.run_backward.default"]
    torch.testing.assert_close(traced(*tensors), step(*tensors))


def test_a_result_without_a_gradient_of_its_own():
    """One of two results is used: the other's gradient is zero, for a tracer too."""
    (handle, tensors, scalars), _alive = call_of(product, torch.randn(3, 4), torch.randn(4, 5))
    assert all(not t.requires_grad for t in tensors)

    def step(*tensors):
        leaves = [t.detach().requires_grad_() for t in tensors]
        results = torch.ops.fusewright.run(handle, leaves, scalars)
        total = next(y for y in results if y.dim() == 1 and y.is_floating_point())
        return torch.autograd.grad(total.square().sum(), leaves)

    torch.testing.assert_close(make_fx(step, tracing_mode="fake")(*tensors)(*tensors), step(*tensors))


def test_regions_run_on_pytorchs_threads():
    """Forward and backward: work is done by other threads than the caller's, and by none with one thread."""
    x = torch.randn(1 << 22, requires_grad=True)
    fused = optimize(lambda x: torch.tanh(torch.exp(x * 0.5)) * x, strict=True)
    threads = torch.get_num_threads()

    def share_of_others(run):
        run()
        before = time.process_time(), time.thread_time()
        for _ in range(5):
            run()
        whole, own = time.process_time() - before[0], time.thread_time() - before[1]
        return (whole - own) / whole

    try:
        torch.set_num_threads(1)
        assert share_of_others(lambda: fused(x)) < 0.2
        torch.set_num_threads(2)
        assert share_of_others(lambda: fused(x)) > 0.25
        gradient, y = torch.ones_like(x), fused(x)
        assert share_of_others(lambda: torch.autograd.grad(y, x, gradient, retain_graph=True)) > 0.25
    finally:
        torch.set_num_threads(threads)


class Watching(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_who_watches_sees_the_operator():
    """Calls that nobody watches go past the dispatcher."""
    (handle, tensors, scalars), _alive = call_of(pointwise, torch.randn(3, 5), torch.randn(5))
    expected = _core.run_region(handle, tensors, scalars)
    with Watching() as mode:
        seen = _core.run_region(handle, tensors, scalars)
    assert mode.seen == ["fusewright.run.default"]
    torch.testing.assert_close(seen, expected)
    with torch.inference_mode():
        inference = _core.run_region(handle, [t.clone() for t in tensors], scalars)
    assert all(y.is_inference() for y in inference)
    torch.testing.assert_close(inference, expected)
    batched = torch.func.vmap(lambda x: x.neg())(tensors[0])  # a transform that is over leaves plain tensors
    assert _core.run_region(handle, [batched, *tensors[1:]], scalars)[0].shape == expected[0].shape


def test_what_is_no_tensor_is_refused():
    (handle, tensors, scalars), _alive = call_of(pointwise, torch.randn(3, 5), torch.randn(5))
    counts = [sys.getrefcount(t) for t in tensors]
    for bad in ([tensors[0], 1.0], [*tensors, None], 3):
        with pytest.raises(TypeError):
            _core.run_region(handle, bad, scalars)
    _core.run_region(handle, tuple(tensors), scalars)
    assert counts == [sys.getrefcount(t) for t in tensors]


def test_views_that_negate():
    """The imaginary part of a conjugate lies in memory with the other sign; so may a gradient that arrives."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU())
    fused = optimize(copy.deepcopy(plain))
    x = torch.randn(4, 8, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    leaf = torch.randn(4, 8, requires_grad=True)
    for model in (plain, fused):
        with torch.no_grad():
            model.out = model(x)
        model.taped = model(x)
        model.gradient = torch.autograd.grad(model(leaf), leaf, x)[0]
    for name in ("out", "taped", "gradient"):
        torch.testing.assert_close(getattr(fused, name), getattr(plain, name))
