"""The numbers of the CPU backend: chains alone, the four models, memory, first calls, host time of one call.

    .venv/bin/python bench/cpu_chains.py                 everything; writes bench/results/cpu_chains.{json,md}
    .venv/bin/python bench/cpu_chains.py chains host     some parts, printed only

Everything is a ratio within one run: candidates take turns on fresh inputs, and results are checked after
timing. Peak memory and first calls are taken in processes of their own.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from common import (
    GroupNormSwishMulSwish,
    MulLeakyGelu,
    candidates_of,
    first_call_table,
    first_calls,
    judged,
    own_process,
    showcase,
    software,
    timings,
)
from torch import nn

import fusewright
from fusewright import tour
from fusewright.measure import interleaved, show_bytes, show_seconds, training_step
from fusewright.models import load, scale_for_this_machine

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
        forwards = {name: lambda *a, m=m: m(*a[:-1]) for name, m in candidates.items()}
        forward = interleaved(forwards, fresh, seconds=seconds)
    steps = {name: training_step(m) for name, m in candidates.items()}
    step = interleaved(steps, fresh, seconds=seconds)

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


# ---- memory and first calls: processes of their own --------------------------------------------------------


def memory(options: argparse.Namespace) -> dict:
    results = {}
    for name, path in progress("peak memory", showcase()):
        results[name] = {
            kind: own_process(
                [sys.executable, __file__, "--peak-memory", kind, str(path), options.scale],
                MALLOC_MMAP_THRESHOLD_="65536",  # freed tensors go back to the system at once
            )["bytes"]
            for kind in ("eager", "fusewright")
        }
    return results


def first(options: argparse.Namespace) -> dict:
    return {
        name: first_calls([sys.executable, __file__, "--first-call", str(path), options.scale], times=3)
        for name, path in progress("first call", showcase())
    }


def peak_memory(kind: str, path: Path, scale: str) -> dict:
    """High water of a training step above what the process held before it."""
    file = load(path)
    model = file.build(scale, seed=0)
    if kind == "fusewright":
        fusewright.optimize(model)
    inputs = [t.requires_grad_() for t in file.inputs(scale)]
    with torch.no_grad():
        gradient = torch.randn_like(model(*inputs))
    step = training_step(model)
    for _ in range(2):  # whatever is made once is made here
        step(*inputs, gradient)
    for tensor in (*inputs, *model.parameters()):
        tensor.grad = None
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = status_bytes("VmRSS")
    for _ in range(3):
        step(*inputs, gradient)
    return {"bytes": status_bytes("VmHWM") - before}


def status_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {key} in /proc/self/status")


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
        lines += ["", "## Peak memory of a training step, above what the process held before it", ""]
        lines += ["| model | eager | fusewright | ratio |", "|---|---|---|---|"]
        for name, row in results["memory"].items():
            ratio = row["fusewright"] / max(row["eager"], 1)
            cells = f"{show_bytes(row['eager'])} | {show_bytes(row['fusewright'])} | {ratio:.2f}"
            lines.append(f"| {name} | {cells} |")
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
    if sys.argv[1:2] == ["--peak-memory"]:
        print(json.dumps(peak_memory(sys.argv[2], Path(sys.argv[3]), sys.argv[4])))
    elif sys.argv[1:2] == ["--first-call"]:
        print(json.dumps(tour.first_call_seconds(Path(sys.argv[2]), sys.argv[3])))
    else:
        sys.exit(main())
