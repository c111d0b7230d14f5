"""make judge: starts the shards, goes on behind crashes and time-outs, and prints the table (docs/judge.md)."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import cases
from .table import Results, table
from .worker import MORE

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "judge"
POLL_SECONDS = 0.2
START_SECONDS = 600  # for a shard to import PyTorch, on a machine that does other things too
MANY, FEW = 32, 3  # samples of a group; what is never fused is PyTorch's own, so that only its capture is at stake
ENVIRONMENT = {"FUSEWRIGHT_TUNE": "0"}  # timing would hand what PyTorch does faster back to PyTorch


def main() -> int:
    options = _options()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    results = Results(options.results)
    if not options.table:
        results.read()
        names = _operators(options, results)
        _run(options, _groups(options, names))
    results.read()
    print(table(results, options.verbose))
    return 0 if results.ok else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="judge", description=__doc__)
    add = parser.add_argument
    add("--operators", nargs="*", default=["*"], metavar="PATTERN", help="names, as op_db's formatted_name")
    add("--draw-operators", type=int, default=0, metavar="N", help="as many operators, drawn by the seed")
    add("--dtypes", nargs="*", default=list(cases.DTYPES), choices=list(cases.DTYPES), metavar="DTYPE")
    add("--kinds", nargs="*", default=list(cases.KINDS), choices=cases.KINDS, metavar="KIND")
    add("--cases", nargs="*", default=[], metavar="NAME", help="these cases alone, again")
    add(
        "--samples",
        type=int,
        metavar="N",
        help="at most so many of each group, drawn by the seed; 0: all. Else "
        f"{MANY}, and {FEW} of operators that are never fused",
    )
    add("--part", default="0/1", metavar="I/N", help="every N-th operator: N processes side by side share the results")
    add("--shuffle", action="store_true", help="groups in an order drawn by the seed")
    add("--seed", default="0")
    add("--held-back", action="store_true", help="the cases that are held back, and no others")
    add("--device", default="cpu")
    add("--limit-seconds", type=float, default=float("inf"), help="stop after so long; the next run goes on")
    add("--case-seconds", type=float, default=120, help="what a case may take")
    add("--threads", type=int, default=1, help="threads of PyTorch in a shard")
    add("--results", type=Path, help="the file that is appended to, and read for what is known already")
    add("--before", help="a Python file that every shard runs first")
    add("--table", action="store_true", help="print the table of the results so far, and run nothing")
    add("--verbose", action="store_true", help="every operator in the table, not only those with something to say")
    options = parser.parse_args()
    name = "held-back" if options.held_back else "results"
    options.results = options.results or OUT / f"{name}-{options.device.replace(':', '')}.jsonl"
    return options


def _most(options: argparse.Namespace, results: Results, group: cases.Group) -> int:
    """How many cases of the group are asked for; 0: all."""
    if options.samples is not None:
        return options.samples
    return FEW if results.fused.get(group.operator) is False else MANY


def _operators(options: argparse.Namespace, results: Results) -> list[str]:
    known = cases.operators()
    names = [name for name in known if any(fnmatch.fnmatchcase(name, pattern) for pattern in options.operators)]
    if options.draw_operators:
        names = sorted(names, key=lambda name: cases.draw(options.seed, name))[: options.draw_operators]
    part, parts = map(int, options.part.split("/"))
    return [name for name in names if int(cases.draw("part", name) * parts) == part]


def _groups(options: argparse.Namespace, names: list[str]) -> list[cases.Group]:
    if options.cases:
        return list(dict.fromkeys(cases.Group(*name.split("/")[:3]) for name in options.cases))
    found = cases.groups(names, options.dtypes, options.kinds, options.device)
    if options.shuffle:
        found.sort(key=lambda group: cases.draw(options.seed, group.name))
    return found


def _run(options: argparse.Namespace, asked: list[cases.Group]) -> None:
    """Start shards until everything is done, one at a time."""
    end = time.monotonic() + options.limit_seconds
    with tempfile.TemporaryDirectory() as folder:
        current, job_file, log = Path(folder, "current"), Path(folder, "job.json"), Path(folder, "log")
        again = list(options.cases)
        while asked and time.monotonic() < end:
            results = Results(options.results)
            results.read()
            most = {group: _most(options, results, group) for group in asked}
            left = [g for g in asked if options.cases or not results.is_done(g.name, most[g], options.seed)]
            # Reference inputs are for operators that are fused, which their plain cases tell first.
            plain = {group.operator for group in left if group.kind == "plain"}
            unsaid = {name for name in plain if name not in results.fused}
            left = [g for g in left if g.kind != "reference" or results.fused.get(g.operator, g.operator not in unsaid)]
            if not left:
                return
            job = {
                "groups": [(*group, most[group]) for group in left[:200]],
                "known": [name for name in results.cases if name not in again], "only": again,
                "device": options.device,
                "held_back": options.held_back, "seed": options.seed,
                "results": str(options.results), "current": str(current), "threads": options.threads,
                "seconds": max(end - time.monotonic(), 0) if options.limit_seconds != float("inf") else 1e12,
                "before": options.before,
            }  # fmt: skip
            job_file.write_text(json.dumps(job))
            current.write_text("")
            status = _shard(job_file, current, log, options.case_seconds)
            if status == 0 and options.cases:
                return
            if status in (0, MORE):
                continue
            begun = current.read_text()
            if not begun:
                sys.exit(f"judge: a shard ended with status {status} before its first case:\n{log.read_text()[-2000:]}")
            again = [name for name in again if name != begun]
            what = {"status": "timeout"} if status is None else {"status": "crash", "problems": [_ending(status, log)]}
            with options.results.open("a") as file:
                record = {"case": begun} | what
                file.write(json.dumps(record) + "\n")
                if begun.endswith("/samples"):
                    file.write(json.dumps({"group": begun.removesuffix("/samples"), "samples": 0}) + "\n")


def _shard(job: Path, current: Path, log: Path, case_seconds: float) -> int | None:
    """Run a shard; its exit status, or None if a case took too long."""
    command = [sys.executable, "-m", "judge.worker", str(job)]
    path = os.pathsep.join([str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            env=ENVIRONMENT | os.environ | {"PYTHONPATH": path},
            start_new_session=True,
        )
        try:
            begun, since = "", time.monotonic()
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
                now = current.read_text()
                if now != begun:
                    begun, since = now, time.monotonic()
                if time.monotonic() - since > (case_seconds if begun else START_SECONDS):
                    return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return process.returncode


def _ending(status: int, log: Path) -> str:
    cause = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"{cause}: " + " | ".join(lines[-12:])


if __name__ == "__main__":
    sys.exit(main())
