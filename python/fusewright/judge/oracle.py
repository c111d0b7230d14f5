"""The measure of right and wrong: eager PyTorch in float64.

A result passes when its error against float64 is at most twice eager's own in the same dtype (three times for
16-bit types) or within the defaults of `torch.testing.assert_close`, and no single element is off by more
than ten times the largest error of eager plus the dtype's tolerance. NaN and infinity must stand exactly
where eager has them; which of the two it is may be as in float64.

Where large terms cancel, or two are equal but for a rounding, the errors at one point are a matter of luck: before a
result fails, both are compared at points one rounding away (`judge_runs`). Whether a library adds a layer's bias
itself also decides by which algorithm it multiplies, one several times as exact as another: before a float32 result
fails, eager is asked with its biases added apart as well (`BiasesApart`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# Relative and absolute tolerance (defaults of torch.testing.assert_close), factor allowed over eager's error.
TOLERANCE = {
    torch.float16: (1e-3, 1e-5, 3.0),
    torch.bfloat16: (1.6e-2, 1e-5, 3.0),
    torch.float32: (1.3e-6, 1e-5, 2.0),
    torch.float64: (1e-7, 1e-7, 2.0),
}
SIXTEEN_BITS = (torch.float16, torch.bfloat16)
NEIGHBOURS = 8
MEAN_FACTOR = 1.5  # allowed over eager's error in the mean of all points nearby
HOPELESS = 100  # times eager's error at three points: that is not luck, and the other points are not asked

Nudge = Callable[[torch.Tensor], torch.Tensor]
# run(who, nudge): all that a call of "fused", "eager" or "exact" gives, by name, after nudging all numbers that go in
Run = Callable[[str, Nudge], dict[str, torch.Tensor | None]]


@dataclass(frozen=True)
class Verdict:
    name: str
    error: float  # norm of the error, relative to the norm of the exact result
    eager_error: float
    problem: str | None = None  # why it fails, in words

    @property
    def ok(self) -> bool:
        return self.problem is None

    @property
    def ratio(self) -> float:
        """Our error over eager's; 0 when we have none."""
        return self.error / self.eager_error if self.eager_error else (float("inf") if self.error else 0.0)

    def to_dict(self) -> dict:
        """Plain values only; JSON knows no NaN."""
        number = lambda value: value if math.isfinite(value) else str(value)
        error, eager_error = number(self.error), number(self.eager_error)
        return {"name": self.name, "error": error, "eager_error": eager_error, "problem": self.problem}


def errors(result: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """Norm of the error relative to the norm of the exact result, and the largest error of one element."""
    result, exact = result.detach().double(), exact.detach().double()
    measurable = torch.isfinite(result) & torch.isfinite(exact)
    off = (result - exact)[measurable].abs()
    if off.numel() == 0:
        return 0.0, 0.0
    return off.norm().item() / max(exact[measurable].norm().item(), 1e-30), off.max().item()


def judge(
    name: str,
    result: torch.Tensor | None,
    eager: torch.Tensor | None,
    exact: torch.Tensor | None,
    allowed: tuple[float, float] = (0.0, 0.0),
) -> Verdict:
    """`exact` is eager's float64 answer to the same question; None is a gradient that is not there. `allowed`: errors
    (as `errors` gives them) that eager is known to make, where its error on this one input is no measure."""
    if result is None or eager is None or exact is None:
        same = result is None and eager is None
        return Verdict(name, 0.0, 0.0, None if same else f"{name}: only one of fused and eager has it")
    if result.shape != eager.shape or result.dtype != eager.dtype:
        found, wanted = (f"{t.dtype} {tuple(t.shape)}" for t in (result, eager))
        return Verdict(name, 0.0, 0.0, f"{name}: {found} where eager gives {wanted}")
    if not eager.dtype.is_floating_point:
        return Verdict(name, 0.0, 0.0, None if torch.equal(result, eager) else f"{name}: differs from eager")

    relative, absolute, factor = TOLERANCE[eager.dtype]
    result, eager, exact = (t.detach().double() for t in (result, eager, exact))
    odd = ~torch.isfinite(eager)
    # Eager's vectors and its single elements do not always agree (gelu of infinity): then float64 may be right too.
    as_exact = ~torch.isfinite(result) & _same(result, exact)
    if not torch.where(odd, _same(result, eager) | as_exact, torch.isfinite(result)).all():
        return Verdict(name, float("nan"), 0.0, f"{name}: NaN or infinity not exactly where eager has it")

    # Where only the dtype overflows, float64 has nothing to say.
    measurable = ~odd & torch.isfinite(exact)
    result, eager, exact = result[measurable], eager[measurable], exact[measurable]
    if exact.numel() == 0:
        return Verdict(name, 0.0, 0.0)
    off = (result - exact).abs()
    tolerance = absolute + relative * exact.abs()
    error, worst = errors(result, exact)
    eager_error, eager_worst = map(max, errors(eager, exact), allowed)

    problem = None
    if error > factor * eager_error and bool((off > tolerance).any()):
        problem = f"{name}: error {error:.2g} is more than {factor:g}x eager's {eager_error:.2g}"
    elif bool((off > 10 * eager_worst + tolerance).any()):
        problem = f"{name}: one element is off by {worst:.2g}, eager's worst by {eager_worst:.2g}"
    return Verdict(name, error, eager_error, problem)


class BiasesApart(TorchDispatchMode):
    """Eager, with every bias of a matrix product or convolution added by an operator of its own.

    The sum is the same; the library's choice of an algorithm is not. float32 on an H200, 3x8192 by 8192x8192: an error
    of 1.5e-7 with the bias inside and 5.7e-7 without, and for 129 rows 1.6e-6 and 7.3e-7.
    """

    def __init__(self):
        super().__init__()
        self.met = False  # whether there was a bias

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.addmm.default and not kwargs:
            self.met = True
            return torch.mm(*args[1:]) + args[0]
        if func is torch.ops.aten.convolution.default and args[2] is not None:
            self.met = True
            bias = args[2].view(-1, *(1,) * (args[0].dim() - 2))
            return func(args[0], args[1], None, *args[3:], **(kwargs or {})) + bias
        return func(*args, **(kwargs or {}))


def as_they_are(tensor: torch.Tensor) -> torch.Tensor:
    """The nudge that changes nothing."""
    return tensor


def judge_runs(run: Run) -> list[Verdict]:
    """Judge everything that one call gives. What would fail by its error gets a second opinion from points nearby."""
    eager, exact, fused = (run(who, as_they_are) for who in ("eager", "exact", "fused"))
    verdicts = {
        name: judge(name, fused.get(name), eager.get(name), exact.get(name)) for name in dict.fromkeys((*eager, *fused))
    }
    # A failure without an error is one of shape or presence, or NaN: no point nearby would be better.
    doubtful = [v for v in verdicts.values() if not v.ok and 0 < v.error < math.inf]
    in_float32 = [v.name for v in _of_dtype(doubtful, eager, (torch.float32,))]
    for apart in _biases_apart(run, as_they_are) if in_float32 else []:
        # No single element may be off for it: one that falls on the other side of a threshold says nothing of others.
        allowed = {name: (errors(apart[name], exact[name])[0], 0.0) for name in in_float32}
        verdicts |= {name: judge(name, fused[name], eager[name], exact[name], allowed[name]) for name in in_float32}
        doubtful = [verdicts[v.name] for v in doubtful if not verdicts[v.name].ok]
    for name, allowed in _worst_errors_nearby(run, _of_dtype(doubtful, eager, SIXTEEN_BITS)).items():
        verdicts[name] = judge(name, fused[name], eager[name], exact[name], allowed)
    verdicts |= _judge_means_nearby(run, _of_dtype(doubtful, eager, (torch.float32,)))
    return list(verdicts.values())


def _of_dtype(verdicts: Sequence[Verdict], results: dict, dtypes: Sequence[torch.dtype]) -> list[Verdict]:
    return [verdict for verdict in verdicts if results[verdict.name].dtype in dtypes]


def _biases_apart(run: Run, nudge: Nudge) -> list[dict[str, torch.Tensor | None]]:
    """What eager gives with its biases added apart; nothing where it has none."""
    with BiasesApart() as mode:
        results = run("eager", nudge)
    return [results] if mode.met else []


def _worst_errors_nearby(run: Run, doubtful: Sequence[Verdict]) -> dict[str, tuple[float, float]]:
    """Eager's worst errors, as `judge` takes them, at points one rounding away.

    In 16 bits two elements of a pooling window are often equal after rounding, and which of them is taken moves a whole
    gradient from one place to another. Eager is right or wrong there by luck; its error at a single point says little.
    """
    worst = {verdict.name: (0.0, 0.0) for verdict in doubtful}
    for seed in range(NEIGHBOURS if worst else 0):
        eager, exact = (run(who, _nudge(seed, SIXTEEN_BITS)) for who in ("eager", "exact"))
        worst = {name: tuple(map(max, before, errors(eager[name], exact[name]))) for name, before in worst.items()}
    return worst


def _judge_means_nearby(run: Run, doubtful: Sequence[Verdict]) -> dict[str, Verdict]:
    """By our mean error and eager's, at the point and at those one rounding away.

    In float32 the error of a small gradient, where large terms cancel, is many times as large at one point as at the
    next, for both. The mean is not a matter of luck; what is wrong at the point alone still outweighs it.
    """
    found = {verdict.name: [(verdict.error, verdict.eager_error, verdict.eager_error)] for verdict in doubtful}
    for seed in range(NEIGHBOURS if found else 0):
        exact, eager, fused = (run(who, _nudge(seed, (torch.float32,))) for who in ("exact", "eager", "fused"))
        apart = _biases_apart(run, _nudge(seed, (torch.float32,))) or [eager]
        for name, points in found.items():
            points.append(tuple(errors(results[name], exact[name])[0] for results in (fused, eager, *apart)))
        of_each = {
            name: [sum(kind) / len(kind) for kind in zip(*points, strict=True)] for name, points in found.items()
        }
        means = {name: (ours, max(eagers)) for name, (ours, *eagers) in of_each.items()}
        if seed > 0 and all(ours > HOPELESS * eagers for ours, eagers in means.values()):
            break
    judged = {}
    for verdict in doubtful:
        ours, eagers = means[verdict.name]
        problem = f"{verdict.problem}; at points nearby {ours:.2g}, eager's {eagers:.2g}"
        judged[verdict.name] = Verdict(verdict.name, ours, eagers, None if ours <= MEAN_FACTOR * eagers else problem)
    return judged


def _nudge(seed: int, dtypes: Sequence[torch.dtype]) -> Nudge:
    """Moves numbers of these types by a rounding up, down or not: each call of a run in the same way."""
    generator = torch.Generator("cpu").manual_seed(seed)

    def nudge(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype not in dtypes:
            return tensor
        up = torch.randint(-1, 2, tensor.shape, generator=generator, device="cpu").to(tensor)
        return tensor.detach() * (1 + up * torch.finfo(tensor.dtype).eps)

    return nudge


def nudge_state(model: nn.Module, nudge: Nudge) -> None:
    """Nudge every parameter and buffer, in place."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            nudged = nudge(tensor)
            if nudged is not tensor:
                tensor.copy_(nudged)


def lay_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The values of x as a view with the layout (`expanded` repeats the first row)."""
    if layout == "transposed" and x.dim() >= 2:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "strided" and x.dim():
        return torch.stack([x, x], -1)[..., 0]
    if layout == "offset" and x.dim():
        return torch.cat([x[:1], x])[1:]
    if layout == "misaligned" and x.numel():
        return torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape)
    if layout == "expanded" and x.dim():
        return x[:1].expand_as(x)
    if layout == "channels_last" and x.dim() in (4, 5):
        return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    return x


def layout_applies(layout: str, inputs: Sequence) -> bool:
    """Whether the layout differs from the contiguous one for any of the tensors."""
    ranks = [x.dim() for x in inputs if isinstance(x, torch.Tensor)]
    if layout == "channels_last":
        return any(rank in (4, 5) for rank in ranks)
    return layout == "contiguous" or any(rank >= (2 if layout == "transposed" else 1) for rank in ranks)


def backward(outputs: Sequence[torch.Tensor], seed: int = 7) -> None:
    """From the same gradients in every dtype: drawn in float32, representable in 16 bits."""
    outputs = [x for x in outputs if x.requires_grad]
    if not outputs:
        return
    generator = torch.Generator("cpu").manual_seed(seed)
    draws = [torch.randint(-8, 9, x.shape, generator=generator, device="cpu") / 8 + 0.0625 for x in outputs]
    torch.autograd.backward(outputs, [d.to(x) for d, x in zip(draws, outputs, strict=True)])


def results_of(
    model: nn.Module,
    inputs: Sequence,
    *,
    call: Callable | None = None,
    gradients: bool = True,
    cotangent: torch.Tensor | None = None,
    seed: int = 7,
    nudge: Nudge = as_they_are,
    wide: bool = False,
    layout: str = "contiguous",
) -> dict[str, torch.Tensor | None]:
    """All that a call gives: outputs, gradients of floating-point inputs and of parameters, buffers afterwards.

    call: what is called in the model's place. cotangent: the gradient of the one output; else drawn from the seed.
    wide: the inputs in float64, for a model in float64.
    """
    model.zero_grad(set_to_none=True)
    leaves: dict[str, torch.Tensor] = {}

    def argument(x: torch.Tensor) -> torch.Tensor:
        x = nudge(x).detach().clone()
        if x.is_floating_point():
            x = (x.double() if wide else x).requires_grad_(gradients)
            leaves[f"d input {len(leaves)}"] = x
        return lay_out(x, layout)

    with torch.set_grad_enabled(gradients):
        arguments = pytree.tree_map_only(torch.Tensor, argument, list(inputs))
        result = (model if call is None else call)(*arguments)
        outputs = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
        if gradients and cotangent is not None:
            torch.autograd.backward(outputs, [cotangent.to(outputs[0].dtype)])
        elif gradients:
            backward(outputs, seed)
    # Copies: a CUDA graph writes its next results over these.
    found: dict[str, torch.Tensor | None] = {
        "output" if len(outputs) == 1 else f"output {i}": x.detach().clone() for i, x in enumerate(outputs)
    }
    if gradients:
        found |= {name: _copied(leaf.grad) for name, leaf in leaves.items()}
        found |= {f"d {name}": _copied(p.grad) for name, p in model.named_parameters()}
    found |= {name: b.detach().clone() for name, b in model.named_buffers()}
    model.zero_grad(set_to_none=True)
    return found


def _copied(gradient: torch.Tensor | None) -> torch.Tensor | None:
    return None if gradient is None else gradient.detach().clone()


def _same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) | (torch.isnan(a) & torch.isnan(b))


def judge_step(
    fused: nn.Module,
    eager: nn.Module,
    exact: nn.Module,
    inputs: Sequence[torch.Tensor],
    gradient: torch.Tensor | None = None,
) -> list[Verdict]:
    """One training step of three twins with equal parameters (`exact` in float64): the output, the gradient
    of every parameter and of every floating-point input, and every buffer afterwards."""
    found, wanted = (results_of(model, inputs, cotangent=gradient) for model in (fused, eager))
    exactly = results_of(exact, inputs, cotangent=gradient, wide=True)
    return [judge(name, found[name], wanted[name], exactly[name]) for name in wanted]


def judge_twin(
    model: nn.Module, plain: nn.Module, inputs: Sequence, *, call: Callable | None = None, gradients: bool = True
) -> list[Verdict]:
    """Everything that a call of the model gives, against an unoptimised model that is given the same state.

    The model's own state is put back. call: what is called in the model's place. All draw their random numbers from one
    seed; raises `Unjudgeable` where float64 draws other ones all the same.
    """
    before = copy.deepcopy(plain)
    copy_state(model, before)

    def run(who: str, nudge: Nudge, seed: int = 0) -> dict[str, torch.Tensor | None]:
        torch.manual_seed(seed)
        twin = copy.deepcopy(before)
        nudge_state(twin, nudge)
        if who == "fused":
            copy_state(twin, model)
            return results_of(model, inputs, call=call, gradients=gradients, nudge=nudge)
        wide = who == "exact"
        return results_of(twin.double() if wide else twin, inputs, gradients=gradients, nudge=nudge, wide=wide)

    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=gpus):
            eager = run("eager", as_they_are)
            if is_random(eager, run("eager", as_they_are, seed=1)) and draws_differ(eager, run("exact", as_they_are)):
                raise Unjudgeable(OTHER_NUMBERS)
            return judge_runs(run)
    finally:
        copy_state(before, model)


class Unjudgeable(Exception):
    """Nothing can be said about the model, and why."""


OTHER_NUMBERS = "the model draws random numbers, and other ones in float64"


def is_random(results: dict[str, torch.Tensor | None], again: dict[str, torch.Tensor | None]) -> bool:
    """Whether two calls with different seeds gave different outputs."""
    return any(not torch.equal(results[name], again[name]) for name in results if name.startswith("output"))


def draws_differ(eager: dict[str, torch.Tensor | None], exact: dict[str, torch.Tensor | None]) -> bool:
    """Whether a random model drew other numbers in float64: its outputs are then far apart."""
    return any(errors(eager[name], exact[name])[0] > 0.1 for name in eager if name.startswith("output"))


def copy_state(source: nn.Module, target: nn.Module) -> None:
    """Parameters and buffers, into the target's own memory."""
    places = dict((*target.named_parameters(), *target.named_buffers()))
    with torch.no_grad():
        for name, tensor in (*source.named_parameters(), *source.named_buffers()):
            if name in places:
                places[name].copy_(tensor)
