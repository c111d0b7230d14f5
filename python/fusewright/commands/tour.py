"""`fusewright run`: takes model files through everything and shows what happened.

Each model file (models.py) is explained, timed beside eager and torch.compile, checked against float64 with every
gradient (benchmark.py), and trained beside an eager twin. The exit status is not zero if anything is wrong.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.table import Table
from torch import nn

import fusewright
from fusewright.benchmark.benchmark import Benchmark
from fusewright.benchmark.candidates import OURS
from fusewright.console import Console, output_file, progress
from fusewright.errors import InputError
from fusewright.explain import kernel_bytes
from fusewright.judge.oracle import Verdict
from fusewright.models import CPU, ModelFile, choose_device, default_models, load, scale_for_this_machine
from fusewright.pages.html.page import page
from fusewright.pages.study import CANDIDATES, Study, study
from fusewright.units import show_bytes, show_seconds

TRAINING_STEPS = 10
LOSS_TOLERANCE = 1e-4  # relative; rounding differences grow over the steps, a wrong gradient is far outside


# ---- one model ---------------------------------------------------------------------------------------------


@dataclass
class Report:
    name: str
    study: Study | None = None
    losses: dict[str, list[float]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def to_dict(self) -> dict:
        """Plain values only."""
        explanation = self.study.explanation if self.study else None
        return {
            "name": self.name,
            "kernels": len(explanation.kernels) if explanation else None,
            "library": len(explanation.library) if explanation else None,
            "kernel_bytes": kernel_bytes(explanation) if explanation else None,
            "explanation": str(explanation),
            **(self.study.to_dict() if self.study else {}),
            "losses": self.losses,
            "problems": self.problems,
        }


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
    draw = file.draw(scale, device)
    file.output(copy.deepcopy(model), draw(seed))
    before = fusewright.stats()
    report.study = study(
        model,
        draw,
        file=file,
        scale=scale,
        candidates=[name for name in CANDIDATES if name != "torch.compile" or with_compile],
        seconds=seconds,
        seed=seed,
        progress=step,
    )
    report.problems += report.study.problems
    if fusewright.stats()["fallback_calls"] > before["fallback_calls"]:
        report.problems.append("part of the model fell back to PyTorch")
    report.problems += [f"not fused: {fallback}" for fallback in report.study.explanation.fallbacks]
    step("train")
    _train(report, file, scale, seed, device)
    return report


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

    def row(label: str, cell: Callable[[Study], str], **options) -> None:
        whole_row(label, lambda report: cell(report.study), **options)

    def whole_row(label: str, cell: Callable[[Report], str], **options) -> None:
        table.add_row(label, *[_safe(cell, report) for report in reports], **options)

    row("operators, eager", lambda s: f"{s.eager.operators} + {s.eager.library} library")
    row("operators, fused", lambda s: f"{s.fused.operators} + {s.fused.library} library")
    row("bytes outside the library, eager", lambda s: show_bytes(s.eager.bytes))
    row("bytes outside the library, fused", lambda s: show_bytes(s.fused.bytes), end_section=True)
    row("output error (eager's)", lambda s: f"{_verdicts(s)[0].error:.1e} ({_verdicts(s)[0].eager_error:.1e})")
    row("gradients and buffers right", lambda s: f"{sum(v.ok for v in _verdicts(s)[1:])} of {len(_verdicts(s)) - 1}")
    row("worst error / eager's", _worst)
    row("certificate", lambda s: f"{sum(c.ok for c in s.certificate.cases)} of {len(s.certificate.cases)} cases")
    table.add_section()
    for title, mode in (("forward", "forward"), ("training step", "step")):
        row(f"{title}, eager", lambda s, m=mode: show_seconds(s.benchmark.timing("eager", m).median))
        row(f"{title}, torch.compile", lambda s, m=mode: _time(s.benchmark, "torch.compile", m))
        row(f"{title}, fusewright", lambda s, m=mode: _time(s.benchmark, OURS, m), end_section=True)
    row("peak memory, eager", lambda s: show_bytes(s.benchmark.row("eager").memory.peak))
    row("peak memory, fusewright", lambda s: show_bytes(s.benchmark.row(OURS).memory.peak), end_section=True)
    row(
        "first call, cold / warm",
        lambda s: " / ".join(show_seconds(s.benchmark.row(OURS).first_call[k]) for k in ("cold", "warm")),
    )
    for name in ("eager", OURS):
        whole_row(f"loss, {name}", lambda r, n=name: _losses(r, n))
    whole_row("verdict", lambda r: "[bold red]wrong[/]" if r.problems else "[bold green]right[/]")
    return table


def _safe(cell: Callable[[Report], str], report: Report) -> str:
    try:
        return cell(report)
    except (AttributeError, KeyError, IndexError):  # the tour of this model ended before it was known
        return "-"


def _verdicts(study: Study) -> list[Verdict]:
    return study.benchmark.row(OURS).verdicts[study.mode]


def _worst(study: Study) -> str:
    # A gradient that is zero but for rounding has no meaningful relative error.
    told = [verdict for verdict in _verdicts(study) if verdict.eager_error < 1.0]
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
    output: Path | None = None,
) -> int:
    paths = paths or default_models()
    if not paths:
        raise InputError("no models given, and no examples/showcase here: fusewright run FILE...")
    place = choose_device(device)
    files = [load(path) for path in paths]  # all of them, before the long work on the first
    scale = scale_for_this_machine(place) if scale == "auto" else scale

    with output_file(output) as written:
        with progress() as step:
            reports = [_toured(file, scale, seed, seconds, with_compile, step, place) for file in files]
        studies = [report.study for report in reports if report.study]
        if written and not studies:
            raise InputError(f"nothing to write to {output}: no model got through")
        if written:
            written.write(page(studies, "Fusewright showcase" if paths == default_models() else "Fusewright"))
    if as_json:
        print(json.dumps({"scale": scale, "device": str(place), "models": [r.to_dict() for r in reports]}, indent=2))
    else:
        _print_reports(reports, scale, place, explain)
        if output:
            print(f"the report is in {output}")
    return 1 if any(report.problems for report in reports) else 0


def _toured(file: ModelFile, scale, seed, seconds, with_compile, step, device) -> Report:
    try:
        stage = lambda name: step(f"{file.name}: {name}")
        return tour(file, scale, seed, seconds, with_compile, stage, device)
    except InputError:
        raise
    except Exception as error:
        Console(stderr=True).print_exception()
        return Report(file.name, problems=[f"{type(error).__name__}: {error}"])


def _print_reports(reports: list[Report], scale: str, device: torch.device, explain: bool) -> None:
    console = Console()
    for report in reports:
        if report.study and explain:
            console.rule(report.name)
            console.print(str(report.study.explanation), markup=False, highlight=False)
    console.print(results_table(reports, scale, device))
    for report in reports:
        for row in report.study.benchmark.rows if report.study else []:
            if row.reason:
                console.print(f"{report.name}: {row.name} n/a: {row.reason}", markup=False)
        for problem in report.problems:
            console.print(f"{report.name}: WRONG: {problem}", style="red", markup=False)
    wrong = sum(bool(report.problems) for report in reports)
    console.print(f"{len(reports) - wrong} of {len(reports)} models right", style="red" if wrong else "green")
