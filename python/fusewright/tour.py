"""`fusewright run`: takes model files through everything and shows what happened.

Each model file (models.py) is explained, timed beside eager and torch.compile, checked against float64 with every
gradient (benchmark.py), and trained beside an eager twin. The exit status is not zero if anything is wrong.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import fusewright
from fusewright.benchmark import Benchmark, bench
from fusewright.candidates import OURS
from fusewright.console import progress
from fusewright.errors import InputError
from fusewright.explain import Explanation
from fusewright.measure import show_bytes, show_seconds, tensors_in, training_step
from fusewright.models import (
    CPU,
    ModelFile,
    choose_device,
    default_models,
    is_float_tensor,
    load,
    scale_for_this_machine,
)
from fusewright.oracle import Verdict
from fusewright.traffic import Traffic, traffic_of

TRAINING_STEPS = 10
LOSS_TOLERANCE = 1e-4  # relative; rounding differences grow over the steps, a wrong gradient is far outside
BASELINES = ("eager", "torch.compile")


# ---- one model ---------------------------------------------------------------------------------------------


@dataclass
class Report:
    name: str
    eager: Traffic | None = None
    benchmark: Benchmark | None = None
    losses: dict[str, list[float]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def explanation(self) -> Explanation | None:
        return self.benchmark.explanations.get("step") if self.benchmark else None

    @property
    def verdicts(self) -> list[Verdict]:
        return self.benchmark.row(OURS).verdicts["step"]

    def to_dict(self) -> dict:
        """Plain values only."""
        explanation = self.explanation
        return {
            "name": self.name,
            "eager": asdict(self.eager) if self.eager else None,
            "kernels": len(explanation.kernels) if explanation else None,
            "library": len(explanation.library) if explanation else None,
            "kernel_bytes": kernel_bytes(explanation) if explanation else None,
            "benchmark": self.benchmark.to_dict() if self.benchmark else None,
            "losses": self.losses,
            "explanation": str(explanation),
            "problems": self.problems,
        }


def kernel_bytes(explanation: Explanation) -> int:
    return sum(kernel.bytes_read + kernel.bytes_written for kernel in explanation.kernels)


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
    step("run in eager")
    model = file.build(scale, seed, device)
    inputs = file.inputs(scale, device)
    file.output(copy.deepcopy(model), inputs)
    report.eager = _traffic_of_a_step(copy.deepcopy(model), inputs)

    before = fusewright.stats()
    report.benchmark = bench(
        model,
        draw=file.draw(scale, device),
        candidates=(*(BASELINES if with_compile else BASELINES[:1]), OURS),
        seconds=seconds,
        seed=seed,
        file=file,
        scale=scale,
        first_call_of=[OURS],
        progress=step,
    )
    report.problems += report.benchmark.problems
    if fusewright.stats()["fallback_calls"] > before["fallback_calls"]:
        report.problems.append("part of the model fell back to PyTorch")
    if report.explanation:
        report.problems += [f"not fused: {fallback}" for fallback in report.explanation.fallbacks]
    step("train")
    _train(report, file, scale, seed, device)
    return report


def _traffic_of_a_step(model: nn.Module, inputs: list) -> Traffic:
    leaves = [x.detach().requires_grad_() if is_float_tensor(x) else x for x in inputs]
    outputs = [x for x in tensors_in(copy.deepcopy(model)(*leaves)) if x.requires_grad]
    gradients = [torch.ones_like(x) for x in outputs]
    return traffic_of(lambda: training_step(model)(*leaves, gradients))


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


# ---- what the user sees ------------------------------------------------------------------------------------


def results_table(reports: list[Report], scale: str, device: torch.device = CPU) -> Table:
    where = f"{torch.get_num_threads()} threads" if device.type == "cpu" else torch.cuda.get_device_name(device)
    table = Table(title=f"Fusewright: {where}, {scale} sizes, torch {torch.__version__}")
    table.add_column("", style="bold")
    for report in reports:
        table.add_column(report.name.replace("_", " "), justify="right", overflow="fold")

    def row(label: str, cell: Callable[[Report], str], **options) -> None:
        table.add_row(label, *[_safe(cell, report) for report in reports], **options)

    row("operators, eager", lambda r: f"{r.eager.operators} + {r.eager.library} library")
    row("kernels, fused", lambda r: f"{len(r.explanation.kernels)} + {len(r.explanation.library)} library")
    row("bytes outside the library, eager", lambda r: show_bytes(r.eager.bytes))
    row("bytes outside the library, fused", lambda r: show_bytes(kernel_bytes(r.explanation)), end_section=True)
    row("output error (eager's)", lambda r: f"{r.verdicts[0].error:.1e} ({r.verdicts[0].eager_error:.1e})")
    row(
        "gradients and buffers right",
        lambda r: f"{sum(v.ok for v in r.verdicts[1:])} of {len(r.verdicts) - 1}",
    )
    row("worst error / eager's", _worst, end_section=True)
    for title, mode in (("forward", "forward"), ("training step", "step")):
        row(f"{title}, eager", lambda r, m=mode: show_seconds(r.benchmark.timing("eager", m).median))
        row(f"{title}, torch.compile", lambda r, m=mode: _time(r.benchmark, "torch.compile", m))
        ours = f"{title}, fusewright"
        row(ours, lambda r, m=mode: _time(r.benchmark, OURS, m), end_section=True)
    row("peak memory, eager", lambda r: show_bytes(r.benchmark.row("eager").memory.peak))
    row("peak memory, fusewright", lambda r: show_bytes(r.benchmark.row(OURS).memory.peak), end_section=True)
    row(
        "first call, cold / warm",
        lambda r: " / ".join(show_seconds(r.benchmark.row(OURS).first_call[k]) for k in ("cold", "warm")),
    )
    row("loss, eager", lambda r: _losses(r, "eager"))
    row("loss, fusewright", lambda r: _losses(r, "fusewright"))
    row("verdict", lambda r: "[bold red]wrong[/]" if r.problems else "[bold green]right[/]")
    return table


def _safe(cell: Callable[[Report], str], report: Report) -> str:
    try:
        return cell(report)
    except (AttributeError, KeyError, IndexError):  # the tour of this model ended before it was known
        return "-"


def _worst(report: Report) -> str:
    # A gradient that is zero but for rounding has no meaningful relative error.
    told = [verdict for verdict in report.verdicts if verdict.eager_error < 1.0]
    worst = max(told, key=lambda verdict: verdict.ratio)
    return f"{worst.ratio:.2f}x ({worst.name})"


def _time(benchmark: Benchmark, name: str, mode: str) -> str:
    timing = benchmark.timing(name, mode)
    return f"{show_seconds(timing.median)} ({benchmark.faster(name, mode):.2f}x)" if timing else "n/a"


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
    with progress() as step:
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
        print(json.dumps({"scale": scale, "device": str(place), "models": [r.to_dict() for r in reports]}, indent=2))
    else:
        _print_reports(reports, scale, place, explain)
    return 1 if wrong else 0


def _print_reports(reports: list[Report], scale: str, device: torch.device, explain: bool) -> None:
    console = Console()
    for report in reports:
        if report.explanation and explain:
            console.rule(report.name)
            console.print(str(report.explanation), markup=False, highlight=False)
    console.print(results_table(reports, scale, device))
    for report in reports:
        for row in report.benchmark.rows if report.benchmark else []:
            if row.reason:
                console.print(f"{report.name}: {row.name} n/a: {row.reason}", markup=False)
        for problem in report.problems:
            console.print(f"{report.name}: WRONG: {problem}", style="red", markup=False)
    wrong = sum(bool(report.problems) for report in reports)
    console.print(f"{len(reports) - wrong} of {len(reports)} models right", style="red" if wrong else "green")
