"""The hardware's floor, measured on this machine: what no program can be faster than.

Outside the library a program must read what comes from outside once and write what leaves once; a copy that moves as
many bytes is the fastest way to do that.

On a GPU, whose caches are emptied before each sample, what the library computes takes the time that it takes. On the
CPU nothing empties the caches, and each candidate may choose another library: there the floor is the time to move what
the caches cannot hold, and where they can hold all of it no floor is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ..explain import Explanation, Kernel, Tensors
from .measure import interleaved

LARGE_COPY = {"cpu": 1 << 28, "cuda": 1 << 31}  # bytes moved: more than caches hold
# A processor reads a line before it writes to it: a copy moves three bytes where its count has two, and a program that
# only reads moves what is counted.
MOVED_BY_COPY = {"cpu": 3 / 2, "cuda": 1.0}
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


def bytes_from_memory(least: int, device: torch.device) -> int:
    """How many of the bytes cannot come from a cache. 0: no floor is known."""
    if device.type != "cpu":
        return least
    cached = cache_bytes()
    return max(0, least - cached) if cached else 0


def cache_bytes() -> int:
    """What the caches of all processors of this machine hold, 0 if the system does not say."""
    caches: dict[tuple, int] = {}
    for folder in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            level, kind, sharers, size = (
                (folder / name).read_text().strip() for name in ("level", "type", "shared_cpu_list", "size")
            )
            caches[level, kind, sharers] = int(size[:-1]) * {"K": 2**10, "M": 2**20, "G": 2**30}[size[-1]]
        except (OSError, ValueError, KeyError):
            return 0
    return sum(size for (_, kind, _), size in caches.items() if kind != "Instruction")


def copy_of(count: int, device: torch.device) -> Callable:
    """A copy that reads and writes `count` bytes in all."""
    source = torch.randint(0, 256, (max(count // 2 // 16 * 16, 16),), dtype=torch.uint8, device=device)
    source = source.view(torch.float32)
    target = torch.empty_like(source)
    return lambda *_: target.copy_(source)


@dataclass(frozen=True)
class Floor:
    """Of one mode. Both times are the fastest that were seen: a floor is what can be reached, busy machine or not."""

    bytes: int  # that must be moved outside the library, and come from memory
    copy: float  # seconds to move them
    library: float  # seconds in the library; 0 on the CPU

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
