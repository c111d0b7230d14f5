"""bench: how fast is this model? A benchmark that cannot flatter itself.

Eager, torch.compile (default and max-autotune) and ours take turns in one process, under the same flags, on inputs
drawn afresh (`measure.py`). What was timed is judged afterwards against float64, and set against a floor that is
measured in the same rounds (`floor.py`).
"""

from __future__ import annotations

import copy
import csv
import datetime
import functools
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils import _pytree as pytree

from ..errors import InputError
from ..explain import Explanation, LibraryCall, Saving, explain, table
from ..judge.oracle import Unjudgeable, Verdict, is_random, judge_twin, results_of
from ..models import ModelFile, is_float_tensor
from ..subject import device_words, first_line, flags, name_of, plain_copy, resampled, versions
from ..units import show_bytes, show_seconds
from .candidates import MAKERS, OURS, Candidate, prepared
from .first_call import FirstCallError, first_calls
from .floor import MOVED_BY_COPY, Floor, bytes_from_memory, copy_of, least_bytes
from .measure import (
    Timing,
    host_seconds,
    interleaved,
    speedup,
    synchronize,
    tensors_in,
    training_step,
)
from .memory import Memory, memory_of
from .profiling import step_timings

MODES = {"forward": "forward, no gradients", "step": "training step: forward and backward"}
ERROR = "ERROR OF THE BENCHMARK: "
COPY = "copy"  # of the bytes that must be moved, timed among the candidates


@dataclass
class Row:
    """What was found out about one candidate; dictionaries are by mode."""

    name: str
    reason: str = ""  # why it could not be run
    timings: dict[str, Timing] = field(default_factory=dict)
    host: dict[str, float] = field(default_factory=dict)  # seconds until a call returns; on a GPU
    memory: Memory | None = None
    first_call: dict[str, float] = field(default_factory=dict)  # seconds, "cold" and "warm"
    verdicts: dict[str, list[Verdict]] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        return [f"{mode}, {v.problem}" for mode, verdicts in self.verdicts.items() for v in verdicts if not v.ok]


@dataclass
class Benchmark:
    """What `bench` found. `str()` of it is a readable page."""

    subject: str
    device: str
    versions: dict[str, str | None]
    flags: dict[str, object]
    created: str
    seconds: float  # spent on each mode
    rows: list[Row] = field(default_factory=list)
    floors: dict[str, Floor] = field(default_factory=dict)
    steps: dict[str, list[Timing | None]] = field(default_factory=dict)  # of each of the explanation's, by mode
    rewrites: dict[str, list[Saving]] = field(default_factory=dict)  # by mode
    explanations: dict[str, Explanation] = field(default_factory=dict, repr=False)
    problems: list[str] = field(default_factory=list)  # wrong results of ours
    doubts: list[str] = field(default_factory=list)  # errors of the benchmark itself
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether what was timed is right."""
        return not self.problems

    @property
    def verdict(self) -> str:
        return "right, checked after timing" if self.ok else "WRONG, checked after timing"

    @property
    def modes(self) -> list[str]:
        return [mode for mode in MODES if any(mode in row.timings for row in self.rows)]

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    def timing(self, name: str, mode: str) -> Timing | None:
        row = self.row(name)
        return row.timings.get(mode) if row else None

    def faster(self, name: str, mode: str, than: str = "eager") -> float | None:
        """How many times faster than another candidate."""
        ours, other = self.timing(name, mode), self.timing(than, mode)
        return speedup(other, ours) if ours and other else None

    def of_floor(self, name: str, mode: str) -> float | None:
        """How much of the candidate's time the hardware's floor is."""
        timing = self.timing(name, mode)
        return self.floors[mode].seconds / timing.median if timing and mode in self.floors else None

    # ---- what is shown ----

    def tables(self) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
        """(title, header, rows), as text."""
        found = []
        for mode in self.modes:
            header = ("", "median", "quartiles", "vs eager", "of floor", "host", "error (eager's)", "right")
            rows = [self._cells(row, mode) for row in self.rows]
            drop = {5} if not any(row.host for row in self.rows) else set()
            cells = [tuple(c for i, c in enumerate(line) if i not in drop) for line in (header, *rows)]
            found.append((MODES[mode], cells[0], cells[1:]))
        if any(row.memory or row.first_call for row in self.rows):
            header = ("", "held for the backward", "peak of a step", "first call, cold", "warm")
            rows = []
            for row in self.rows:
                memory = [row.memory.held, row.memory.peak] if row.memory else [None, None]
                calls = [row.first_call.get(kind) for kind in ("cold", "warm")]
                shown = [*(_or_dash(show_bytes, m) for m in memory), *(_or_dash(show_seconds, c) for c in calls)]
                rows.append((row.name, *shown) if not row.reason else (row.name, "n/a", "", "", ""))
            found.append(("memory, and seconds to the first gradients", header, rows))
        return found

    def _cells(self, row: Row, mode: str) -> tuple[str, ...]:
        timing = row.timings.get(mode)
        if timing is None:
            return row.name, "n/a", "", "", "", "", "", ""
        low, high = timing.quartiles
        verdicts = row.verdicts.get(mode, [])
        first = next(iter(verdicts), None)
        right = f"{sum(v.ok for v in verdicts)} of {len(verdicts)}" if verdicts else "-"
        return (
            row.name,
            show_seconds(timing.median),
            f"{show_seconds(low)} .. {show_seconds(high)}",
            _or_dash(lambda x: f"{x:.2f}x", self.faster(row.name, mode)),
            _or_dash(lambda x: f"{x:.0%}" + (" (!)" if x > 1 else ""), self.of_floor(row.name, mode)),
            _or_dash(show_seconds, row.host.get(mode)),
            f"{first.error:.1e} ({first.eager_error:.1e})" if first else "-",
            right,
        )

    def remarks(self) -> list[str]:
        """What has to be known to read the tables."""
        lines = [f"{row.name} n/a: {row.reason}" for row in self.rows if row.reason]
        for mode, floor in self.floors.items():
            library = f" + {show_seconds(floor.library)} in the library" if floor.library else ""
            copied = f"{show_seconds(floor.copy)} to move {show_bytes(floor.bytes)}"
            lines.append(f"floor, {mode}: {show_seconds(floor.seconds)} = {copied}{library}, the fastest of all rounds")
        for mode, savings in self.rewrites.items():
            changed = [f"{s.rule} {(s.operations - s.without) / s.without:+.2%}" for s in savings if s.without]
            lines.append(
                f"arithmetic, {mode}: "
                + (f"changed by {', '.join(changed)}" if changed else "no rewrite changed its amount")
            )
        others = [row for row in self.rows if row.name != OURS]
        lines += [f"{row.name}, by the same rule: {problem}" for row in others for problem in row.problems]
        return [*lines, *self.notes]

    def __str__(self) -> str:
        lines = [f"{self.subject}: {self.device}, torch {self.versions['torch']}"]
        for title, header, rows in self.tables():
            lines += ["", title, *table(header, rows)]
        lines += ["", *self.remarks()]
        lines += [f"{ERROR}{doubt}" for doubt in self.doubts]
        lines += [f"WRONG: {problem}" for problem in self.problems]
        return "\n".join((*lines, "", self.verdict))

    def to_dict(self) -> dict:
        """Plain values only."""
        return {
            "verdict": "right" if self.ok else "wrong",
            "subject": self.subject,
            "created": self.created,
            "device": self.device,
            "versions": self.versions,
            "flags": self.flags,
            "seconds": self.seconds,
            "candidates": {row.name: self._row_to_dict(row) for row in self.rows},
            "floors": {
                mode: {
                    "seconds": floor.seconds,
                    "bytes": floor.bytes,
                    "copy_s": floor.copy,
                    "library_s": floor.library,
                }
                for mode, floor in self.floors.items()
            },
            "steps": {mode: self._steps_to_dict(mode) for mode in self.steps},
            "rewrites": {mode: [asdict(saving) for saving in savings] for mode, savings in self.rewrites.items()},
            "problems": self.problems,
            "doubts": self.doubts,
            "notes": self.notes,
        }

    def _steps_to_dict(self, mode: str) -> list[dict]:
        return [
            {
                "name": step.name,
                "kind": "library" if isinstance(step, LibraryCall) else "kernel",
                "phase": step.phase,
                "median_s": timing.median if timing else None,
                "bytes": step.bytes_read + step.bytes_written,
                "operations": step.operations,
            }
            for step, timing in zip(self.explanations[mode].steps, self.steps[mode], strict=True)
        ]

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    def _row_to_dict(self, row: Row) -> dict:
        if row.reason:
            return {"n/a": row.reason}
        return {
            "modes": {
                mode: {
                    **_timing_to_dict(timing),
                    "vs_eager": self.faster(row.name, mode),
                    "of_floor": self.of_floor(row.name, mode),
                    "host_s": row.host.get(mode),
                    "results": [verdict.to_dict() for verdict in row.verdicts.get(mode, [])],
                }
                for mode, timing in row.timings.items()
            },
            "held_bytes": row.memory.held if row.memory else None,
            "peak_bytes": row.memory.peak if row.memory else None,
            "first_call_s": row.first_call,
        }

    def to_csv(self) -> str:
        """One line for each mode and candidate; times in seconds, memory in bytes."""
        header = (
            "subject device mode candidate median_s quartile1_s quartile3_s rounds vs_eager of_floor host_s".split()
        )
        header += "held_bytes peak_bytes first_call_cold_s first_call_warm_s results_right results reason".split()
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        for mode in self.modes:
            for row in self.rows:
                timing = row.timings.get(mode)
                times = [timing.median, *timing.quartiles, len(timing.samples)] if timing else [None] * 4
                memory = [row.memory.held, row.memory.peak] if row.memory else [None] * 2
                verdicts = row.verdicts.get(mode, [])
                line = [self.subject, self.device, mode, row.name, *times]
                line += [self.faster(row.name, mode), self.of_floor(row.name, mode), row.host.get(mode), *memory]
                line += [row.first_call.get(kind) for kind in ("cold", "warm")]
                line += [sum(v.ok for v in verdicts), len(verdicts), row.reason]
                writer.writerow(line)
        return text.getvalue()


def bench(
    model,
    *inputs,
    draw: Callable[[int], Sequence] | None = None,
    modes: Sequence[str] = tuple(MODES),
    candidates: Sequence[str] = tuple(MAKERS),
    seconds: float = 3.0,
    seed: int = 0,
    file: ModelFile | None = None,
    scale: str = "small",
    first_call_of: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Benchmark:
    """Time a model (a module or function, on its own device and in its own mode) beside eager and torch.compile.

    Works on copies. Inputs of every round have the elements of the given ones in random order; `draw(seed)` makes
    better ones.

    modes: of "forward" (no gradients) and "step" (forward and backward to parameters and inputs). candidates: of
    MAKERS. seconds: for each mode. file, scale: where other processes find the model, for the seconds of a first call;
    first_call_of: of which candidates, all that compile by default. progress: is told each stage.

    Forgets what torch.compile knows in this process: what it has seen of other sizes would count against it.
    Raises `InputError` where eager refuses the inputs.
    """
    for given, known in ((modes, MODES), (candidates, MAKERS)):
        if unknown := [name for name in given if name not in known]:
            raise ValueError(f"bench: no {unknown[0]!r}; there are {', '.join(known)}")
    if draw is None:
        if not pytree.tree_leaves(inputs):
            raise InputError("bench: no inputs: bench(model, *inputs)")
        draw = functools.partial(resampled, inputs, seed)
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=gpus):
        work = _Bench(plain_copy(model, "bench"), draw, seed, progress or (lambda _: None))
        result = work.empty(name_of(model) if file is None else file.name, seconds)
        work.prepare(result, candidates, [mode for mode in MODES if mode in modes])
        for mode in work.modes:
            work.time(result, mode)
        for mode in work.modes:
            work.check(result, mode)
        work.measure_memory(result)
    if file is not None:
        wanted = [row.name for row in result.rows if row.name != "eager" and not row.reason]
        work.first_calls(
            result, file, scale, [name for name in wanted if first_call_of is None or name in first_call_of]
        )
    return result


class _Failed(Exception):
    """A candidate raised; the cause is its own exception."""

    def __init__(self, name: str):
        super().__init__(name)
        self.name = name


def _blaming(name: str, call: Callable[..., object]) -> Callable[..., object]:
    def run(*arguments: object) -> object:
        try:
            return call(*arguments)
        except Exception as error:
            raise _Failed(name) from error

    return run


class _Bench:
    def __init__(self, plain: nn.Module, draw: Callable[[int], Sequence], seed: int, progress: Callable[[str], None]):
        self.plain, self.draw, self.seed, self.progress = plain, draw, seed, progress
        self.candidates: dict[str, Candidate] = {}
        self.modes: list[str] = []
        inputs = list(draw(seed))
        everything = (*plain.parameters(), *tensors_in(inputs))
        self.device = next((x.device for x in everything), torch.device("cpu"))
        try:
            outputs = tensors_in(copy.deepcopy(plain)(*self._leaves(inputs)))
        except Exception as error:  # whatever the user's code raises
            message = f"bench: eager refuses the inputs: {type(error).__name__}: {first_line(error)}"
            raise InputError(message) from error
        self.outputs = [x.detach() for x in outputs if x.requires_grad]

    def empty(self, subject: str, seconds: float) -> Benchmark:
        created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        return Benchmark(subject, device_words(self.device), versions(), flags(), created, seconds)

    def fresh(self) -> list:
        """Inputs that nobody has seen, and a gradient for each output that has one."""
        self.seed += 1
        torch.manual_seed(self.seed)
        inputs = self._leaves(list(self.draw(self.seed)))
        return [*inputs, [torch.randn_like(x) for x in self.outputs]]

    @staticmethod
    def _leaves(inputs: list) -> list:
        one = lambda x: x.detach().clone().requires_grad_() if is_float_tensor(x) else x
        return pytree.tree_map_only(torch.Tensor, one, inputs)

    # ---- the stages ----

    def prepare(self, result: Benchmark, names: Sequence[str], modes: list[str]) -> None:
        self.modes = [mode for mode in modes if mode != "step" or self.outputs]
        if self.modes != modes:
            result.notes.append("no training step: no output has a gradient")
        torch._dynamo.reset()  # nothing is known of sizes that change
        for name in names:
            self.progress(f"prepare {name}")
            result.rows.append(Row(name))
            try:
                self.candidates[name] = prepared(name, copy.deepcopy(self.plain), self._run_once)
            except Exception as error:  # a missing compiler, for one
                self._give_up(result, name, error)
        if OURS in self.candidates:
            self.progress("explain")
            for mode in self.modes:
                self._explain(result, mode)

    def _run_once(self, candidate: Candidate) -> None:
        arguments = self.fresh()
        for mode in self.modes:
            with torch.set_grad_enabled(mode == "step"):
                self._work(candidate, mode)(*arguments)
        synchronize(arguments)

    @staticmethod
    def _work(candidate: Candidate, mode: str) -> Callable[..., object]:
        """The function of (*inputs, gradients) that is timed."""
        if mode == "step":
            return training_step(candidate.model, candidate.call)
        return lambda *arguments: candidate.call(*arguments[:-1])

    def _explain(self, result: Benchmark, mode: str) -> None:
        *inputs, _ = self.fresh()
        with torch.set_grad_enabled(mode == "step"):
            explanation = explain(copy.deepcopy(self.plain), *inputs)
        result.explanations[mode] = explanation
        result.rewrites[mode] = [saving for saving in explanation.savings if saving.operations != saving.without]
        if explanation.fallbacks:
            result.notes.append(f"{mode}: part of the model stays PyTorch's; the floor counts only what is fused")

    def time(self, result: Benchmark, mode: str) -> None:
        self.progress(f"time {mode}")
        with torch.set_grad_enabled(mode == "step"):
            work = {name: self._work(candidate, mode) for name, candidate in self.candidates.items()}
            explanation = result.explanations.get(mode)
            least = least_bytes(explanation) if explanation else 0
            count = bytes_from_memory(least, self.device)
            if count:
                work[COPY] = copy_of(count, self.device)
            found = self._time_those_that_run(result, work)
            if OURS not in found:
                explanation = None
            if explanation and explanation.steps:
                kind = self.device.type
                copied = min(found[COPY].samples) / MOVED_BY_COPY[kind] if count else 0.0
                try:
                    result.steps[mode] = steps = self._time_steps(explanation, work[OURS])
                    library = _in_library(explanation, steps) if kind == "cuda" else 0.0
                    if count or library:
                        result.floors[mode] = Floor(count, copied, library)
                    else:
                        fit = f"the {show_bytes(least)} that must be moved may stay in the processor's caches"
                        result.notes.append(f"floor, {mode}: none is known: {fit}")
                except RuntimeError as error:  # a profiler that does not work here must not cost the numbers
                    result.notes.append(f"floor, {mode}: n/a: {first_line(error)}")
            for row in result.rows:
                if row.name in found:
                    row.timings[mode] = found[row.name]
                    if self.device.type == "cuda":
                        ready = lambda arguments, call=work[row.name]: lambda: call(*arguments)
                        row.host[mode] = host_seconds(ready, self.fresh(), calls=20)
        for row in result.rows:
            share = result.of_floor(row.name, mode)
            if share is not None and share > 1:
                result.doubts.append(
                    f"{mode}, {row.name}: {share:.0%} of what the hardware can do. A result that is cached or not "
                    "computed, or a machine that is busy with something else: do not trust this row"
                )

    def _time_those_that_run(self, result: Benchmark, work: dict[str, Callable]) -> dict[str, Timing]:
        """Takes those that raise out of the work, and begins again."""
        while True:
            try:
                calls = {name: _blaming(name, call) for name, call in work.items()}
                return interleaved(calls, self.fresh, seconds=result.seconds)
            except _Failed as failed:
                self._give_up(result, failed.name, failed.__cause__)
                del work[failed.name]

    def _give_up(self, result: Benchmark, name: str, error: BaseException) -> None:
        self.candidates.pop(name, None)
        result.row(name).reason = f"{type(error).__name__}: {first_line(error)}"[:300]
        if name == OURS:
            result.problems.append(f"{name} raises where eager does not: {result.row(name).reason}")

    def _time_steps(self, explanation: Explanation, call: Callable[..., object]) -> list[Timing | None]:
        arguments = self.fresh()
        return step_timings(explanation, lambda: call(*arguments), self.device)

    def check(self, result: Benchmark, mode: str) -> None:
        """What was timed must be right, on inputs that nobody has seen."""
        *inputs, _ = self.fresh()
        draws = self._draws_random_numbers(inputs)
        for row in result.rows:
            candidate = self.candidates.get(row.name)
            if candidate is None or row.name == "eager":
                continue
            self.progress(f"check {mode} of {row.name}")
            try:
                if draws and row.name != OURS:
                    raise Unjudgeable("it draws random numbers of its own")
                row.verdicts[mode] = judge_twin(
                    candidate.model, self.plain, inputs, call=candidate.call, gradients=mode == "step"
                )
            except Unjudgeable as why:
                result.notes.append(f"{mode} of {row.name} was not judged: {why}")
            except Exception as error:  # it ran before
                message = f"{mode}: raises after timing: {type(error).__name__}: {first_line(error)}"
                row.verdicts[mode] = [Verdict("call", math.nan, 0.0, message)]
        ours = result.row(OURS)
        if ours:
            result.problems += [p for p in ours.problems if p.startswith(mode)]

    def _draws_random_numbers(self, inputs: list) -> bool:
        def run(seed: int) -> dict:
            torch.manual_seed(seed)
            return results_of(copy.deepcopy(self.plain), inputs, gradients=False)

        return is_random(run(0), run(1))

    def measure_memory(self, result: Benchmark) -> None:
        if "step" not in self.modes:
            return
        self.progress("memory")
        for row in result.rows:
            if candidate := self.candidates.get(row.name):
                *inputs, gradients = self.fresh()
                try:
                    row.memory = memory_of(candidate.model, candidate.call, inputs, gradients)
                except RuntimeError as error:  # no memory for it, or a profiler that does not work here
                    result.notes.append(f"memory of {row.name}: n/a: {first_line(error)}")

    def first_calls(self, result: Benchmark, file: ModelFile, scale: str, names: list[str]) -> None:
        for name in names:
            self.progress(f"first call of {name}")
            try:
                found = first_calls(file, scale, self.device, name)
                result.row(name).first_call = {kind: call["seconds"] for kind, call in found.items()}
            except FirstCallError as error:
                result.notes.append(f"first call of {name}: n/a: {error}")


def print_tables(result: Benchmark, console: Console) -> None:
    """The page of `str(result)`; on a terminal with tables that fit it."""
    if not console.is_terminal:
        print(result, file=console.file)
        return
    console.print(f"{result.subject}: {result.device}, torch {result.versions['torch']}", markup=False, highlight=False)
    for title, header, rows in result.tables():
        shown = Table(title=title, title_justify="left")
        for number, column in enumerate(header):
            shown.add_column(column, justify="right" if number else "left", overflow="fold")
        for row in rows:
            shown.add_row(*row, style="bold" if row[0] == OURS else None)
        console.print(shown)
    for line in result.remarks():
        console.print(line, markup=False, highlight=False)
    for line in (*(f"{ERROR}{doubt}" for doubt in result.doubts), *(f"WRONG: {p}" for p in result.problems)):
        console.print(line, style="red", markup=False, highlight=False)
    console.print(result.verdict, style="green" if result.ok else "red")


def _in_library(explanation: Explanation, steps: list[Timing | None]) -> float:
    """The fastest of each call."""
    found = zip(explanation.steps, steps, strict=True)
    return sum(min(timing.samples) for step, timing in found if timing and isinstance(step, LibraryCall))


def _timing_to_dict(timing: Timing) -> dict:
    return {"median_s": timing.median, "quartiles_s": timing.quartiles, "rounds": len(timing.samples)}


def _or_dash(show: Callable[[float], str], value: float | None) -> str:
    return "-" if value is None else show(value)
