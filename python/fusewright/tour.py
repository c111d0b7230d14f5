"""`fusewright run`: takes model files through everything and shows what happened.

A model file holds a plain PyTorch `Model`, `get_init_inputs()` and `get_inputs()`. Each is optimised, checked
against float64 with every gradient, explained, timed beside eager and torch.compile, and trained beside an
eager twin. The exit status is not zero if anything is wrong.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fusewright
from fusewright.measure import Timing, interleaved, show_bytes, show_seconds, speedup, synchronize, training_step
from fusewright.oracle import Verdict, judge_step

CPU = torch.device("cpu")
TRAINING_STEPS = 10
LOSS_TOLERANCE = 1e-4  # relative; rounding differences grow over the steps, a wrong gradient is far outside

# Operators that stay with the library: counted apart, before and after.
LIBRARY_OPERATORS = (
    "convolution",
    "convolution_backward",
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "linear",
    "matmul",
)


# ---- models ------------------------------------------------------------------------------------------------


def default_models() -> list[Path]:
    """The showcase of the source tree that this package, or the current directory, belongs to."""
    for root in (Path(__file__).resolve().parents[2], Path.cwd()):
        found = sorted((root / "examples" / "showcase").glob("*.py"))
        if found:
            return found
    return []


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"showcase_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    for name in ("Model", "get_inputs", "get_init_inputs"):
        if not hasattr(module, name):
            raise ValueError(f"{path}: no `{name}` in it")
    return module


def best_device() -> torch.device:
    """A GPU, where there is one that we have kernels for."""
    return torch.device("cuda" if torch.cuda.is_available() and fusewright._core.cuda_available() else "cpu")


def scale_for_this_machine(device: torch.device = CPU) -> str:
    """The full sizes want about 60 GB for their float64 twin, and a GPU or many cores to end within minutes."""
    if device.type == "cuda":
        return "full" if torch.cuda.get_device_properties(device).total_memory > 70e9 else "small"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return "full" if memory > 96e9 and (os.cpu_count() or 1) >= 16 else "small"


def call_scaled(function: Callable, scale: str, device: torch.device = CPU) -> list:
    """Files of others need not know about scales, or devices."""
    with device:
        made = function(scale) if inspect.signature(function).parameters else function()
    return [value.to(device) if isinstance(value, torch.Tensor) else value for value in made]


def build(module: ModuleType, scale: str, seed: int, device: torch.device = CPU) -> nn.Module:
    torch.manual_seed(seed)
    with device:
        return module.Model(*call_scaled(module.get_init_inputs, scale)).to(device)


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
    path: Path,
    scale: str,
    seed: int,
    seconds: float,
    with_compile: bool,
    progress: Callable[[str], None],
    device: torch.device = CPU,
) -> Report:
    report = Report(path.stem)
    module = load(path)
    model = build(module, scale, seed, device)
    inputs = call_scaled(module.get_inputs, scale, device)
    with torch.no_grad():
        output = copy.deepcopy(model)(*inputs)

    def fresh() -> list[torch.Tensor]:
        drawn = call_scaled(module.get_inputs, scale, device)
        return [t.requires_grad_(t.is_floating_point()) for t in drawn] + [torch.randn_like(output)]

    progress("optimise and check")
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    before = fusewright.stats()
    fused = fusewright.optimize(copy.deepcopy(model))
    report.verdicts = judge_step(fused, eager, exact, inputs, torch.randn_like(output))
    report.problems += [verdict.problem for verdict in report.verdicts if not verdict.ok]
    if fusewright.stats()["fallback_calls"] > before["fallback_calls"]:
        report.problems.append("part of the model fell back to PyTorch")

    progress("explain")
    _explain(report, fused, copy.deepcopy(model), inputs, output)

    candidates = {"eager": eager, "fusewright": fused}
    progress("torch.compile")
    if with_compile:
        compiled = _torch_compile(report, copy.deepcopy(model), fresh())
        if compiled is not None:
            candidates["torch.compile"] = compiled

    progress("time forward")
    with torch.no_grad():
        forwards = {name: _without_gradient_argument(m) for name, m in candidates.items()}
        report.forward = interleaved(forwards, fresh, seconds=seconds)
    progress("time step")
    steps = {name: training_step(m) for name, m in candidates.items()}
    report.step = interleaved(steps, fresh, seconds=seconds)
    # Once more, on inputs that nobody has seen: what was timed is what is right.
    eager = build(module, scale, seed, device)
    eager.load_state_dict(fused.state_dict())
    exact = copy.deepcopy(eager).double()
    *inputs, gradient = fresh()
    after = judge_step(fused, eager, exact, inputs, gradient)
    report.problems += [f"after timing, {verdict.problem}" for verdict in after if not verdict.ok]

    progress("train")
    _train(report, module, scale, seed, device)

    progress("first call")
    _first_call(report, path, scale, device)
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

    with _CountOperators() as count:
        leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in inputs]
        training_step(eager)(*leaves, torch.ones_like(output))
    report.eager_operators, report.eager_library, report.eager_bytes = (
        count.operators,
        count.library,
        count.bytes,
    )


class _CountOperators(TorchDispatchMode):
    """Counts what eager runs: operators that touch memory, and the bytes they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = self.library = self.bytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        name = function._schema.name.split("::")[1]
        returns = function._schema.returns
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        if is_view or name in ("detach", "empty", "empty_like", "empty_strided"):
            return result
        if name in LIBRARY_OPERATORS:
            self.library += 1
        else:
            self.operators += 1
            self.bytes += _tensor_bytes([*arguments, result])
        return result


def _tensor_bytes(values: object) -> int:
    if isinstance(values, torch.Tensor):
        return values.numel() * values.element_size()
    if isinstance(values, (list, tuple)):
        return sum(_tensor_bytes(value) for value in values)
    return 0


def _train(report: Report, module: ModuleType, scale: str, seed: int, device: torch.device) -> None:
    """The same seed, data and optimizer, with and without us."""
    torch.manual_seed(seed + 1)
    batches = [call_scaled(module.get_inputs, scale, device) for _ in range(TRAINING_STEPS)]
    for name in ("eager", "fusewright"):
        model = build(module, scale, seed, device)
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
    module = load(path)
    model = build(module, scale, 0, device)
    inputs = call_scaled(module.get_inputs, scale, device)
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
) -> int:
    console = Console()
    paths = paths or default_models()
    if not paths:
        console.print("no models given, and no examples/showcase here: fusewright run FILE...")
        return 2
    place = best_device() if device == "auto" else torch.device(device)
    scale = scale_for_this_machine(place) if scale == "auto" else scale

    reports = []
    text = TextColumn("{task.description}")
    columns = (SpinnerColumn(), text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(paths) * len(STAGES))
        for index, path in enumerate(paths):

            def stage(name: str, index: int = index, path: Path = path) -> None:
                done = index * len(STAGES) + STAGES.index(name)
                progress.update(task, description=f"{path.stem}: {name}", completed=done)
                if not console.is_terminal:
                    console.print(f"{path.stem}: {name}")

            try:
                reports.append(tour(path, scale, seed, seconds, with_compile, stage, place))
            except Exception as error:
                console.print_exception()
                reports.append(Report(path.stem, problems=[f"{type(error).__name__}: {error}"]))
        progress.update(task, completed=len(paths) * len(STAGES))

    for report in reports:
        if report.explanation and explain:
            console.rule(report.name)
            console.print(report.explanation, markup=False, highlight=False)
    console.print(results_table(reports, scale, place))
    for report in reports:
        for note in report.notes:
            console.print(f"{report.name}: {note}", markup=False)
        for problem in report.problems:
            console.print(f"{report.name}: WRONG: {problem}", style="red", markup=False)
    wrong = sum(bool(report.problems) for report in reports)
    console.print(f"{len(reports) - wrong} of {len(reports)} models right", style="red" if wrong else "green")
    return 1 if wrong else 0


if __name__ == "__main__":
    print(json.dumps(first_call_seconds(Path(sys.argv[1]), sys.argv[2], torch.device(sys.argv[3]))))
