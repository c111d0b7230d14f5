"""One call of a function on a sample, with all that it gives, and the comparison of two such calls."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.utils import _pytree as pytree

from fusewright.judge.oracle import Nudge, as_they_are, backward, judge, judge_runs

from .cases import Sample
from .undefined import MEMORY, Undefined

WIDER = {
    torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
    torch.complex32: torch.complex128, torch.complex64: torch.complex128,
}  # fmt: skip


@dataclass
class Outcome:
    """All that a call gives: tensors by name, what else there is to say about them, or an exception."""

    results: dict[str, torch.Tensor | None] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    error: str = ""


def call(function: Callable, sample: Sample, *, wide: bool = False, nudge: Nudge = as_they_are) -> Outcome:
    """Call the function on a copy of the sample, forward and backward."""
    copies: dict[int, object] = {}
    arguments = pytree.tree_map(lambda x: _copy(x, copies, wide, nudge), (sample.input, sample.args, sample.kwargs))
    inputs = [x for x in pytree.tree_leaves(arguments) if isinstance(x, torch.Tensor)]
    outcome = Outcome()
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if wide else default)
    where = "forward"
    try:
        output = function(arguments[0], *arguments[1], **arguments[2])
        _note_output(outcome, output, inputs)
        where = "backward"
        _backward(sample, output)
    except Exception as error:
        outcome.error = f"{where}: {_words(error)}"
        return outcome
    finally:
        torch.set_default_dtype(default)
    for i, x in enumerate(inputs):
        outcome.results[f"input {i} afterwards"] = comparable(x)
        if x.requires_grad and x.is_leaf:
            outcome.results[f"gradient of input {i}"] = None if x.grad is None else comparable(x.grad)
    return outcome


def _words(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return re.sub(r"0x[0-9a-f]+", "0x...", f"{type(error).__name__}: {lines[0] if lines else ''}")


def _copy(x: object, copies: dict[int, object], wide: bool, nudge: Nudge) -> object:
    """A copy with the same layout in memory; the same tensor twice stays one."""
    if isinstance(x, torch.Generator):
        return x.clone_state()
    if isinstance(x, torch.dtype):
        return WIDER.get(x, x) if wide else x
    if not isinstance(x, torch.Tensor):
        return x
    if id(x) not in copies:
        copies[id(x)] = _copy_tensor(x, wide, nudge)
    return copies[id(x)]


def _copy_tensor(x: torch.Tensor, wide: bool, nudge: Nudge) -> torch.Tensor:
    y = x.detach()
    simple = x.layout is torch.strided and not x.is_quantized and not x.is_nested and type(x) in _PLAIN
    simple = simple and not x.is_conj() and not x.is_neg()
    if wide and x.dtype in WIDER and not x.is_quantized:
        y = nudge(y).to(WIDER[x.dtype])
    elif simple and nudge is as_they_are:
        y = torch.empty(0, dtype=x.dtype, device=x.device).set_(
            y.untyped_storage().clone(), y.storage_offset(), y.size(), y.stride()
        )
    else:
        y = nudge(y).clone() if simple else y.clone()
    return y.requires_grad_(x.requires_grad)


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def comparable(x: torch.Tensor) -> torch.Tensor:
    """The tensor as one that the oracle takes: dense, and complex numbers as pairs."""
    x = x.detach()
    if x.is_quantized:
        x = x.dequantize()
    elif x.is_nested:
        x = x.to_padded_tensor(0.0)
    elif x.layout is not torch.strided:
        x = x.to_dense()
    x = x.resolve_conj().resolve_neg()
    return (torch.view_as_real(x) if x.is_complex() else x).clone()


def _note_output(outcome: Outcome, output: object, inputs: list[torch.Tensor]) -> None:
    leaves, structure = pytree.tree_flatten(output)
    outcome.facts["structure"] = re.sub(r"0x[0-9a-f]+", "0x...", str(structure))
    places = {_place(x): i for i, x in reversed(list(enumerate(inputs))) if _place(x)}
    for i, x in enumerate(leaves):
        name = f"output {i}"
        outcome.facts[f"type of {name}"] = type(x).__name__
        if isinstance(x, torch.Tensor):
            outcome.results[name] = comparable(x)
            outcome.facts[f"dtype of {name}"] = str(x.dtype)
            outcome.facts[f"device of {name}"] = str(x.device)
            outcome.facts[f"gradient through {name}"] = x.requires_grad
            outcome.facts[f"layout of {name}"] = str(x.layout)
            if x.layout is torch.strided and not x.is_nested:
                dense = [s for s, n in zip(x.stride(), x.shape, strict=True) if n != 1] if x.numel() > 1 else []
                outcome.facts[f"strides of {name}"] = dense
                outcome.facts[f"input whose memory {name} shares"] = places.get(_place(x))
        elif isinstance(x, (bool, int, float)):
            outcome.results[name] = torch.tensor(x, dtype=torch.float64 if isinstance(x, float) else None)
        else:
            outcome.facts[name] = repr(x)


def _place(x: torch.Tensor) -> int:
    try:
        return x.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def _backward(sample: Sample, output: object) -> None:
    with contextlib.suppress(AttributeError, IndexError, KeyError, TypeError, ValueError):
        output = sample.process(output) if sample.process else output
    leaves = [x for x in pytree.tree_leaves(output) if isinstance(x, torch.Tensor)]
    dense = [x for x in leaves if x.layout is torch.strided and not x.is_nested and not x.is_quantized]
    # A leaf that is handed through has no history of its own.
    backward([x for x in dense if x.requires_grad])


# ---- The comparison ----


def equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_floating_point():
        return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
    return torch.equal(a, b)


def problems(
    fused: Callable[[Nudge], Outcome], function: Callable, sample: Sample, entry: Undefined | None = None
) -> list[str]:
    """Returns what is wrong with the outcome of `fused(nudge)` beside eager's."""
    eager, ours = call(function, sample), fused(as_they_are)
    if eager.error or ours.error:
        return [] if eager.error == ours.error else [f"exception {ours.error!r}, eager's {eager.error!r}"]
    found = [
        f"{name}: {ours.facts.get(name)}, eager's {eager.facts.get(name)}"
        for name in dict.fromkeys((*eager.facts, *ours.facts))
        if ours.facts.get(name) != eager.facts.get(name)
    ]
    memory = entry is not None and entry.check == MEMORY
    for name in dict.fromkeys((*eager.results, *ours.results)):
        a, b = ours.results.get(name), eager.results.get(name)
        if memory and a is not None and b is not None and a.shape == b.shape and a.dtype == b.dtype:
            eager.results[name] = ours.results[name] = None
    names = dict.fromkeys((*eager.results, *ours.results))
    if all(equal(ours.results.get(name), eager.results.get(name)) for name in names):
        return found
    wrong = _outside(fused, function, sample, eager, ours)
    if wrong and entry is not None:
        wrong = [v.problem for n in names for v in [judge(n, *_three(ours, eager, eager, n))] if not v.ok]
    return found + wrong


def _three(ours: Outcome, eager: Outcome, exact: Outcome, name: str) -> tuple:
    return ours.results.get(name), eager.results.get(name), exact.results.get(name)


def _outside(fused: Callable, function: Callable, sample: Sample, eager: Outcome, ours: Outcome) -> list[str]:
    """Returns what the oracle refuses."""
    first = {"eager": eager, "fused": ours}

    def outcome(who: str, nudge: Nudge) -> Outcome:
        if who == "fused":
            return fused(nudge)
        exact = call(function, sample, wide=who == "exact", nudge=nudge)
        # A function without float64 is its own reference.
        return call(function, sample, nudge=nudge) if exact.error else exact

    def run(who: str, nudge: Nudge) -> dict:
        if nudge is not as_they_are:
            found = outcome(who, nudge)
        else:
            found = first.setdefault(who, first.get(who) or outcome(who, nudge))
        return found.results

    wrong = []
    for verdict in judge_runs(run):
        if not verdict.ok and not _discrete_as_exact(*_three(ours, eager, first["exact"], verdict.name)):
            wrong.append(verdict.problem)
    return wrong


def _discrete_as_exact(ours, eager, exact) -> bool:
    """Returns whether discrete values that are not eager's are float64's: eager rounded before it compared."""
    if any(x is None or x.is_floating_point() or x.shape != ours.shape for x in (ours, eager, exact)):
        return False
    return ours.dtype is eager.dtype and bool(((ours == eager) | (ours == exact.to(ours.dtype))).all())
