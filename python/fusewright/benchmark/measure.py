"""Timing that cannot flatter itself.

Candidates are timed in one process, in turns, on inputs drawn afresh for every round: whatever slows the
machine down for a while slows all of them down. What is reported is the median over the rounds with its
quartiles, and a speed-up is the median of the ratios within each round.

On a GPU a sample is the time between two events around one call, on a cache that holds nothing of the inputs, with
the host far enough ahead that the device never waits for it: host time is measured apart (`host_seconds`).
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .. import _core
from ..units import show_seconds

SHORTEST_SAMPLE = 2e-3  # seconds; a shorter call is repeated within its sample (not on a GPU)
FLUSH_BYTES = 256 * 2**20  # more than any L2 cache holds
CYCLES_PER_SECOND = 2e9  # of torch.cuda._sleep, roughly


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
    fresh: Callable[[], Sequence],
    *,
    seconds: float = 3.0,
    rounds: tuple[int, int] = (7, 300),
    prepared: bool = False,
) -> dict[str, Timing]:
    """Times every candidate on `fresh()` inputs, round after round, for about `seconds` or the fewest rounds.

    The order is another in each round, so that nobody always runs after the same neighbour.
    prepared: a candidate returns the function that is timed; what it does before is not (a forward, say).
    """
    names = list(candidates)
    inputs = fresh()
    samplers = {name: _sampler(candidates[name], inputs, prepared) for name in names}
    samples: dict[str, list[float]] = {name: [] for name in names}
    fewest, most = rounds
    shuffled = random.Random(0)  # the same every time
    end = time.perf_counter() + seconds
    for turn in range(most):
        if turn >= fewest and time.perf_counter() > end:
            break
        inputs = fresh()
        for name in shuffled.sample(names, len(names)):
            samples[name].append(samplers[name](inputs))
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def _sampler(candidate: Callable[..., object], inputs: Sequence, prepared: bool) -> Callable[[Sequence], float]:
    """A function of the inputs that gives the seconds of one call. The candidate is called here, to warm up."""

    def ready(arguments: Sequence) -> Callable[[], object]:
        return candidate(*arguments) if prepared else lambda: candidate(*arguments)

    ready(inputs)()  # compiles, fills caches
    # Threads that go on compiling would disturb the host; then the next call chooses among what they made.
    _core.finish_compiling()
    ready(inputs)()
    gpu = next((tensor.device for tensor in tensors_in(inputs) if tensor.is_cuda), None)
    if gpu is not None:
        ahead = host_seconds(ready, inputs)
        return lambda arguments: device_seconds(ready(arguments), gpu, ahead)
    estimate = _wall_seconds(ready(inputs), 1)
    repeats = 1 if prepared else max(1, math.ceil(SHORTEST_SAMPLE / max(estimate, 1e-7)))
    return lambda arguments: _wall_seconds(ready(arguments), repeats)


def _wall_seconds(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def host_seconds(ready: Callable[[Sequence], Callable[[], object]], inputs: Sequence, calls: int = 5) -> float:
    """What a call costs the host: the median time until it returns, while the device is not waited for."""
    samples = []
    for _ in range(calls):
        call = ready(inputs)
        synchronize(inputs)
        samples.append(_wall_seconds(call, 1))
    synchronize(inputs)
    return statistics.median(samples)


_flush_buffers: dict[torch.device, torch.Tensor] = {}


def device_seconds(call: Callable[[], object], device: torch.device, ahead: float) -> float:
    """Seconds that the device works on a call that the host takes about `ahead` seconds to hand over."""
    if _core.cuda_available():
        # Kernels (torch.compile's too) may ask the cache to hold what they read, and writing over it leaves that there.
        torch.cuda.synchronize(device)
        _core.let_l2_forget(device.index or 0)
    if device not in _flush_buffers:
        _flush_buffers[device] = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)
    with torch.cuda.device(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # Much longer than the host took when nothing else had run: letting go alone delays the backward's thread.
        torch.cuda._sleep(int((2 * ahead + 300e-6) * CYCLES_PER_SECOND))
        _flush_buffers[device].fill_(1)
        start.record()
        call()
        end.record()
        end.synchronize()
    return start.elapsed_time(end) * 1e-3


def tensors_in(values: object) -> list[torch.Tensor]:
    """All tensors of nested lists, tuples and dictionaries."""
    return [value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]


def synchronize(values: object) -> None:
    """Wait for the devices of the tensors."""
    for device in {tensor.device for tensor in tensors_in(values) if tensor.is_cuda}:
        torch.cuda.synchronize(device)


def training_step(model: nn.Module, call: Callable[..., object] | None = None) -> Callable[..., object]:
    """Forward and backward to parameters and inputs, as a function of (*inputs, gradient of the output); a list of
    gradients where several outputs have one. `call`: what is called in the model's place."""

    def step(*arguments: object) -> object:
        *inputs, gradients = arguments
        for tensor in (*tensors_in(inputs), *model.parameters()):
            tensor.grad = None
        output = (model if call is None else call)(*inputs)
        torch.autograd.backward([x for x in tensors_in(output) if x.requires_grad], tensors_in(gradients))
        return output

    return step
