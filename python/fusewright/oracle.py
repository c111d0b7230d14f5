"""The measure of right and wrong: eager PyTorch in float64.

A result passes when its error against float64 is at most twice eager's own in the same dtype (three times for
16-bit types) or within the defaults of `torch.testing.assert_close`, and no single element is off by more
than ten times the largest error of eager plus the dtype's tolerance. NaN and infinity must stand exactly
where eager has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

# Relative and absolute tolerance (defaults of torch.testing.assert_close), factor allowed over eager's error.
TOLERANCE = {
    torch.float16: (1e-3, 1e-5, 3.0),
    torch.bfloat16: (1.6e-2, 1e-5, 3.0),
    torch.float32: (1.3e-6, 1e-5, 2.0),
    torch.float64: (1e-7, 1e-7, 2.0),
}


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
    same_odd = torch.allclose(result[odd], eager[odd], rtol=0, atol=0, equal_nan=True)
    if not same_odd or not torch.isfinite(result[~odd]).all():
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


def judge_step(
    fused: nn.Module,
    eager: nn.Module,
    exact: nn.Module,
    inputs: Sequence[torch.Tensor],
    gradient: torch.Tensor | None = None,
) -> list[Verdict]:
    """One training step of three twins with equal parameters (`exact` in float64): the output, the gradient
    of every parameter and of every floating-point input, and every buffer afterwards."""
    results = [_step(model, inputs, gradient) for model in (fused, eager)]
    results.append(_step(exact, [_double(t) for t in inputs], None if gradient is None else gradient.double()))
    return [judge(name, results[0][name], results[1][name], results[2][name]) for name in results[1]]


def _step(
    model: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], gradient: torch.Tensor | None
) -> dict[str, torch.Tensor | None]:
    inputs = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs]
    model.zero_grad(set_to_none=True)
    output = model(*inputs)
    output.backward(torch.ones_like(output) if gradient is None else gradient)
    found: dict[str, torch.Tensor | None] = {"output": output.detach()}
    found |= {f"d input {i}": t.grad for i, t in enumerate(inputs)}
    found |= {f"d {name}": p.grad for name, p in model.named_parameters()}
    found |= {name: b.detach().clone() for name, b in model.named_buffers()}
    model.zero_grad(set_to_none=True)
    return found


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
