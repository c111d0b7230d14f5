"""Timing that cannot flatter itself.

Candidates are timed in one process, in turns, on inputs drawn afresh for every round: whatever slows the
machine down for a while slows all of them down. What is reported is the median over the rounds with its
quartiles, and a speed-up is the median of the ratios within each round.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

SHORTEST_SAMPLE = 2e-3  # seconds; a shorter call is repeated within its sample


@dataclass(frozen=True)
class Timing:
    """Seconds per call, one sample a round."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.samples) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return low, high

    def __str__(self) -> str:
        low, high = self.quartiles
        return f"{show_seconds(self.median)} [{show_seconds(low)} .. {show_seconds(high)}]"


def speedup(baseline: Timing, candidate: Timing) -> float:
    """How many times faster the candidate is; both come from one call of `interleaved`."""
    return statistics.median(b / c for b, c in zip(baseline.samples, candidate.samples, strict=True))


def interleaved(
    candidates: dict[str, Callable[..., object]],
    fresh: Callable[[], Sequence[torch.Tensor]],
    *,
    seconds: float = 3.0,
    rounds: tuple[int, int] = (7, 300),
) -> dict[str, Timing]:
    """Times every candidate on `fresh()` inputs, round after round, for about `seconds` or the fewest rounds.

    The order is turned by one place each round, so that nobody always runs after the same neighbour.
    """
    names = list(candidates)
    inputs = fresh()
    repeats = {}
    for name in names:
        candidates[name](*inputs)  # compiles, fills caches
        estimate = _sample(candidates[name], inputs, 1)
        repeats[name] = max(1, math.ceil(SHORTEST_SAMPLE / max(estimate, 1e-7)))

    samples: dict[str, list[float]] = {name: [] for name in names}
    fewest, most = rounds
    end = time.perf_counter() + seconds
    for turn in range(most):
        if turn >= fewest and time.perf_counter() > end:
            break
        inputs = fresh()
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            samples[name].append(_sample(candidates[name], inputs, repeats[name]))
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def _sample(candidate: Callable[..., object], inputs: Sequence[torch.Tensor], repeats: int) -> float:
    if any(tensor.is_cuda for tensor in inputs):
        return _cuda_sample(candidate, inputs, repeats)
    start = time.perf_counter()
    for _ in range(repeats):
        candidate(*inputs)
    return (time.perf_counter() - start) / repeats


def _cuda_sample(candidate: Callable[..., object], inputs: Sequence[torch.Tensor], repeats: int) -> float:
    # Writing more than the L2 cache holds leaves nothing of the inputs in it.
    torch.empty(256 * 2**20, dtype=torch.uint8, device=inputs[0].device).zero_()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        candidate(*inputs)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / repeats


def training_step(model: nn.Module) -> Callable[..., torch.Tensor]:
    """Forward and backward to parameters and inputs, as a function of (*inputs, gradient of the output)."""

    def step(*arguments: torch.Tensor) -> torch.Tensor:
        *inputs, gradient = arguments
        for tensor in (*inputs, *model.parameters()):
            tensor.grad = None
        output = model(*inputs)
        output.backward(gradient)
        return output

    return step


def show_seconds(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale or unit == "us":
            return f"{seconds / scale:.3g} {unit}"
    raise AssertionError


def show_bytes(count: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"
