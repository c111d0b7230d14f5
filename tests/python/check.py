"""The oracle: one helper that every test of numbers goes through.

`check(fn, inputs)` runs fn three times (eager in float64, eager in its own dtype, fused) and compares outputs,
gradients of inputs and parameters, and buffers, by the rule of `fusewright.oracle`; strides of outputs must be eager's.
FUSEWRIGHT_TEST_DEVICE=cuda does it there (tests/gpu): whatever the caller made is moved first.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable

import torch
from torch.utils import _pytree as pytree

import fusewright
from fusewright.oracle import errors, judge

DEVICE = torch.device(os.environ.get("FUSEWRIGHT_TEST_DEVICE", "cpu"))
AWKWARD = (1, 31, 32, 33, 127)
NEIGHBOURS = (torch.float16, torch.bfloat16)
FEW_ROUNDINGS = 16 * torch.finfo(torch.float32).eps
LAYOUTS = ("contiguous", "transposed", "strided", "offset", "expanded", "channels_last")


def check(
    fn: Callable,
    inputs: Iterable | Callable,
    *,
    grad: bool = True,
    fused: bool = True,
    layouts: Iterable[str] = LAYOUTS,
    sizes: Iterable[int] = AWKWARD,
    strides: bool = True,
    dynamic: bool | None = None,
) -> None:
    """Hold the fused fn (a module or function) against eager and float64.

    inputs: tensors and other arguments; or a function of one size that makes them, called for each of `sizes`.
    fused: assert that everything was fused: `strict`, at least one region ran, nothing fell back.
    """
    if callable(inputs):
        for size in sizes:
            check(fn, inputs(size), grad=grad, fused=fused, layouts=("contiguous",), strides=strides, dynamic=dynamic)
        inputs = inputs(max(sizes))
    fn, inputs = place(fn), [place(x) for x in inputs]
    for layout in layouts:
        if _applies(layout, inputs):
            _check_layout(fn, inputs, layout, grad, fused, strides, dynamic)


def place(value):
    """A tensor on the device of the tests; a copy of a module there; anything else as it is."""
    if isinstance(value, torch.nn.Module):
        return value if DEVICE.type == "cpu" else copy.deepcopy(value).to(DEVICE)
    return value.to(DEVICE) if isinstance(value, torch.Tensor) else value


def _applies(layout: str, inputs: list) -> bool:
    ranks = [x.dim() for x in inputs if isinstance(x, torch.Tensor)]
    if layout == "channels_last":
        return any(rank in (4, 5) for rank in ranks)
    return layout == "contiguous" or any(rank >= (2 if layout == "transposed" else 1) for rank in ranks)


def lay_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The values of x as a view with the layout (`expanded` repeats the first row)."""
    if layout == "transposed" and x.dim() >= 2:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "strided" and x.dim():
        return torch.stack([x, x], -1)[..., 0]
    if layout == "offset" and x.dim():
        return torch.cat([x[:1], x])[1:]
    if layout == "expanded" and x.dim():
        return x[:1].expand_as(x)
    if layout == "channels_last" and x.dim() in (4, 5):
        return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    return x


def _check_layout(fn, inputs, layout, grad, fused, strides, dynamic) -> None:
    what = f"layout {layout}"
    wide = _run(fn, inputs, layout, grad, wide=True)
    eager = _run(fn, inputs, layout, grad)
    before = fusewright.stats()
    ours = _run(fn, inputs, layout, grad, optimize={"strict": fused, "dynamic": dynamic})
    after = fusewright.stats()
    if fused:
        assert after["region_calls"] > before["region_calls"], f"{what}: no fused region ran"
        assert after["fallback_calls"] == before["fallback_calls"], f"{what}: something fell back"
    assert wide.keys() == eager.keys() == ours.keys(), f"{what}: {eager.keys()} expected, got {ours.keys()}"
    worst: dict[str, float] | None = None
    for name in eager:
        verdict = judge(name, ours[name], eager[name], wide[name])
        if not verdict.ok and eager[name].dtype in NEIGHBOURS:
            worst = worst or _errors_nearby(fn, inputs, layout, grad)
            verdict = judge(name, ours[name], eager[name], wide[name], worst[name])
        if not verdict.ok and eager[name].dtype is torch.float32 and verdict.error < FEW_ROUNDINGS:
            fused_mean, eager_mean = _mean_errors_nearby(fn, inputs, layout, grad, name, strict=fused, dynamic=dynamic)
            assert fused_mean <= 1.5 * eager_mean, f"{what}: {name}: mean errors {fused_mean:.2g}, {eager_mean:.2g}"
        else:
            assert verdict.ok, f"{what}: {verdict.problem}"
        if strides and name.startswith("output") and isinstance(eager[name], torch.Tensor) and eager[name].numel() > 1:
            assert _order(ours[name]) == _order(eager[name]), (
                f"{what}: {name} has strides {ours[name].stride()}, eager's has {eager[name].stride()}"
            )


def _errors_nearby(fn, inputs, layout, grad) -> dict[str, tuple[float, float]]:
    """Eager's worst error, as `judge` takes it, at points one rounding away.

    In 16 bits two elements of a pooling window are often equal after rounding, and which of them is taken moves a whole
    gradient from one place to another. Eager is right or wrong there by luck; its error at a single point says little.
    """
    worst: dict[str, tuple[float, float]] = {}
    for near, points in _nearby(fn, inputs, NEIGHBOURS):
        wide, eager = _run(near, points, layout, grad, wide=True), _run(near, points, layout, grad)
        for name in eager:
            here = errors(eager[name], wide[name])
            worst[name] = tuple(map(max, worst.get(name, (0.0, 0.0)), here))
    return worst


def _mean_errors_nearby(fn, inputs, layout, grad, name, **options) -> tuple[float, float]:
    """Our mean error and eager's at the same points one rounding away: in float32 the error of a small gradient, where
    large terms cancel, is twice as large at one point as at the next, for both. The mean is not a matter of luck."""
    found = []
    for near, points in _nearby(fn, inputs, (torch.float32,)):
        wide = _run(near, points, layout, grad, wide=True)[name]
        ours = _run(near, points, layout, grad, optimize=options)[name]
        found.append((errors(ours, wide)[0], errors(_run(near, points, layout, grad)[name], wide)[0]))
    return tuple(sum(column) / len(found) for column in zip(*found, strict=True))


def _nearby(fn, inputs, dtypes):
    """Eight copies of the function and its inputs, their numbers moved by a rounding."""
    generator = torch.Generator("cpu").manual_seed(11)

    def nudge(x):
        if not isinstance(x, torch.Tensor) or x.dtype not in dtypes:
            return x
        up = torch.randint(-1, 2, x.shape, generator=generator, device="cpu").to(x)
        return x.detach() * (1 + up * torch.finfo(x.dtype).eps)

    for _ in range(8):
        near = copy.deepcopy(fn)
        if isinstance(fn, torch.nn.Module):
            near.load_state_dict({name: nudge(x) for name, x in fn.state_dict().items()})
        yield near, [nudge(x) for x in inputs]


def _order(x: torch.Tensor) -> list:
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size != 1]


def _run(fn, inputs, layout, grad, wide=False, optimize=None) -> dict[str, torch.Tensor]:
    """Everything that a call gives: outputs, gradients, buffers."""
    is_module = isinstance(fn, torch.nn.Module)
    fn = copy.deepcopy(fn) if is_module else fn
    if wide and is_module:
        fn = fn.double()
    called = fn if optimize is None else fusewright.optimize(fn, **optimize)
    leaves, arguments = {}, []
    for position, x in enumerate(inputs):
        if isinstance(x, torch.Tensor):
            x = x.detach().clone()
            if x.is_floating_point():
                x = x.double() if wide else x
                x.requires_grad_(grad)
                leaves[f"gradient of input {position}"] = x
            x = lay_out(x, layout)
        arguments.append(x)
    flat, _ = pytree.tree_flatten(called(*arguments))
    result = {f"output {i}": x for i, x in enumerate(flat) if isinstance(x, torch.Tensor)}
    if grad:
        _backward([x for x in result.values() if x.requires_grad])
        if is_module:
            leaves |= {f"gradient of {name}": p for name, p in fn.named_parameters()}
        result |= {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    if is_module:
        result |= {f"buffer {name}": b for name, b in fn.named_buffers()}
    return {name: x.detach() for name, x in result.items()}


def _backward(outputs: list[torch.Tensor]) -> None:
    if not outputs:
        return
    generator = torch.Generator("cpu").manual_seed(7)
    # The same cotangents in every dtype: drawn in float32, representable in 16 bits.
    draws = [torch.randint(-8, 9, x.shape, generator=generator, device="cpu") / 8 + 0.0625 for x in outputs]
    torch.autograd.backward(outputs, [d.to(x) for d, x in zip(draws, outputs, strict=True)])
