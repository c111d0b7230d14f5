"""Code that the benchmarks of both backends share: chains, candidates, the check after timing, tables."""

from __future__ import annotations

import copy
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from fusewright import models
from fusewright.benchmark.candidates import OURS, Candidate, prepared
from fusewright.benchmark.measure import Timing, speedup, training_step
from fusewright.judge.oracle import Verdict, judge_twin
from fusewright.units import show_bytes, show_seconds


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


def candidates_of(model: nn.Module, arguments: list[torch.Tensor], with_compile: bool) -> dict[str, Candidate]:
    torch._dynamo.reset()  # each row starts with nothing known of sizes that change

    def run(candidate: Candidate) -> None:
        training_step(candidate.model, candidate.call)(*arguments)
        with torch.no_grad():
            candidate.call(*arguments[:-1])

    found = {}
    for name in ("eager", OURS, *(["torch.compile"] if with_compile else [])):
        try:
            found[name] = prepared(name, copy.deepcopy(model), run)
        except Exception as error:  # a missing compiler, for one
            if name != "torch.compile":
                raise
            print(f"  {name} n/a: {type(error).__name__}: {str(error)[:200]}", flush=True)
    return found


def forward_of(candidate: Candidate) -> Callable[..., object]:
    return lambda *arguments: candidate.call(*arguments[:-1])


def step_of(candidate: Candidate) -> Callable[..., object]:
    return training_step(candidate.model, candidate.call)


def judged(candidates: dict[str, Candidate], fresh: Callable[[], list[torch.Tensor]]) -> list[Verdict]:
    """Judges the timed candidates on inputs that they have not seen."""
    *inputs, _ = fresh()
    return judge_twin(candidates[OURS].model, candidates["eager"].model, inputs)


def timings(found: dict[str, Timing]) -> dict[str, dict]:
    return {
        name: {
            "median_s": timing.median,
            "quartiles_s": timing.quartiles,
            "rounds": len(timing.samples),
            "fusewright_speedup": speedup(timing, found[OURS]),
        }
        for name, timing in found.items()
    }


def showcase() -> dict[str, Path]:
    return {path.stem: path for path in models.default_models()}


def software() -> dict[str, str]:
    """Returns the versions that the numbers were made with."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()


def first_call_table(rows: dict[str, dict]) -> list[str]:
    lines = ["", "## First optimised call, forward and backward", ""]
    columns = {
        "cold": ("cold", "seconds"),
        "the next call, which times": ("cold", "next_seconds"),
        "warm": ("warm", "seconds"),
    }
    shown = {title: at for title, at in columns.items() if any(at[1] in row[at[0]] for row in rows.values())}
    lines += [f"| model | {' | '.join(shown)} | kernels compiled, cold / warm |", "|---" * (len(shown) + 2) + "|"]
    for name, row in rows.items():
        cells = [show_seconds(row[kind][key]) if key in row[kind] else "n/a" for kind, key in shown.values()]
        compiled = " / ".join(str(row[kind]["kernels_compiled"]) for kind in ("cold", "warm"))
        lines.append(f"| {name} | {' | '.join(cells)} | {compiled} |")
    return lines


def memory_table(rows: dict[str, dict]) -> list[str]:
    kinds = ("fusewright", "eager", "torch.compile")
    lines = ["", "## Memory: held for the backward, the result apart / peak of a step", ""]
    lines += ["| what | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    for name, row in rows.items():
        shown = [f"{show_bytes(row[k]['held'])} / {show_bytes(row[k]['peak'])}" if k in row else "n/a" for k in kinds]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return lines
