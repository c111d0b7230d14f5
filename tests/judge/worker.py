"""A shard: the process that runs cases, one after the other, and writes down what came of each.

It writes the case that it begins to a file of its own, so that its parent knows which case ended it.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

import fusewright
from fusewright.capture.backend import Fallback, Session
from fusewright.capture.capture import capture
from fusewright.judge.oracle import Nudge

from . import cases, contexts
from .cases import Group, Sample
from .compare import Outcome, call, problems
from .resize import resized
from .undefined import undefined

MORE = 75  # exit status: there is more to do, in a fresh process
MOST_CASES = 500  # in one process


class Watching(Session):
    """Remembers what stayed PyTorch's, and says nothing."""

    def __init__(self):
        super().__init__("judged")
        self.only_gains = False  # lone operators of a few numbers are what is judged
        self.fallbacks: list[Fallback] = []

    def report(self, fallback: Fallback) -> None:
        self.fallbacks.append(fallback)

    def say(self, line: str, about: object = None) -> None:
        pass


def judge_case(group: Group, sample: Sample) -> dict:
    """Judges one case, and returns its record."""
    op, entry = cases.operators()[group.operator], undefined(group.operator)
    asked = [sample]
    function = contexts.function_of(op, group.kind)
    if not _applies(function, op, group, sample):
        return {"status": "none"}
    if group.kind == "resized":
        asked += resized(sample, function)
        if len(asked) == 1:
            return {"status": "none"}
    torch._dynamo.reset()
    session, before = Watching(), fusewright.stats()
    compiled = capture(function, session, None)
    status, found = "ok", []
    for number, one in enumerate(asked):
        wrong = problems(_caller(compiled, one), contexts.function_of(op, group.kind), one, entry)
        if wrong:
            status, found = _whose(function, one, entry, wrong)
            found = [f"call {number + 1}: {p}" for p in found] if len(asked) > 1 else found
        if status == "wrong":
            break
    return {"status": status, "fused": _how_much(session, before), "problems": found} | _fell_back(session)


def _judged(group: Group, sample: Sample) -> dict:
    try:
        return judge_case(group, sample)
    except Exception:  # of the judge: exceptions of the function are part of what is compared
        return {"status": "crash", "problems": [traceback.format_exc()[-1500:]]}


def _caller(compiled: Callable, sample: Sample) -> Callable[[Nudge], Outcome]:
    return lambda nudge: call(compiled, sample, nudge=nudge)


def _applies(function: Callable, op, group: Group, sample: Sample) -> bool:
    """Returns whether the kind tests something that the plain one does not."""
    if group.kind in ("inplace", "written"):
        return isinstance(sample.input, torch.Tensor) and not sample.broadcasts_input
    if group.kind not in ("mean", "softmax"):
        return True
    outcome = call(op.op, sample)
    return any(x is not None and x.is_floating_point() for n, x in outcome.results.items() if n.startswith("output"))


def _whose(function: Callable, sample: Sample, entry, wrong: list[str]) -> tuple[str, list[str]]:
    """PyTorch's own compiler differs from eager here and there: what it does too is not our fault."""
    torch._dynamo.reset()
    theirs = torch.compile(function, backend="aot_eager")
    also = problems(_caller(theirs, sample), function, sample, entry)
    places = {_place(problem) for problem in also}
    ours = [problem for problem in wrong if _place(problem) not in places]
    return ("wrong", ours) if ours else ("theirs", wrong)


def _place(problem: str) -> str:
    return problem.split(":")[0].split("'")[0]


def _how_much(session: Watching, before: dict) -> str:
    after = fusewright.stats()
    changed = {name: after[name] - before[name] for name in ("regions", "region_calls", "fallback_calls")}
    if changed["regions"] == 0 or changed["region_calls"] == 0:
        return "left"
    whole = not session.fallbacks and changed["fallback_calls"] == 0
    return "whole" if whole else "partly"


def _fell_back(session: Watching) -> dict:
    """Returns what stayed PyTorch's and why, with the text of the log where a fault may be the cause."""
    words = (f"{f.reason} {f.operator} {f.detail if f.reason in LOUD else ''}".strip() for f in session.fallbacks)
    outside = sorted({word[:300] for word in words})
    return {"outside": outside[:8]} if outside else {}


def described(sample: Sample) -> str:
    """The sample, with tensors by their type, sizes and strides."""

    def words(x):
        if isinstance(x, torch.Tensor):
            layout = f"strides {x.stride()}" if x.layout is torch.strided and not x.is_nested else str(x.layout)
            return f"<{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)} {layout}>"
        return x

    made = pytree.tree_map(words, (sample.input, sample.args, sample.kwargs))
    return repr(made)[:500]


LOUD = ("internal_error", "core_rejected", "export_failed", "capture_failed", "no_compiler")


def work(job: dict) -> int:
    """Run what the job names; the exit status."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(job["threads"])
    if job["before"]:
        runpy.run_path(job["before"])
    parent = os.getppid()  # whose end is ours
    known, done, begun = set(job["known"]), 0, time.monotonic()
    with Path(job["results"]).open("a") as results:

        def write(record: dict) -> None:
            results.write(json.dumps(record) + "\n")
            results.flush()

        for *names, most in job["groups"]:
            group = Group(*names)
            Path(job["current"]).write_text(f"{group.name}/samples")
            try:
                samples = cases.samples(group, job["device"])
            except Exception as error:  # an operator that has no samples here
                write({"group": group.name, "samples": 0, "error": f"{type(error).__name__}: {error}"[:300]})
                continue
            numbers = chosen(group, len(samples), most, job)
            for number in numbers:
                name = f"{group.name}/{number}"
                if name in known:
                    continue
                if time.monotonic() - begun > job["seconds"] or os.getppid() != parent:
                    return 0
                if done == MOST_CASES:
                    return MORE
                done += 1
                Path(job["current"]).write_text(name)
                start = time.monotonic()
                record = {"case": name} | _judged(group, samples[number])
                if job["device"] != "cpu":
                    torch.cuda.synchronize()  # a fault on the device ends the process, as this case's crash
                if record["status"] != "ok":
                    record["sample"] = described(samples[number])
                write(record | {"seconds": round(time.monotonic() - start, 3)})
            write({"group": group.name, "samples": len(samples), "most": most, "seed": job["seed"]})
    return 0


def chosen(group: Group, count: int, most: int, job: dict) -> Sequence[int]:
    """The numbers of a group's samples that are asked for: `most` of them, drawn by the seed; 0: all."""
    numbers = [n for n in range(count) if cases.is_held_back(f"{group.name}/{n}") == job["held_back"]]
    if job["only"]:
        return [n for n in numbers if f"{group.name}/{n}" in job["only"]]
    if most == 0:
        return numbers
    return sorted(sorted(numbers, key=lambda n: cases.draw(job["seed"], f"{group.name}/{n}"))[:most])


if __name__ == "__main__":
    import faulthandler

    faulthandler.enable()
    sys.exit(work(json.loads(Path(sys.argv[1]).read_text())))
