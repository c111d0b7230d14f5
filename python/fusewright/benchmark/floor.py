"""The hardware's floor, measured on this machine: what no program can be faster than.

Outside the library a program must read what comes from outside once and write what leaves once; a copy that moves as
many bytes is the fastest way to do that. What the library computes takes the time that it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..explain import Explanation, Kernel, Tensors
from .measure import interleaved

LARGE_COPY = {"cpu": 1 << 28, "cuda": 1 << 31}  # bytes moved: more than caches hold
LARGE_PRODUCT = {"cpu": 1024, "cuda": 8192}


def least_bytes(explanation: Explanation) -> int:
    """What kernels must move at the least, for the sizes that were explained.

    Each tensor from outside (an input, a result of the library) is read once, and each that leaves is written once,
    in the forward and again in the backward. What one kernel leaves for another counts nothing, nor what the forward
    saves for the backward beyond its inputs and results: both are our choice.
    """
    return sum(_least_bytes_of(explanation, region, tensors) for region, tensors in explanation.tensors.items())


def _least_bytes_of(explanation: Explanation, region: str, tensors: Tensors) -> int:
    total, made_before = 0, set()
    back_to_forward = dict(tensors.saved)
    for phase, results in (("forward", tensors.outputs), ("backward", tensors.gradients)):
        steps = [step for step in explanation.steps if (step.region, step.phase) == (region, phase)]
        kernels = [step for step in steps if isinstance(step, Kernel)]
        read_by_library = {n for step in steps if not isinstance(step, Kernel) for n, _ in step.reads}
        written = {n: size for kernel in kernels for n, size in kernel.writes}
        read = {n: size for kernel in kernels for n, size in kernel.reads if n not in written}
        if phase == "backward":
            ours_to_save = made_before - set(tensors.outputs)
            read = {n: size for n, size in read.items() if back_to_forward.get(n) not in ours_to_save}
        leaving = {n: size for n, size in written.items() if n in read_by_library or n in results}
        total += sum(read.values()) + sum(leaving.values())
        made_before = set(written)
    return total


def copy_of(count: int, device: torch.device) -> Callable:
    """A copy that reads and writes `count` bytes in all."""
    source = torch.randint(0, 256, (max(count // 2 // 16 * 16, 16),), dtype=torch.uint8, device=device)
    source = source.view(torch.float32)
    target = torch.empty_like(source)
    return lambda *_: target.copy_(source)


@dataclass(frozen=True)
class Floor:
    """Of one mode. Both times are the fastest that were seen: a floor is what can be reached, busy machine or not."""

    bytes: int  # that must be moved outside the library
    copy: float  # seconds to copy them
    library: float  # seconds in the library

    @property
    def seconds(self) -> float:
        return self.copy + self.library


@dataclass(frozen=True)
class Machine:
    """The roofs of the device."""

    bandwidth: float  # bytes per second of a large copy
    arithmetic: float  # operations per second of a large matrix product


def measure_machine(device: torch.device, dtype: torch.dtype = torch.float32, seconds: float = 0.5) -> Machine:
    """Under the precision flags that hold now."""
    count, size = LARGE_COPY[device.type], LARGE_PRODUCT[device.type]
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    work = {"copy": copy_of(count, device), "product": lambda *_: a @ b}
    found = interleaved(work, lambda: [a], seconds=seconds, rounds=(5, 50))
    best = {name: min(timing.samples) for name, timing in found.items()}  # a roof is what can be reached
    return Machine(count / best["copy"], 2 * size**3 / best["product"])
