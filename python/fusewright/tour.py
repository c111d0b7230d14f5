"""`fusewright run`: takes model files through everything and shows what happened.

Each model file (models.py) is optimised, checked against float64 with every gradient, explained, timed beside eager
and torch.compile, and trained beside an eager twin. The exit status is not zero if anything is wrong.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import fusewright
from fusewright.console import progress
from fusewright.counting import CountOperators
from fusewright.errors import InputError
from fusewright.measure import Timing, interleaved, show_bytes, show_seconds, speedup, synchronize, training_step
from fusewright.models import CPU, ModelFile, choose_device, default_models, load, scale_for_this_machine
from fusewright.oracle import Verdict, judge_step

TRAINING_STEPS = 10
LOSS_TOLERANCE = 1e-4  # relative; rounding differences grow over the steps, a wrong gradient is far outside

# Operators that stay with the library: counted apart, before and after.
# ---- one model ---------------------------------------------------------------------------------------------


@dataclass
class Report:
    name: str
    verdicts: list[Verdict] = field(default_factory=list)
    eager_operators: int = 0
    eager_library: int = 0
    eager_bytes: int = 0  # outside the library's operators
    kernels: int = 0
    library: int = 0
    kernel_bytes: int = 0
    forward: dict[str, Timing] = field(default_factory=dict)
    step: dict[str, Timing] = field(default_factory=dict)
    losses: dict[str, list[float]] = field(default_factory=dict)
    first_call: dict[str, float] = field(default_factory=dict)  # "cold" and "warm" seconds
    explanation: str = ""
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


STAGES = (
    "optimise and check",
    "explain",
    "torch.compile",
    "time forward",
    "time step",
    "train",
    "first call",
)


def tour(
    file: ModelFile,
    scale: str,
    seed: int,
    seconds: float,
    with_compile: bool,
    step: Callable[[str], None],
    device: torch.device = CPU,
) -> Report:
    report = Report(file.name)
    model = file.build(scale, seed, device)
    inputs = file.inputs(scale, device)
    output = file.output(copy.deepcopy(model), inputs)

    def fresh() -> list[torch.Tensor]:
        drawn = file.inputs(scale, device)
        return [t.requires_grad_(t.is_floating_point()) for t in drawn] + [torch.randn_like(output)]

    step("optimise and check")
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    before = fusewright.stats()
    fused = fusewright.optimize(copy.deepcopy(model))
    report.verdicts = judge_step(fused, eager, exact, inputs, torch.randn_like(output))
    report.problems += [verdict.problem for verdict in report.verdicts if not verdict.ok]
    if fusewright.stats()["fallback_calls"] > before["fallback_calls"]:
        report.problems.append("part of the model fell back to PyTorch")

    step("explain")
    _explain(report, fused, copy.deepcopy(model), inputs, output)

    candidates = {"eager": eager, "fusewright": fused}
    step("torch.compile")
    if with_compile:
        compiled = _torch_compile(report, copy.deepcopy(model), fresh())
        if compiled is not None:
            candidates["torch.compile"] = compiled

    step("time forward")
    with torch.no_grad():
        forwards = {name: _without_gradient_argument(m) for name, m in candidates.items()}
        report.forward = interleaved(forwards, fresh, seconds=seconds)
    step("time step")
    steps = {name: training_step(m) for name, m in candidates.items()}
    report.step = interleaved(steps, fresh, seconds=seconds)
    # Once more, on inputs that nobody has seen: what was timed is what is right.
    eager = file.build(scale, seed, device)
    eager.load_state_dict(fused.state_dict())
    exact = copy.deepcopy(eager).double()
    *inputs, gradient = fresh()
    after = judge_step(fused, eager, exact, inputs, gradient)
    report.problems += [f"after timing, {verdict.problem}" for verdict in after if not verdict.ok]

    step("train")
    _train(report, file, scale, seed, device)

    step("first call")
    _first_call(report, file.path, scale, device)
    return report


def _without_gradient_argument(model: nn.Module) -> Callable[..., object]:
    return lambda *arguments: model(*arguments[:-1])


def _torch_compile(report: Report, model: nn.Module, arguments: list[torch.Tensor]) -> nn.Module | None:
    try:
        compiled = torch.compile(model)
        training_step(compiled)(*arguments)
        with torch.no_grad():
            compiled(*arguments[:-1])
    except Exception as error:  # whatever keeps it from working here, a missing compiler for one
        reason = next(iter(str(error).strip().splitlines()), "")
        report.notes.append(f"torch.compile n/a: {type(error).__name__}: {reason}"[:200])
        return None
    return compiled


def _explain(
    report: Report, fused: nn.Module, eager: nn.Module, inputs: list[torch.Tensor], output: torch.Tensor
) -> None:
    explanation = fusewright.explain(fused, *inputs)
    report.explanation = str(explanation)
    report.kernels = len(explanation.kernels)
    report.library = len(explanation.library)
    report.kernel_bytes = sum(kernel.bytes_read + kernel.bytes_written for kernel in explanation.kernels)
    report.problems += [f"not fused: {fallback}" for fallback in explanation.fallbacks]

    with CountOperators() as count:
        leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in inputs]
        training_step(eager)(*leaves, torch.ones_like(output))
    report.eager_operators, report.eager_library, report.eager_bytes = (
        count.operators,
        count.library,
        count.bytes,
    )


def _train(report: Report, file: ModelFile, scale: str, seed: int, device: torch.device) -> None:
    """The same seed, data and optimizer, with and without us."""
    torch.manual_seed(seed + 1)
    batches = [file.inputs(scale, device) for _ in range(TRAINING_STEPS)]
    for name in ("eager", "fusewright"):
        model = file.build(scale, seed, device)
        if name == "fusewright":
            model = fusewright.optimize(model)
        has_norm = any(isinstance(m, (nn.BatchNorm1d, nn.GroupNorm)) for m in model.modules())
        make = torch.optim.Adam if has_norm else torch.optim.SGD
        optimizer = make(model.parameters(), lr=1e-3 if has_norm else 1e-2)
        losses = []
        for inputs in batches:
            optimizer.zero_grad()
            loss = (model(*inputs) - 1).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        report.losses[name] = losses
    pairs = zip(report.losses["fusewright"], report.losses["eager"], strict=True)
    for number, (ours, eagers) in enumerate(pairs):
        if not abs(ours - eagers) <= LOSS_TOLERANCE * abs(eagers):  # written so that NaN is a problem too
            report.problems.append(f"training step {number}: loss {ours:.7g}, eager's is {eagers:.7g}")
            break


# ---- the first call, in a process of its own ---------------------------------------------------------------


def _first_call(report: Report, path: Path, scale: str, device: torch.device) -> None:
    with tempfile.TemporaryDirectory(prefix="fusewright-first-call-") as cache:
        environment = {**os.environ, "FUSEWRIGHT_CACHE_DIR": cache}
        for name in ("cold", "warm"):
            command = [sys.executable, "-m", "fusewright.tour", str(path), scale, device.type]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
            if done.returncode != 0:
                last = (done.stderr.strip().splitlines() or ["no output"])[-1]
                report.problems.append(f"first call, {name}: {last}")
                return
            report.first_call[name] = json.loads(done.stdout.splitlines()[-1])["seconds"]


def first_call_seconds(path: Path, scale: str, device: torch.device = CPU) -> dict[str, float]:
    """Seconds from an unoptimised model to its first gradients, torch and fusewright being imported."""
    file = load(path)
    model = file.build(scale, 0, device)
    inputs = file.inputs(scale, device)
    copy.deepcopy(model)(*inputs).sum().backward()  # eager's own first call is not ours to count
    synchronize(inputs)
    start = time.perf_counter()
    fusewright.optimize(model)(*inputs).sum().backward()
    synchronize(inputs)
    return {"seconds": time.perf_counter() - start, **fusewright.stats()}


# ---- what the user sees ------------------------------------------------------------------------------------


def results_table(reports: list[Report], scale: str, device: torch.device = CPU) -> Table:
    where = f"{torch.get_num_threads()} threads" if device.type == "cpu" else torch.cuda.get_device_name(device)
    table = Table(title=f"Fusewright: {where}, {scale} sizes, torch {torch.__version__}")
    table.add_column("", style="bold")
    for report in reports:
        table.add_column(report.name.replace("_", " "), justify="right", overflow="fold")

    def row(label: str, cell: Callable[[Report], str], **options) -> None:
        table.add_row(label, *[_safe(cell, report) for report in reports], **options)

    row("operators, eager", lambda r: f"{r.eager_operators} + {r.eager_library} library")
    row("kernels, fused", lambda r: f"{r.kernels} + {r.library} library")
    row("bytes outside the library, eager", lambda r: show_bytes(r.eager_bytes))
    row("bytes outside the library, fused", lambda r: show_bytes(r.kernel_bytes), end_section=True)
    row("output error (eager's)", lambda r: f"{r.verdicts[0].error:.1e} ({r.verdicts[0].eager_error:.1e})")
    row(
        "gradients and buffers right",
        lambda r: f"{sum(v.ok for v in r.verdicts[1:])} of {len(r.verdicts) - 1}",
    )
    row("worst error / eager's", _worst, end_section=True)
    for title, field_name in (("forward", "forward"), ("training step", "step")):
        row(f"{title}, eager", lambda r, f=field_name: show_seconds(getattr(r, f)["eager"].median))
        row(f"{title}, torch.compile", lambda r, f=field_name: _time(getattr(r, f), "torch.compile"))
        ours = f"{title}, fusewright"
        row(ours, lambda r, f=field_name: _time(getattr(r, f), "fusewright"), end_section=True)
    row(
        "first call, cold / warm",
        lambda r: " / ".join(show_seconds(r.first_call[k]) for k in ("cold", "warm")),
    )
    row("loss, eager", lambda r: _losses(r, "eager"))
    row("loss, fusewright", lambda r: _losses(r, "fusewright"))
    row("verdict", lambda r: "[bold red]wrong[/]" if r.problems else "[bold green]right[/]")
    return table


def _safe(cell: Callable[[Report], str], report: Report) -> str:
    try:
        return cell(report)
    except (KeyError, IndexError):  # the tour of this model ended before it was known
        return "-"


def _worst(report: Report) -> str:
    # A gradient that is zero but for rounding has no meaningful relative error.
    told = [verdict for verdict in report.verdicts if verdict.eager_error < 1.0]
    worst = max(told, key=lambda verdict: verdict.ratio)
    return f"{worst.ratio:.2f}x ({worst.name})"


def _time(timings: dict[str, Timing], name: str) -> str:
    if name not in timings and "eager" in timings:
        return "n/a"
    return f"{show_seconds(timings[name].median)} ({speedup(timings['eager'], timings[name]):.2f}x)"


def _losses(report: Report, name: str) -> str:
    losses = report.losses[name]
    return f"{losses[0]:.6f} -> {losses[-1]:.6f}"


def main(
    paths: list[Path],
    *,
    scale: str = "auto",
    device: str = "auto",
    seed: int = 0,
    seconds: float = 2.0,
    with_compile: bool = True,
    explain: bool = True,
    as_json: bool = False,
) -> int:
    paths = paths or default_models()
    if not paths:
        raise InputError("no models given, and no examples/showcase here: fusewright run FILE...")
    place = choose_device(device)
    files = [load(path) for path in paths]  # all of them, before the long work on the first
    scale = scale_for_this_machine(place) if scale == "auto" else scale

    reports = []
    with progress(len(files) * len(STAGES)) as step:
        for file in files:
            try:
                stage = lambda name, file=file: step(f"{file.name}: {name}")
                reports.append(tour(file, scale, seed, seconds, with_compile, stage, place))
            except InputError:
                raise
            except Exception as error:
                Console(stderr=True).print_exception()
                reports.append(Report(file.name, problems=[f"{type(error).__name__}: {error}"]))

    wrong = sum(bool(report.problems) for report in reports)
    if as_json:
        print(json.dumps({"scale": scale, "device": str(place), "models": [asdict(r) for r in reports]}, indent=2))
    else:
        _print_reports(reports, scale, place, explain)
    return 1 if wrong else 0


def _print_reports(reports: list[Report], scale: str, device: torch.device, explain: bool) -> None:
    console = Console()
    for report in reports:
        if report.explanation and explain:
            console.rule(report.name)
            console.print(report.explanation, markup=False, highlight=False)
    console.print(results_table(reports, scale, device))
    for report in reports:
        for note in report.notes:
            console.print(f"{report.name}: {note}", markup=False)
        for problem in report.problems:
            console.print(f"{report.name}: WRONG: {problem}", style="red", markup=False)
    wrong = sum(bool(report.problems) for report in reports)
    console.print(f"{len(reports) - wrong} of {len(reports)} models right", style="red" if wrong else "green")


if __name__ == "__main__":
    print(json.dumps(first_call_seconds(Path(sys.argv[1]), sys.argv[2], torch.device(sys.argv[3]))))
