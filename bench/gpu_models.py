"""Sixty drawn models and three real ones on a GPU: eager, torch.compile and ours, forward and training step.

    python bench/gpu_models.py --list                  the drawn models (bench/results/gpu_models_list.txt)
    python bench/gpu_models.py warm                    fills the caches of both compilers, several processes at once
    python bench/gpu_models.py time                    measures; --resume leaves out what is recorded
    python bench/gpu_models.py                         both
    python bench/gpu_models.py --models conv03,linear01 --real none      some of them; --real only: the real ones alone
    python bench/gpu_models.py --device cpu --tiny     that the script itself works

Method: the candidates take turns in one process on inputs drawn afresh for every round, on a cold L2 cache, after all
that is compiled in the background is there and nothing is tuned any more (benchmark/measure.py). Medians and
quartiles over the rounds; ratios are medians of the rounds' ratios. Peaks are the allocator's, above what stood before
the step (benchmark/memory.py). Results are judged against float64 on a small batch, by the rule of the test suite
(judge/oracle.py); at full size the distance to eager is recorded beside torch.compile's. Where ours is slower than
0.97x of torch.compile or of eager, the device's seconds of each kernel stand beside torch.compile's and eager's.

The warm-up compiles while other processes use the GPU, so nothing is tuned there (FUSEWRIGHT_TUNE=0),
and what Inductor chose by timing is removed afterwards: both choose again, alone, before they are timed.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from torch._inductor.runtime.cache_dir_utils import cache_dir

try:
    import fusewright  # noqa: F401
except ImportError:  # built in place, not installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
import model_list
from common import software, timings
from real_models import REAL

from fusewright.benchmark.candidates import MAKERS, OURS, Candidate
from fusewright.benchmark.measure import interleaved, synchronize, training_step
from fusewright.benchmark.memory import memory_of
from fusewright.benchmark.profiling import profiled
from fusewright.judge.oracle import Unjudgeable, errors, judge_twin
from fusewright.stats import stats
from fusewright.units import show_bytes, show_seconds

HERE = Path(__file__).resolve().parent
RESULTS = Path(os.environ.get("OUT") or HERE.parent / "build" / "gpu-results")
EAGER, COMPILE = "eager", "torch.compile"
NAMES = (EAGER, COMPILE, OURS)
MODES = ("forward", "step")
LOSS = 0.97  # slower than that is a loss, and gets a profile
SETTLED_AFTER = 8  # calls at the most

# ---- what is measured ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """One row of the results."""

    name: str
    words: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    small: tuple[int, ...]  # for float64
    integers: int = 0
    autocast: bool = False

    def draw(self, options: Options, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        shape = shape or self.shape
        if self.integers:
            return torch.randint(0, self.integers, shape, device=options.device)
        x = torch.randn(shape, device=options.device)
        return x.contiguous(memory_format=options.memory_format(x.dim())).requires_grad_()

    def model(self, options: Options) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = self.build().to(options.device)
        for parameter in model.parameters():
            parameter.data = parameter.data.contiguous(memory_format=options.memory_format(parameter.dim()))
        return model

    def precision(self, options: Options):
        return torch.autocast(options.device.type, torch.bfloat16) if self.autocast else nullcontext()


@dataclass(frozen=True)
class Options:
    device: torch.device
    channels_last: bool
    seconds: float
    rounds: tuple[int, int]
    profiles: bool = False  # of all, not of those that lose alone

    def memory_format(self, rank: int) -> torch.memory_format:
        formats = {4: torch.channels_last, 5: torch.channels_last_3d} if self.channels_last else {}
        return formats.get(rank, torch.contiguous_format)


def subjects(arguments: argparse.Namespace) -> list[Subject]:
    found = []
    for model in model_list.models(arguments.tiny):
        small = model.small_batch().shape
        found.append(Subject(model.name, str(model), model.build, model.shape, small))
    real = []
    for name, row in REAL.items():
        shape = row.tiny if arguments.tiny else row.shape
        for autocast in (False, True):
            source = row.make(True)[1] if arguments.tiny else ""
            words = f"{name} {'x'.join(map(str, shape))}{', bf16 autocast' if autocast else ''} {source}".strip()
            build = lambda row=row: row.make(arguments.tiny)[0]
            small = (2, *shape[1:])
            real.append(Subject(name + "_bf16" * autocast, words, build, shape, small, row.words, autocast))
    # The real ones first: they are few, and what people look at.
    found = {"also": real + found, "only": real, "none": found}[arguments.real]
    if arguments.models:
        wanted = arguments.models.split(",")
        if unknown := set(wanted) - {subject.name for subject in found}:
            raise SystemExit(f"gpu_models: no model {', '.join(sorted(unknown))}")
        found = [subject for subject in found if subject.name in wanted]
    return found


# ---- candidates ------------------------------------------------------------------------------------------------------


def candidate_of(name: str, subject: Subject, model: nn.Module, options: Options) -> Candidate:
    made = MAKERS[name](model)

    def call(*inputs):
        with subject.precision(options):
            return made(*inputs)

    return Candidate(name, model, call if subject.autocast else made)


def work_of(candidate: Candidate, mode: str) -> Callable[..., object]:
    """A function of the input and the result's gradient."""
    if mode == "step":
        return training_step(candidate.model, candidate.call)

    def forward(x, gradient):
        with torch.no_grad():
            return candidate.call(x)

    return forward


def settle(candidate: Candidate, arguments: list[torch.Tensor]) -> int:
    """Runs it until nothing is compiled or tuned any more; says how often that took."""
    for turn in range(1, SETTLED_AFTER + 1):
        before = stats()  # waits for what is compiled in the background
        for mode in MODES:
            work_of(candidate, mode)(*arguments)
        synchronize(arguments)
        after = stats()
        if turn > 1 and all(before[key] == after[key] for key in ("kernels_compiled", "cache_hits", "kernels_tuned")):
            return turn
    return SETTLED_AFTER


def gradient_of(subject: Subject, model: nn.Module, x: torch.Tensor, options: Options) -> torch.Tensor:
    with torch.no_grad(), subject.precision(options):
        return torch.randn_like(copy.deepcopy(model)(x))


@contextmanager
def freed(options: Options) -> Iterator[None]:
    """Leaves neither memory nor what Dynamo knows of other sizes to the next model."""
    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()
        if options.device.type == "cuda":
            torch.cuda.empty_cache()


# ---- one row ---------------------------------------------------------------------------------------------------------


def measure(subject: Subject, options: Options) -> dict:
    row: dict = {"words": subject.words, "notes": []}
    plain = subject.model(options)
    x = subject.draw(options)
    gradient = gradient_of(subject, plain, x, options)

    def fresh() -> list[torch.Tensor]:
        return [subject.draw(options), torch.randn_like(gradient)]

    candidates: dict[str, Candidate] = {}
    before = stats()
    for name in NAMES:
        start = time.perf_counter()
        try:
            candidate = candidate_of(name, subject, copy.deepcopy(plain), options)
            row.setdefault("settled_after", {})[name] = settle(candidate, fresh())
            candidates[name] = candidate
        except Exception as error:
            if name == EAGER:
                raise
            row["notes"].append(f"{name} n/a: {type(error).__name__}: {str(error).strip().splitlines()[0][:300]}")
        row.setdefault("settling_s", {})[name] = time.perf_counter() - start
    row["stats"] = {key: value - before.get(key, 0) for key, value in stats().items() if key != "fallback_reasons"}
    if OURS not in candidates:
        return row

    row["timings"] = {}
    for mode in MODES:
        work = {name: work_of(candidate, mode) for name, candidate in candidates.items()}
        found = interleaved(work, fresh, seconds=options.seconds, rounds=options.rounds)
        row["timings"][mode] = timings(found)
    row["memory"] = {}
    for name, candidate in candidates.items():
        x, gradient = fresh()
        row["memory"][name] = asdict(memory_of(candidate.model, candidate.call, [x], [gradient]))
    row["distance"] = distances(candidates, fresh())
    losing = {mode: losses(row, mode) for mode in MODES}
    row["profile"] = {
        mode: {name: kernels(work_of(candidate, mode), fresh(), options) for name, candidate in candidates.items()}
        for mode in MODES
        if losing[mode] or options.profiles
    }
    return row


def distances(candidates: dict[str, Candidate], arguments: list[torch.Tensor]) -> dict[str, float]:
    """From eager at full size: the largest relative norm of a difference, over result and gradients."""
    x, gradient = arguments

    def run(candidate: Candidate) -> list[torch.Tensor]:
        output = training_step(candidate.model, candidate.call)(x, gradient)
        leaves = [x, *candidate.model.parameters()]
        return [output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    wanted = run(candidates[EAGER])
    return {
        name: max(errors(found, right)[0] for found, right in zip(run(candidate), wanted, strict=True))
        for name, candidate in candidates.items()
        if name != EAGER
    }


def judged(subject: Subject, options: Options) -> list[str]:
    """Returns what is wrong on a small batch, by the rule of the test suite."""
    plain = subject.model(options)
    x = subject.draw(options, subject.small)
    candidate = candidate_of(OURS, subject, copy.deepcopy(plain), options)
    try:
        with subject.precision(options):
            verdicts = judge_twin(candidate.model, plain, [x], call=candidate.call)
    except Unjudgeable as why:
        return [f"not judged: {why}"]
    return [verdict.problem for verdict in verdicts if not verdict.ok]


def losses(row: dict, mode: str) -> dict[str, float]:
    """By whom ours is beaten, and its speed beside theirs."""
    ratios = {name: row["timings"][mode][name]["fusewright_speedup"] for name in row["timings"][mode] if name != OURS}
    return {name: ratio for name, ratio in ratios.items() if ratio < LOSS}


def kernels(call: Callable[..., object], arguments: list[torch.Tensor], options: Options, calls: int = 3) -> list[dict]:
    """Seconds of a call by the kernel's name, on the device; on a CPU by operator."""
    on_gpu = options.device.type == "cuda"
    call(*arguments)
    try:
        with profiled() as found:
            for _ in range(calls):
                call(*arguments)
            synchronize(arguments)
    except Exception as error:  # a profiler that does not work here must not cost the numbers
        return [{"name": f"n/a: {type(error).__name__}", "us": 0.0, "count": 0}]
    by_name: dict[str, list[float]] = {}
    for event in found.events():
        if on_gpu and event.device_type == torch.autograd.DeviceType.CUDA:
            by_name.setdefault(event.name, []).append(event.time_range.elapsed_us())
        elif not on_gpu and event.name.startswith(("aten::", "fw_")):
            by_name.setdefault(event.name, []).append(event.self_cpu_time_total)
    rows = [{"name": n[:160], "us": sum(us) / calls, "count": len(us) / calls} for n, us in by_name.items()]
    return sorted(rows, key=lambda row: -row["us"])


# ---- stages ----------------------------------------------------------------------------------------------------------


def run_settings(arguments: argparse.Namespace) -> dict:
    """Returns the settings that must be the same for all rows of a table."""
    device = torch.device(arguments.device)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "cudnn_benchmark": arguments.cudnn_benchmark,
        "channels_last": arguments.channels_last,
        "tiny": arguments.tiny,
        "tf32": {"matmul": torch.backends.cuda.matmul.allow_tf32, "convolution": torch.backends.cudnn.allow_tf32},
        **software(),
    }


def results_path(arguments: argparse.Namespace) -> Path:
    arguments.out.mkdir(parents=True, exist_ok=True)
    kind = "_benchmark" * arguments.cudnn_benchmark + "_channels_last" * arguments.channels_last
    return arguments.out / f"gpu_models{kind}{'_tiny' * arguments.tiny}.jsonl"


def recorded(arguments: argparse.Namespace, path: Path) -> dict[str, dict]:
    """Returns the rows that were measured before and are left out now, by name."""
    if not arguments.resume or not path.exists():
        return {}
    rows = {row["name"]: row for row in map(json.loads, path.read_text().splitlines())}
    return {name: row for name, row in rows.items() if "failed" not in row}


def options_of(arguments: argparse.Namespace) -> Options:
    rounds = (3, 5) if arguments.tiny else (9, 200)
    torch.backends.cudnn.benchmark = arguments.cudnn_benchmark
    return Options(
        torch.device(arguments.device), arguments.channels_last, arguments.seconds, rounds, arguments.profiles
    )


def warm(arguments: argparse.Namespace) -> None:
    """Hands the models to worker processes, which compile them for both compilers."""
    known = recorded(arguments, results_path(arguments))
    waiting = [subject.name for subject in subjects(arguments) if subject.name not in known]
    workers = max(1, min(arguments.workers, len(waiting)))
    each = max(1, (os.cpu_count() or 1) // workers)
    environment = os.environ | {
        "FUSEWRIGHT_TUNE": "0",
        "MAX_JOBS": str(each),
        "TORCHINDUCTOR_COMPILE_THREADS": str(each),
        "PYTHONUNBUFFERED": "1",
    }
    passed = [f"--{name.replace('_', '-')}" for name in ("tiny", "channels_last", "cudnn_benchmark")
              if getattr(arguments, name)]  # fmt: skip
    command = [sys.executable, str(HERE / "gpu_models.py"), "worker", "--device", arguments.device, *passed]
    start = time.monotonic()
    running = [
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(workers)
    ]

    def hand_out(process: subprocess.Popen) -> None:
        for line in process.stdout:  # ends with the worker
            if line.startswith("ready"):
                process.stdin.write((waiting.pop(0) if waiting else "") + "\n")
                process.stdin.flush()
            else:
                print(f"  {time.monotonic() - start:5.0f} s  {line.rstrip()}", flush=True)

    threads = [threading.Thread(target=hand_out, args=(process,), daemon=True) for process in running]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(min(max(arguments.ends - time.monotonic(), 0), threading.TIMEOUT_MAX))
    if any(thread.is_alive() for thread in threads):
        print("warm-up: out of time", flush=True)
    for process in running:
        process.kill()
        process.wait()
    # Chosen while others used the device.
    for file in Path(cache_dir()).rglob("*.best_config"):
        file.unlink()
    print(f"warm-up: {time.monotonic() - start:.0f} s, {len(waiting)} models left out", flush=True)


def worker(arguments: argparse.Namespace) -> None:
    """Compiles one model after another, as they are named on stdin."""
    options = options_of(arguments)
    arguments.real = "also"
    known = {subject.name: subject for subject in subjects(arguments)}
    while True:
        print("ready", flush=True)
        name = sys.stdin.readline().strip()
        if not name:
            return
        start = time.perf_counter()
        try:
            with freed(options):
                warm_one(known[name], options)
            print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
        except Exception as error:  # the timing says it again
            message = (str(error).strip().splitlines() or [""])[0][:200]
            print(f"{name}: {type(error).__name__}: {message}", flush=True)


def warm_one(subject: Subject, options: Options) -> None:
    plain = subject.model(options)
    x = subject.draw(options)
    gradient = gradient_of(subject, plain, x, options)
    for name in (COMPILE, OURS):
        candidate = candidate_of(name, subject, copy.deepcopy(plain), options)
        settle(candidate, [x, gradient])
        torch._dynamo.reset()
    if not subject.autocast:  # of the small batch, which is judged
        candidate = candidate_of(OURS, subject, copy.deepcopy(plain), options)
        x = subject.draw(options, subject.small)
        candidate.call(x)
        stats()


def measure_all(arguments: argparse.Namespace) -> int:
    options = options_of(arguments)
    settings = run_settings(arguments)
    path = results_path(arguments)
    rows = recorded(arguments, path)
    if not rows and path.exists():
        path.rename(path.with_suffix(".jsonl.before"))

    def save() -> None:
        path.with_suffix(".md").write_text(markdown(rows, settings))

    longest = 0.0
    for subject in subjects(arguments):
        if subject.name in rows:
            continue
        if time.monotonic() + longest > arguments.ends:
            print(f"{subject.name} and what comes after it: no time left", flush=True)
            break
        start = time.monotonic()
        try:
            with freed(options):
                row = measure(subject, options)
            with freed(options):  # sizes of its own: captured apart
                row["problems"] = judged(subject, options) if not arguments.no_judge else []
        except Exception as error:
            row = {"words": subject.words, "failed": f"{type(error).__name__}: {str(error).strip()[:400]}"}
        row |= {"name": subject.name, "settings": settings, "took_s": time.monotonic() - start}
        longest = max(longest, row["took_s"])
        rows[subject.name] = row
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        save()
        print(line_of(row), flush=True)
    save()
    print(summary(rows), flush=True)
    return 1 if any(row.get("problems") or "failed" in row for row in rows.values()) else 0


# ---- what is written -------------------------------------------------------------------------------------------------


def ratio(row: dict, mode: str, name: str) -> float | None:
    found = row.get("timings", {}).get(mode, {}).get(name)
    return found["fusewright_speedup"] if found else None


def shown_ratio(row: dict, mode: str, name: str) -> str:
    value = ratio(row, mode, name)
    return "n/a" if value is None else f"{value:.2f}x" + (" (!)" if value < LOSS else "")


def seconds(row: dict, mode: str, name: str) -> str:
    found = row.get("timings", {}).get(mode, {}).get(name)
    return show_seconds(found["median_s"]) if found else "n/a"


def peak(row: dict, name: str) -> str:
    found = row.get("memory", {}).get(name)
    return show_bytes(found["peak"]) if found else "n/a"


def above_eager(row: dict) -> bool:
    memory = row.get("memory", {})
    return OURS in memory and memory[OURS]["peak"] > memory[EAGER]["peak"]


def line_of(row: dict) -> str:
    if "failed" in row:
        return f"{row['name']}: FAILED: {row['failed']}"
    cells = [f"{mode} {seconds(row, mode, OURS)} = {shown_ratio(row, mode, COMPILE)} torch.compile, "
             f"{shown_ratio(row, mode, EAGER)} eager" for mode in MODES]  # fmt: skip
    memory = f"peak {peak(row, OURS)}, eager {peak(row, EAGER)}, torch.compile {peak(row, COMPILE)}"
    wrong = f"  WRONG: {'; '.join(row['problems'])}" if row.get("problems") else ""
    return f"{row['name']}: {'; '.join(cells)}; {memory}; took {row['took_s']:.0f} s{wrong}"


def geomean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def summary(rows: dict[str, dict]) -> str:
    drawn = [row for row in rows.values() if row["name"].startswith(("conv", "linear"))]
    lines = []
    for mode in MODES:
        for name in (COMPILE, EAGER):
            found = {row["name"]: value for row in drawn if (value := ratio(row, mode, name))}
            if found:
                losing = sorted((value, of) for of, value in found.items() if value < LOSS)
                worst = ", ".join(f"{of} {value:.2f}x" for value, of in losing)
                mean = f"geomean {geomean(list(found.values())):.3f}x of {name} over {len(found)}"
                lines.append(f"- drawn, {mode}: {mean}; {len(losing)} below {LOSS}x{': ' + worst if worst else ''}")
    high = [row["name"] for row in rows.values() if above_eager(row)]
    lines.append(f"- peaks above eager's: {len(high)}{': ' + ', '.join(high) if high else ''}")
    wrong = [row["name"] for row in rows.values() if row.get("problems")]
    lines.append(f"- wrong: {', '.join(wrong) or 'none'}")
    failed = [row["name"] for row in rows.values() if "failed" in row]
    lines.append(f"- failed: {', '.join(failed) or 'none'}")
    return "\n".join(lines)


def markdown(rows: dict[str, dict], settings: dict) -> str:
    flags = f"TF32: {settings['tf32']}, cudnn.benchmark {settings['cudnn_benchmark']}"
    flags += f", channels last {settings['channels_last']}"
    machine = f"commit {settings['commit'] or 'unknown'}: {settings['device']}, torch {settings['torch']}"
    lines = ["# Models on a GPU", "", f"{settings['date']}, {machine}. {flags}."]
    lines += [
        "The method stands in `bench/gpu_models.py`. Ratios: how many times faster than torch.compile / eager.",
        "",
    ]
    lines += [summary(rows), ""] if rows else []
    lines += ["| model | forward: ours | torch.compile | eager | ratios | step: ours | torch.compile | eager | ratios "
              "| peak: ours | torch.compile | eager | right |", "|---" * 13 + "|"]  # fmt: skip
    for row in rows.values():
        if "failed" in row:
            lines.append(f"| {row['words']} | {row['failed'].splitlines()[0][:100]} |" + " |" * 11)
            continue
        cells = [row["words"]]
        for mode in MODES:
            cells += [seconds(row, mode, name) for name in (OURS, COMPILE, EAGER)]
            cells.append(f"{shown_ratio(row, mode, COMPILE)} / {shown_ratio(row, mode, EAGER)}")
        cells.append(peak(row, OURS) + (" (!)" if above_eager(row) else ""))
        cells += [peak(row, COMPILE), peak(row, EAGER)]
        cells.append("; ".join([*row.get("problems", []), *row["notes"]]).replace("|", "/")[:200] or "yes")
        lines.append("| " + " | ".join(cells) + " |")
    for row in rows.values():
        for mode, found in row.get("profile", {}).items():
            lines += ["", f"## {row['name']}, {mode}: {shown_ratio(row, mode, COMPILE)} torch.compile, "
                      f"{shown_ratio(row, mode, EAGER)} eager", ""]  # fmt: skip
            lines += profile_lines(found)
    return "\n".join(lines) + "\n"


def profile_lines(found: dict[str, list[dict]], most: int = 14) -> list[str]:
    """The kernels of each candidate side by side, the longest first."""
    kinds = [name for name in (OURS, COMPILE, EAGER) if name in found]
    totals = [f"{kind}, {sum(row['us'] for row in found[kind]):.0f} us" for kind in kinds]
    lines = ["| " + " | ".join(totals) + " |", "|---" * len(kinds) + "|"]
    for number in range(min(most, max(len(found[kind]) for kind in kinds))):
        cells = []
        for kind in kinds:
            row = found[kind][number] if number < len(found[kind]) else None
            times = f" x{row['count']:g}" if row and row["count"] != 1 else ""
            cells.append(f"{row['us']:.0f} us{times} `{short(row['name'])}`" if row else "")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def short(name: str) -> str:
    """Returns the part of a library kernel's name that tells it from others."""
    name = name.removeprefix("void ").replace("|", "/")
    return name if len(name) <= 90 else name[:60] + ".." + name[-28:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", nargs="?", choices=("all", "warm", "time", "worker"), default="all")
    parser.add_argument("--list", action="store_true", help="print the drawn models")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes")
    parser.add_argument("--models", default="", help="names, with commas")
    parser.add_argument("--real", choices=("also", "only", "none"), default="also", help="the three real models")
    parser.add_argument("--seconds", type=float, default=0.8, help="spent on each timing")
    parser.add_argument("--cudnn-benchmark", action="store_true")
    parser.add_argument("--channels-last", action="store_true", help="inputs and weights")
    parser.add_argument("--workers", type=int, default=6, help="processes that warm up")
    parser.add_argument("--no-judge", action="store_true", help="leave out float64")
    parser.add_argument("--resume", action="store_true", help="leave out what is recorded")
    parser.add_argument("--profiles", action="store_true", help="of all models, not of those that lose alone")
    parser.add_argument("--limit-seconds", type=float, default=math.inf, help="of this call; what is measured is kept")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.ends = time.monotonic() + arguments.limit_seconds
    if arguments.list:
        print(model_list.listing(), end="")
        return 0
    if arguments.stage == "worker":
        worker(arguments)
        return 0
    if arguments.stage in ("all", "warm"):
        warm(arguments)
    return measure_all(arguments) if arguments.stage in ("all", "time") else 0


if __name__ == "__main__":
    sys.exit(main())
