"""The oracle: one helper that every test of numbers goes through.

`check(fn, inputs)` runs fn three times (eager in float64, eager in its own dtype, fused) and compares outputs,
gradients of inputs and parameters, and buffers, by the rule of `judge/oracle.py`; strides of outputs must be eager's.
FUSEWRIGHT_TEST_DEVICE=cuda does it there (tests/gpu): whatever the caller made is moved first.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable

import audit
import torch
from torch.utils import _pytree as pytree

import fusewright
from fusewright.judge.oracle import backward, judge_runs, lay_out, layout_applies, nudge_state

DEVICE = torch.device(os.environ.get("FUSEWRIGHT_TEST_DEVICE", "cpu"))
AWKWARD = (1, 31, 32, 33, 127)
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
        if layout_applies(layout, inputs):
            _check_layout(fn, inputs, layout, grad, fused, strides, dynamic)


def all_at_once(functions: dict[str, Callable]) -> Callable:
    """One region for all functions of one argument: they read the same -(-x), which changes no bit but a NaN's sign."""

    def f(x):
        x = torch.neg(-x)
        return [fn(x) for fn in functions.values()]

    return f


def place(value):
    """A tensor on the device of the tests; a copy of a module there; anything else as it is."""
    if isinstance(value, torch.nn.Module):
        return value if DEVICE.type == "cpu" else copy.deepcopy(value).to(DEVICE)
    return value.to(DEVICE) if isinstance(value, torch.Tensor) else value


def _check_layout(fn, inputs, layout, grad, fused, strides, dynamic) -> None:
    what, first = f"layout {layout}", {}
    options = {"fused": {"optimize": {"strict": fused, "dynamic": dynamic}}, "eager": {}, "exact": {"wide": True}}

    def run(who, nudge):
        before = fusewright.stats()
        result = _run(fn, inputs, layout, grad, nudge, **options[who])
        if who == "fused" and fused:
            after = fusewright.stats()
            assert after["region_calls"] > before["region_calls"], f"{what}: no fused region ran"
            assert after["fallback_calls"] == before["fallback_calls"], f"{what}: something fell back"
        first.setdefault(who, result)
        return result

    for verdict in judge_runs(run):
        assert verdict.ok, f"{what}: {verdict.problem}"
    if layout == "contiguous":
        audit.record(run)
    ours, eager = first["fused"], first["eager"]
    gradients = [x for name, x in ours.items() if name.startswith("gradient") and x is not None and x.numel()]
    assert len({x.data_ptr() for x in gradients}) == len(gradients), f"{what}: two gradients share memory"
    for name in eager:
        if strides and name.startswith("output") and eager[name].numel() > 1:
            assert _order(ours[name]) == _order(eager[name]), (
                f"{what}: {name} has strides {ours[name].stride()}, eager's has {eager[name].stride()}"
            )


def _order(x: torch.Tensor) -> list:
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size != 1]


def _run(fn, inputs, layout, grad, nudge, wide=False, optimize=None) -> dict[str, torch.Tensor]:
    """Everything that a call gives: outputs, gradients, buffers."""
    is_module = isinstance(fn, torch.nn.Module)
    if is_module:
        fn = copy.deepcopy(fn)
        nudge_state(fn, nudge)
        fn = fn.double() if wide else fn
    called = fn if optimize is None else fusewright.optimize(fn, **optimize)
    leaves, arguments = {}, []
    for position, x in enumerate(inputs):
        if isinstance(x, torch.Tensor):
            x = nudge(x).detach().clone()
            if x.is_floating_point():
                x = x.double() if wide else x
                x.requires_grad_(grad)
                leaves[f"gradient of input {position}"] = x
            x = lay_out(x, layout)
        arguments.append(x)
    flat, _ = pytree.tree_flatten(called(*arguments))
    result = {f"output {i}": x for i, x in enumerate(flat) if isinstance(x, torch.Tensor)}
    if grad:
        backward(list(result.values()))
        if is_module:
            leaves |= {f"gradient of {name}": p for name, p in fn.named_parameters()}
        result |= {name: leaf.grad for name, leaf in leaves.items()}
    if is_module:
        result |= {f"buffer {name}": b for name, b in fn.named_buffers()}
    return {name: None if x is None else x.detach() for name, x in result.items()}
