"""The four models at full size: output, gradients and buffers against float64, training, memory, sizes, repetition."""

import copy
from dataclasses import astuple

import pytest
import torch
from check import check
from torch import nn

import fusewright
from fusewright import models, optimize, stats
from fusewright.benchmark.measure import training_step
from fusewright.benchmark.memory import memory_of
from fusewright.judge.oracle import judge_step

PATHS = {path.stem: path for path in models.default_models()}
names = pytest.mark.parametrize("name", PATHS)


@pytest.fixture
def scale(device):
    return "full" if device.type == "cuda" else "small"


def make(name, scale, device, seed=0):
    """The module's file, the model, and a function that draws inputs."""
    file = models.load(PATHS[name])
    return file.build(scale, seed, device), lambda: file.inputs(scale, device)


# The precision of TF32, which the library may use for convolutions in one layout and not in the other.
TF32_ERROR = 2.0**-10


def assert_right(verdicts, allowed=0.0):
    problems = [verdict.problem for verdict in verdicts if not verdict.ok and verdict.error > allowed]
    assert not problems, "; ".join(problems)


@names
def test_against_float64(name, scale, device):
    model, draw = make(name, scale, device)
    fused = optimize(copy.deepcopy(model), strict=True)
    (x,) = draw()
    with torch.no_grad():
        gradient = torch.randn_like(copy.deepcopy(model)(x))
    assert_right(judge_step(fused, copy.deepcopy(model), copy.deepcopy(model).double(), [x], gradient))
    assert stats()["fallback_calls"] == 0 and stats()["region_calls"] > 0


@names
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_dtypes(name, dtype, device):
    model, draw = make(name, "small", device)
    check(model.to(dtype), [t.to(dtype) for t in draw()], layouts=["contiguous"])


@names
def test_channels_last(name, device):
    model, draw = make(name, "small", device)
    (x,) = draw()
    if x.dim() not in (4, 5):
        pytest.skip("no images")
    layout = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    x = x.contiguous(memory_format=layout)
    for module in model.modules():
        if isinstance(module, nn.modules.conv._ConvNd):  # the multiplier has a rank of its own
            module.to(memory_format=layout)
    fused = optimize(copy.deepcopy(model), strict=True)
    assert_right(judge_step(fused, copy.deepcopy(model), copy.deepcopy(model).double(), [x]))
    eager = model(x)
    ours = fused(x)
    assert ours.stride() == eager.stride()


@names
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast(name, dtype, device):
    """The oracle's rule: our distance to float64 is at most a few times that of eager under the same autocast."""
    if device.type == "cpu" and dtype is torch.float16:
        pytest.skip("the CPU's autocast of convolutions wants bfloat16")
    model, draw = make(name, "small", device)
    (x,) = draw()
    twins = {"eager": copy.deepcopy(model), "fused": optimize(copy.deepcopy(model), strict=True)}
    found = {}
    for kind, twin in twins.items():
        leaf = x.clone().requires_grad_()
        with torch.autocast(device.type, dtype):
            y = twin(leaf)
        y.float().square().mean().backward()
        gradients = {f"d {key}": p.grad for key, p in twin.named_parameters()}
        found[kind] = {"output": y.detach(), "d input": leaf.grad, **gradients}
    exact = model.double()
    leaf = x.double().requires_grad_()
    y = exact(leaf)
    y.square().mean().backward()
    reference = {"output": y.detach(), "d input": leaf.grad}
    reference |= {f"d {key}": p.grad for key, p in exact.named_parameters()}
    for key, ours in found["fused"].items():
        eager, want = found["eager"][key], reference[key]
        assert ours.dtype is eager.dtype, key
        scale = want.norm().clamp(min=1e-30)
        error, eager_error = ((t.double() - want).norm() / scale for t in (ours, eager))
        assert error <= 3 * eager_error + torch.finfo(dtype).eps, f"{key}: {error:.2g}, eager {eager_error:.2g}"
    assert stats()["fallback_calls"] == 0


@names
def test_twenty_steps_of_training(name, device):
    """The same seed, data and optimizer, with and without us."""
    losses = {}
    steps = 20 if device.type == "cuda" else 3
    for kind in ("eager", "fused"):
        model, draw = make(name, "small", device)
        model = optimize(model, strict=True) if kind == "fused" else model
        has_norm = any(isinstance(m, (nn.BatchNorm1d, nn.GroupNorm)) for m in model.modules())
        optimizer = (torch.optim.Adam if has_norm else torch.optim.SGD)(model.parameters(), lr=1e-3)
        torch.manual_seed(1)
        losses[kind] = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = (model(*draw()) - 1).square().mean()
            loss.backward()
            optimizer.step()
            losses[kind].append(loss.item())
    for number, (ours, eager) in enumerate(zip(losses["fused"], losses["eager"], strict=True)):
        assert abs(ours - eager) <= 1e-3 * abs(eager), f"step {number}: {ours} instead of {eager}"
    assert stats()["captures"] == 1 and stats()["fallback_calls"] == 0


@names
def test_another_size_compiles_nothing(name, device):
    model, draw = make(name, "small", device)
    fused = optimize(copy.deepcopy(model), strict=True)
    (x,) = draw()
    before = None
    for batch in (x.shape[0], x.shape[0] - 1, 3):
        sizes = [(batch, *x.shape[1:])]
        if x.dim() > 2:
            sizes.append((batch, x.shape[1], *(size - 2 for size in x.shape[2:])))
        for size in sizes:
            other = torch.rand(size)
            twins = copy.deepcopy(model), copy.deepcopy(model).double()
            assert_right(judge_step(fused, *twins, [other]), TF32_ERROR if "conv" in name else 0.0)
            counts = stats()
            built = counts["kernels_compiled"] + counts["cache_hits"]
            before = built if before is None else before
            assert built == before, f"{size} built a kernel"
            model.load_state_dict(fused.state_dict())


@names
def test_a_hundred_runs_are_equal_bit_for_bit(name, device):
    """Library calls follow the user's flags, so those are set; our own kernels have no other way."""
    model, draw = make(name, "small", device)
    model = optimize(model.eval(), strict=True)
    (x,) = draw()
    x.requires_grad_()
    runs = 100 if device.type == "cuda" else 3
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        first = None
        for run in range(runs):
            x.grad = None
            model.zero_grad()
            y = model(x)
            y.backward(torch.ones_like(y))
            found = [y.detach(), x.grad, *(p.grad for p in model.parameters())]
            first = first or [t.clone() for t in found]
            assert all(torch.equal(a, b) for a, b in zip(found, first, strict=True)), f"run {run} differs"
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.cuda
@names
def test_memory(name, scale, device):
    """The memory held between forward and backward, and the peak of a step, are not above eager's."""
    found = {}
    for kind in ("eager", "fused"):
        model, draw = make(name, scale, device)
        if kind == "fused":
            optimize(model, strict=True)
        x = draw()[0].requires_grad_()
        with torch.no_grad():
            gradient = torch.randn_like(model(x))
        training_step(model)(x, gradient)  # whatever is made once is made here
        found[kind] = astuple(memory_of(model, model, [x], [gradient]))
        del model, x, gradient, draw
        torch.cuda.empty_cache()
    for what, ours, eager in zip(("held", "peak"), found["fused"], found["eager"], strict=True):
        assert ours <= eager + 2**20, f"{what}: {ours / 2**20:.1f} MB, eager {eager / 2**20:.1f} MB"


@names
def test_explain(name, device):
    model, draw = make(name, "small", device)
    (x,) = draw()
    explanation = fusewright.explain(model, x.requires_grad_())
    assert explanation.kernels and not explanation.fallbacks, str(explanation)
    assert {kernel.phase for kernel in explanation.kernels} == {"forward", "backward"}
    if device.type == "cuda":
        assert all("__global__" in kernel.text for kernel in explanation.kernels)
