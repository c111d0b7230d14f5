"""The numbers of the CPU backend: chains alone, the four models, memory, first calls, host time of one call.

    .venv/bin/python bench/cpu_chains.py                 everything; writes bench/results/cpu_chains.{json,md}
    .venv/bin/python bench/cpu_chains.py chains host     some parts, printed only

Everything is a ratio within one run: candidates take turns on fresh inputs, and results are checked after
timing. First calls are taken in processes of their own.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from common import (
    GroupNormSwishMulSwish,
    MulLeakyGelu,
    candidates_of,
    first_call_table,
    forward_of,
    judged,
    memory_table,
    showcase,
    software,
    step_of,
    timings,
)
from torch import nn

import fusewright
from fusewright.benchmark.first_call import first_calls
from fusewright.benchmark.measure import interleaved
from fusewright.benchmark.memory import memory_of
from fusewright.models import load, scale_for_this_machine
from fusewright.units import show_seconds

RESULTS = Path(__file__).resolve().parent / "results"

# ---- the chains --------------------------------------------------------------------------------------------


class LeakyMulClamp(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.multiplier = nn.Parameter(torch.randn(channels, 1, 1))

    def forward(self, x):
        return torch.clamp(F.leaky_relu(x, 0.01) * self.multiplier, -1.0, 1.0)


# name: (model, shape of its input)
CHAINS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LeakyReLU -> x multiplier -> clamp": (lambda: LeakyMulClamp(64), (64, 64, 64, 64)),
    "x multiplier -> LeakyReLU -> GELU": (lambda: MulLeakyGelu(64), (64, 64, 64, 64)),
    "GroupNorm(256) -> Swish -> x weight -> Swish": (
        lambda: GroupNormSwishMulSwish(256, 8192),
        (1024, 8192),
    ),
}
TINY_CHAINS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LeakyReLU -> x multiplier -> clamp": (lambda: LeakyMulClamp(2), (1, 2, 2, 2)),
    "x multiplier -> LeakyReLU -> GELU": (lambda: MulLeakyGelu(2), (1, 2, 2, 2)),
    "GroupNorm -> Swish -> x weight -> Swish": (lambda: GroupNormSwishMulSwish(2, 4), (2, 4)),
}


# ---- timing ------------------------------------------------------------------------------------------------


def time_model(
    model: nn.Module, draw: Callable[[], list[torch.Tensor]], seconds: float, with_compile: bool = True
) -> dict:
    with torch.no_grad():
        output = copy.deepcopy(model)(*draw())

    def fresh() -> list[torch.Tensor]:
        return [t.requires_grad_() for t in draw()] + [torch.randn_like(output)]

    candidates = candidates_of(model, fresh(), with_compile)
    with torch.no_grad():
        forward = interleaved({name: forward_of(c) for name, c in candidates.items()}, fresh, seconds=seconds)
    step = interleaved({name: step_of(c) for name, c in candidates.items()}, fresh, seconds=seconds)

    verdicts = judged(candidates, fresh)
    problems = [verdict.problem for verdict in verdicts if not verdict.ok]
    return {"forward": timings(forward), "step": timings(step), "problems": problems}


def chains(options: argparse.Namespace) -> dict:
    return {
        name: time_model(make(), lambda shape=shape: [torch.randn(shape)], options.seconds)
        for name, (make, shape) in progress("chain", CHAINS)
    }


def host(options: argparse.Namespace) -> dict:
    """Tensors so small that only the way through the host is left; one thread, so that no pool is woken."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {
            name: time_model(make(), lambda shape=shape: [torch.randn(shape)], options.seconds)
            for name, (make, shape) in progress("host time", TINY_CHAINS)
        }
    finally:
        torch.set_num_threads(threads)


def region(options: argparse.Namespace) -> dict:
    """The call of a region alone, as the captured graph makes it, beside the same chain's operators in eager; forward,
    without and with gradients to be recorded. Dynamo's guards, which `host` counts in, are PyTorch's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {
            name: time_region(make(), shape, options.seconds)
            for name, (make, shape) in progress("region call", TINY_CHAINS)
        }
    finally:
        torch.set_num_threads(threads)


def time_region(model: nn.Module, shape: tuple[int, ...], seconds: float) -> dict:
    core = fusewright._core
    found, problems = {}, []
    for phase, grad in (("forward", False), ("recorded", True)):
        with torch.set_grad_enabled(grad):
            calls, run = [], core.run_region
            core.run_region = lambda *call, run=run, calls=calls: (calls.append(call), run(*call))[1]
            try:  # the graph takes the function when it is captured
                expected = fusewright.optimize(copy.deepcopy(model))(torch.randn(shape).requires_grad_(grad))
            finally:
                core.run_region = run
            ((handle, tensors, scalars),) = calls
            if not torch.equal(run(handle, tensors, scalars)[0], expected):
                problems.append(f"{phase}: the region alone gives another result")
            candidates = {
                "eager": model.forward,
                "fusewright": lambda x, run=run, h=handle, t=tensors, s=scalars: run(h, t, s),
            }
            timed = interleaved(candidates, lambda g=grad: [torch.randn(shape).requires_grad_(g)], seconds=seconds)
            found[phase] = timings(timed)
    return {**found, "problems": problems}


def models(options: argparse.Namespace) -> dict:
    results = {}
    for name, path in progress("model", showcase()):
        file = load(path)
        model = file.build(options.scale, seed=0)

        def draw(file=file) -> list[torch.Tensor]:
            return file.inputs(options.scale)

        results[name] = time_model(model, draw, options.seconds)
    return results


# ---- memory and first calls --------------------------------------------------------------------------------


def memory(options: argparse.Namespace) -> dict:
    results = {}
    for name, path in progress("memory", showcase()):
        file = load(path)
        model = file.build(options.scale, seed=0)
        inputs = [t.requires_grad_() for t in file.inputs(options.scale)]
        gradient = torch.randn_like(model(*inputs))
        found = candidates_of(model, [*inputs, gradient], with_compile=True)
        results[name] = {kind: asdict(memory_of(c.model, c.call, inputs, [gradient])) for kind, c in found.items()}
    return results


def first(options: argparse.Namespace) -> dict:
    cpu = torch.device("cpu")
    return {
        name: first_calls(load(path), options.scale, cpu, times=3) for name, path in progress("first call", showcase())
    }


# ---- what is written ---------------------------------------------------------------------------------------

PARTS = {
    "chains": chains, "models": models, "memory": memory, "first": first, "host": host, "region": region
}  # fmt: skip


def progress(what: str, table: dict):
    for name, value in table.items():
        print(f"{what}: {name}", flush=True)
        yield name, value


def machine() -> dict:
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        **software(),
    }


def markdown(results: dict) -> str:
    facts = results["machine"]
    lines = [
        "# CPU numbers",
        "",
        f"`{results['command']}`, {facts['date']}, commit {facts['commit'] or 'none'}: {facts['cpu']}, "
        f"{facts['threads']} threads, load {facts['load']:.1f} at the start, torch {facts['torch']}.",
        "Medians over rounds in which the candidates take turns; ratios are medians over the rounds too.",
    ]
    titles = {
        "chains": "Chains of 16 M floats (GroupNorm: 1024x8192)",
        "models": f"The four models, {results['scale']} sizes",
        "host": "Host time of a whole call, Dynamo's guards included: tensors of a few elements, one thread",
    }
    for part, title in titles.items():
        if part in results:
            lines += ["", f"## {title}", "", *timing_table(results[part])]
    if "region" in results:
        lines += ["", "## Host time of one region call alone, beside the chain in eager: the same tensors", ""]
        lines += ["| | eager | fusewright | vs eager | recorded: eager | fusewright | vs eager |", "|---" * 7 + "|"]
        for name, row in results["region"].items():
            cells = [name]
            for phase in ("forward", "recorded"):
                cells += [show_seconds(row[phase][kind]["median_s"]) for kind in ("eager", "fusewright")]
                cells.append(f"{row[phase]['eager']['fusewright_speedup']:.2f}x")
            lines.append("| " + " | ".join(cells) + " |")
    if "memory" in results:
        lines += memory_table(results["memory"])
    if "first" in results:
        lines += first_call_table(results["first"])
    return "\n".join(lines) + "\n"


def timing_table(rows: dict) -> list[str]:
    names = ("eager", "torch.compile", "fusewright")
    head = [f"{phase} {name}" for phase in ("forward", "step") for name in (*names, "vs eager", "vs torch.compile")]
    lines = ["| | " + " | ".join(head) + " | right |", "|---" * (len(head) + 2) + "|"]
    for label, row in rows.items():
        cells = []
        for phase in ("forward", "step"):
            found = row[phase]
            cells += [show_seconds(found[name]["median_s"]) if name in found else "n/a" for name in names]
            for name in names[:2]:
                cells.append(f"{found[name]['fusewright_speedup']:.2f}x" if name in found else "n/a")
        verdict = "; ".join(row["problems"]) or "yes"
        lines.append(f"| {label} | " + " | ".join(cells) + f" | {verdict} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}; all of them by default")
    parser.add_argument("--scale", choices=("auto", "small", "full"), default="auto", help="sizes of the models")
    parser.add_argument("--seconds", type=float, default=4.0, help="time spent on each timing")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    options.scale = scale_for_this_machine() if options.scale == "auto" else options.scale

    torch.manual_seed(0)
    command = " ".join(["python bench/cpu_chains.py", *sys.argv[1:]])
    results = {"command": command, "scale": options.scale, "machine": machine()}
    for part in options.parts or PARTS:
        results[part] = PARTS[part](options)
    text = markdown(results)
    print(text)
    if not options.parts:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "cpu_chains.json").write_text(json.dumps(results, indent=1) + "\n")
        (RESULTS / "cpu_chains.md").write_text(text)
    rows = [row for part in ("chains", "models", "host", "region") for row in results.get(part, {}).values()]
    return 1 if any(row["problems"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
