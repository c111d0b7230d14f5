"""Seconds of each kernel and library call, from PyTorch's profiler, which sees a range for each region and kernel."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.profiler import ProfilerActivity, profile

from ..explain import OWN_CONTRACTIONS, Explanation, Kernel, LibraryCall
from .measure import Timing
from .traffic import LIBRARY_OPERATORS

REPEATS = 7
_CONTRACTIONS = {f"aten::{name}" for name in LIBRARY_OPERATORS}.union(*OWN_CONTRACTIONS.values())
_ENDINGS = re.compile(r"|_phase\d+|_merge\d+|_sides")  # of entries: src/codegen/walk/cuda_walking.cpp


@contextmanager
def profiled(**options) -> Iterator[profile]:
    """torch.profiler.profile, without the lines that some versions of it write to stderr."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    found = profile(activities=activities, **options)
    with _silent_stderr():
        found.__enter__()
    try:
        yield found
    finally:
        with _silent_stderr():
            found.__exit__(None, None, None)


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """It is C++ that writes, so the descriptor is what must be turned away."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def step_timings(
    explanation: Explanation, call: Callable[[], object], device: torch.device, repeats: int = REPEATS
) -> list[Timing | None]:
    """The time of each of `explanation.steps` in a call, over several. None: it did not run.

    On a GPU the time is the device's; kernels of one name are told apart by the order in which they ran.
    """
    on_gpu = device.type == "cuda"
    call()
    with profiled() as found:
        for _ in range(repeats):
            call()
        if on_gpu:
            torch.cuda.synchronize(device)
    events = sorted(found.events(), key=lambda event: event.time_range.start)
    samples: dict[int, list[float]] = {}
    for plans in _plans_that_look_alike(explanation):
        ranges = [found for event in events if (found := _steps_in(event, plans[0]))]
        for number, children in enumerate(ranges):
            for step, child in zip(plans[number % len(plans)], children, strict=True):
                if not on_gpu or isinstance(step, LibraryCall):
                    us = child.device_time_total if on_gpu else child.time_range.elapsed_us()
                    samples.setdefault(id(step), []).append(us * 1e-6)
    if on_gpu:
        on_device = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA]
        samples |= _of_kernels_on_device(explanation, on_device)
    return [Timing(tuple(samples[id(step)])) if id(step) in samples else None for step in explanation.steps]


def _plans_that_look_alike(explanation: Explanation) -> list[list[list[Kernel | LibraryCall]]]:
    """The steps of each region and phase, those with kernels of the same names together: they run in this order."""
    plans: dict[tuple, list] = {}
    for step in explanation.steps:
        plans.setdefault((step.region, step.phase), []).append(step)
    alike: dict[tuple, list] = {}
    for (_, phase), steps in plans.items():
        alike.setdefault((phase, *(s.name if isinstance(s, Kernel) else "" for s in steps)), []).append(steps)
    return list(alike.values())


def _steps_in(event, plan: list[Kernel | LibraryCall]) -> list:
    """The steps right below a range, if it is a run of the plan."""
    if event.name.endswith("_backward") != (plan[0].phase == "backward") or event.name.startswith("fw_"):
        return []
    found = [c for c in event.cpu_children if c.name.startswith("fw_") or c.name in _CONTRACTIONS]
    found.sort(key=lambda child: child.time_range.start)
    names = ["" if child.name in _CONTRACTIONS else child.name for child in found]
    return found if names == [step.name if isinstance(step, Kernel) else "" for step in plan] else []


def _of_kernels_on_device(explanation: Explanation, events: list) -> dict[int, list[float]]:
    """A kernel may be launched in parts, which bear its name with an ending; they count together."""
    kernels = [step for step in explanation.steps if isinstance(step, Kernel)]
    samples: dict[int, list[float]] = {}
    for name in {kernel.name for kernel in kernels}:
        same = [kernel for kernel in kernels if kernel.name == name]
        runs: list[float] = []
        for event in events:
            ending = event.name[len(name) :]
            if event.name.startswith(name) and _ENDINGS.fullmatch(ending):
                if ending in ("", "_phase0"):  # the first part
                    runs.append(0.0)
                if runs:
                    runs[-1] += event.time_range.elapsed_us() * 1e-6
        for number, kernel in enumerate(same):
            if found := runs[number :: len(same)]:
                samples[id(kernel)] = found
    return samples
