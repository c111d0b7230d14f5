"""The first call of a model, in processes of their own: with empty caches (cold), then with full ones (warm)."""

from __future__ import annotations

import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from ..models import ModelFile, load
from ..stats import stats
from .candidates import MAKERS, OURS
from .measure import synchronize, tensors_in

TIMEOUT = 1800  # seconds


class FirstCallError(RuntimeError):
    """The process did not get through it."""


def first_calls(
    file: ModelFile, scale: str, device: torch.device, candidate: str = OURS, times: int = 1
) -> dict[str, dict]:
    """{"cold": ..., "warm": ...}, each {"seconds", and what stats() counted}: from the plain model to its first
    gradients, torch being imported. With several `times`, the run in the middle: something may disturb one.

    On a GPU also "next_seconds", of the call behind it: the cold process's times the ways to run what was compiled."""
    runs: dict[str, list[dict]] = {"cold": [], "warm": []}
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="fusewright-first-call-") as caches:
            for found in runs.values():
                found.append(_own_process(file, scale, device, candidate, Path(caches)))
    return {kind: _middle(found) for kind, found in runs.items()}


def _middle(runs: list[dict]) -> dict:
    median = statistics.median(run["seconds"] for run in runs)
    return min(runs, key=lambda run: abs(run["seconds"] - median))


def _own_process(file: ModelFile, scale: str, device: torch.device, candidate: str, caches: Path) -> dict:
    environment = {
        "FUSEWRIGHT_CACHE_DIR": str(caches / "fusewright"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
    }
    command = [sys.executable, "-m", "fusewright.benchmark.first_call", *file.loaded_as, scale, str(device), candidate]
    try:
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise FirstCallError(f"not done after {TIMEOUT} s") from None
    if done.returncode != 0:
        raise FirstCallError((done.stderr.strip().splitlines() or ["no output"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def first_call_seconds(file: ModelFile, scale: str, device: torch.device, candidate: str = OURS) -> dict[str, float]:
    """In this process, whatever its caches hold."""
    model = file.build(scale, 0, device)
    inputs = file.inputs(scale, device)

    def step(call) -> None:
        outputs = [x for x in tensors_in(call(*inputs)) if x.requires_grad]
        torch.autograd.backward(outputs, [torch.ones_like(x) for x in outputs])
        synchronize(inputs)

    step(copy.deepcopy(model))  # eager's own first call is not ours to count
    start = time.perf_counter()
    call = MAKERS[candidate](model)
    step(call)
    found = {"seconds": time.perf_counter() - start, **stats()}  # waits for what is compiled in the background
    if device.type == "cuda":  # a cache without choices is not full
        start = time.perf_counter()
        step(call)
        found["next_seconds"] = time.perf_counter() - start
    return found


if __name__ == "__main__":
    *_loaded_as, _scale, _device, _candidate = sys.argv[1:]
    print(json.dumps(first_call_seconds(load(*_loaded_as), _scale, torch.device(_device), _candidate)))
