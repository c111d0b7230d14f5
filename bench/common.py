"""What the benchmarks of both backends share: chains, candidates, the check after timing, first calls."""

from __future__ import annotations

import copy
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import fusewright
from fusewright import models
from fusewright.measure import Timing, show_seconds, speedup, training_step
from fusewright.oracle import Verdict, judge_step


class MulLeakyGelu(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.multiplier = nn.Parameter(torch.randn(channels, 1, 1))

    def forward(self, x):
        return F.gelu(F.leaky_relu(x * self.multiplier, 0.01))


class GroupNormSwishMulSwish(nn.Module):
    def __init__(self, groups: int, channels: int):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        self.multiplier = nn.Parameter(torch.randn(channels))

    def forward(self, x):
        return F.silu(F.silu(self.norm(x)) * self.multiplier)


def candidates_of(model: nn.Module, arguments: list[torch.Tensor], with_compile: bool) -> dict[str, nn.Module]:
    found = {"eager": copy.deepcopy(model), "fusewright": fusewright.optimize(copy.deepcopy(model))}
    for _ in range(2):  # on a GPU the tuner chooses when all kernels are there, which stats() waits for
        training_step(found["fusewright"])(*arguments)
        with torch.no_grad():
            found["fusewright"](*arguments[:-1])
        fusewright.stats()
    if with_compile:
        try:
            torch._dynamo.reset()  # each row starts with nothing known of sizes that change
            compiled = torch.compile(copy.deepcopy(model))
            training_step(compiled)(*arguments)
            with torch.no_grad():
                compiled(*arguments[:-1])
            found["torch.compile"] = compiled
        except Exception as error:  # a missing compiler, for one
            print(f"  torch.compile n/a: {type(error).__name__}: {str(error)[:200]}", flush=True)
    return found


def judged(candidates: dict[str, nn.Module], fresh: Callable[[], list[torch.Tensor]]) -> list[Verdict]:
    """What was timed must be right, on inputs nobody has seen."""
    fused, eager = candidates["fusewright"], candidates["eager"]
    eager.load_state_dict(fused.state_dict())
    *inputs, gradient = fresh()
    return judge_step(fused, eager, copy.deepcopy(eager).double(), inputs, gradient)


def timings(found: dict[str, Timing]) -> dict[str, dict]:
    return {
        name: {
            "median_s": timing.median,
            "quartiles_s": timing.quartiles,
            "rounds": len(timing.samples),
            "fusewright_speedup": speedup(timing, found["fusewright"]),
        }
        for name, timing in found.items()
    }


def showcase() -> dict[str, Path]:
    return {path.stem: path for path in models.default_models()}


def software() -> dict[str, str]:
    """What the numbers were made with."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()


# ---- first calls: processes of their own -------------------------------------------------------------------


def first_calls(command: list[str], times: int) -> dict[str, dict]:
    """An empty cache, then a full one, each `times` times: a process that something else disturbed is no median."""
    runs: dict[str, list[dict]] = {"cold": [], "warm": []}
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="fusewright-bench-") as cache:
            for found in runs.values():
                found.append(own_process(command, FUSEWRIGHT_CACHE_DIR=cache))
    return {kind: min(found, key=lambda run: _from_median(run, found)) for kind, found in runs.items()}


def _from_median(run: dict, runs: list[dict]) -> float:
    return abs(run["seconds"] - statistics.median(r["seconds"] for r in runs))


def own_process(command: list[str], **environment: str) -> dict:
    done = subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def first_call_table(rows: dict[str, dict]) -> list[str]:
    lines = ["", "## First optimised call, forward and backward", ""]
    lines += ["| model | cold | warm | kernels compiled, cold / warm |", "|---|---|---|---|"]
    for name, row in rows.items():
        cells = " | ".join(show_seconds(row[kind]["seconds"]) for kind in ("cold", "warm"))
        compiled = " / ".join(str(row[kind]["kernels_compiled"]) for kind in ("cold", "warm"))
        lines.append(f"| {name} | {cells} | {compiled} |")
    return lines
