"""The numbers of the GPU backend: chains alone, the four models, host time, first calls, memory.

    python bench/gpu_chains.py                          everything; writes gpu_chains.{json,md} into the results folder
    python bench/gpu_chains.py chains --only groupnorm  rows whose name contains this
    python bench/gpu_chains.py --quick                  fewer rounds, no torch.compile
    python bench/gpu_chains.py layers                   layers of other models (not in "everything")
    python bench/gpu_chains.py --device cpu --scale tiny --quick    that the script itself works

Method: candidates take turns in one process on inputs drawn afresh for every round; before each sample 256 MB are
written, so that nothing of the inputs is in the L2 cache; device events around one call, with the host far enough ahead
that the device does not wait for it; medians and quartiles over the rounds, ratios as medians of the rounds' ratios;
results are checked against float64 after timing. "Percent of copy" is the time of a copy that moves the same minimal
bytes (each input read once, each result written once), one of the candidates of the same run, over the time.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

try:
    import fusewright
except ImportError:  # built in place, not installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
    import fusewright
import common
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
)

from fusewright.benchmark.candidates import OURS, Candidate
from fusewright.benchmark.first_call import first_calls
from fusewright.benchmark.floor import copy_of
from fusewright.benchmark.measure import Timing, interleaved, speedup, synchronize
from fusewright.benchmark.memory import memory_of
from fusewright.benchmark.profiling import profiled
from fusewright.models import load
from fusewright.units import show_seconds

RESULTS = Path(os.environ.get("OUT") or Path(__file__).resolve().parents[1] / "build" / "gpu-results")

# ---- the chains ------------------------------------------------------------------------------------------------------


class LeakyMulLeakyMaxPool(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.multiplier = nn.Parameter(torch.randn(channels, 1, 1, 1))

    def forward(self, x):
        x = F.leaky_relu(F.leaky_relu(x, 0.2) * self.multiplier, 0.2)
        return F.max_pool3d(x, 2)


class BatchNormBiasDivideSwish(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)
        self.bias = nn.Parameter(torch.randn(1))

    def forward(self, x):
        x = (self.norm(x) + self.bias) / 1.5
        return x * torch.sigmoid(x)


class GeluSoftmaxTanh(nn.Module):
    def forward(self, x):
        return torch.tanh(F.softmax(F.gelu(x), dim=-1) * 2)


class ScaleBiasSoftmax(nn.Module):
    """Attention's: scores times a scale, plus a bias for each key."""

    def __init__(self, keys: int):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(keys))

    def forward(self, x):
        return F.softmax(x * 0.125 + self.bias, dim=-1)


class LayerNormGelu(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return F.gelu(self.norm(x)) * 0.5


class RmsNormSwish(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.norm = nn.RMSNorm(features, eps=1e-5)

    def forward(self, x):
        return F.silu(self.norm(x))


@dataclass(frozen=True)
class Row:
    """A chain, the shape of its input, a tiny one, and the bars: percent of copy, forward and backward."""

    make: Callable[[tuple[int, ...]], nn.Module]
    shape: tuple[int, ...]
    tiny: tuple[int, ...]
    forward: int | None
    backward: int | None


CHAINS = {
    "mul leaky_relu gelu 64x64x254x254": Row(
        lambda s: MulLeakyGelu(s[1]), (64, 64, 254, 254), (2, 4, 14, 14), 90, 85
    ),
    "leaky_relu mul leaky_relu max_pool3d 16x32x32x64x64": Row(
        lambda s: LeakyMulLeakyMaxPool(s[1]), (16, 32, 32, 64, 64), (2, 4, 4, 8, 8), 85, None
    ),
    "groupnorm(256) swish mul swish 1024x8192": Row(
        lambda s: GroupNormSwishMulSwish(s[1] // 32, s[1]), (1024, 8192), (16, 128), 85, 85
    ),
    "groupnorm(32) swish mul swish 65536x1024": Row(
        lambda s: GroupNormSwishMulSwish(s[1] // 32, s[1]), (65536, 1024), (64, 64), 85, 85
    ),
    "groupnorm(256) swish mul swish 65536x1024": Row(
        lambda s: GroupNormSwishMulSwish(s[1] // 4, s[1]), (65536, 1024), (64, 64), 85, 85
    ),
    "batchnorm bias divide swish 1024x8192": Row(
        lambda s: BatchNormBiasDivideSwish(s[1]), (1024, 8192), (16, 128), 75, 75
    ),
    "batchnorm bias divide swish 65536x512": Row(
        lambda s: BatchNormBiasDivideSwish(s[1]), (65536, 512), (64, 32), 75, 75
    ),
    "mul add softmax 8192x4096": Row(lambda s: ScaleBiasSoftmax(s[1]), (8192, 4096), (32, 64), 90, None),
    "gelu softmax mul tanh 8192x4096": Row(lambda s: GeluSoftmaxTanh(), (8192, 4096), (32, 64), 90, None),
    "layernorm gelu mul 8192x4096": Row(lambda s: LayerNormGelu(s[1]), (8192, 4096), (32, 64), 90, None),
    "rmsnorm swish 8192x4096": Row(lambda s: RmsNormSwish(s[1]), (8192, 4096), (32, 64), 90, None),
}  # fmt: skip


class SoftmaxOverChannels(nn.Module):
    def forward(self, x):
        return F.softmax(x * 2, 1)


class SqueezeExcite(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x.mean((2, 3), keepdim=True))


def norm(make: Callable[[tuple[int, ...]], nn.Module], act: type[nn.Module]) -> Callable:
    return lambda shape: nn.Sequential(make(shape), act())


# Layers of other models: long rows and short ones, few and many.
LAYERS = {
    f"{name} {'x'.join(map(str, shape))}": Row(make, shape, tiny, None, None)
    for name, make, shape, tiny in (
        ("groupnorm(32) silu", norm(lambda s: nn.GroupNorm(32, s[1]), nn.SiLU), (4, 256, 64, 64), (2, 32, 4, 4)),
        ("groupnorm(32) silu", norm(lambda s: nn.GroupNorm(32, s[1]), nn.SiLU), (16, 256, 32, 32), (2, 32, 8, 4)),
        ("groupnorm(8) silu", norm(lambda s: nn.GroupNorm(8, s[1]), nn.SiLU), (16, 64, 128, 128), (2, 8, 4, 4)),
        ("instancenorm relu", norm(lambda s: nn.InstanceNorm2d(s[1], affine=True), nn.ReLU), (8, 64, 256, 256),
         (2, 3, 8, 8)),
        ("batchnorm2d relu", norm(lambda s: nn.BatchNorm2d(s[1]), nn.ReLU), (64, 64, 128, 128), (2, 4, 8, 8)),
        ("batchnorm2d relu", norm(lambda s: nn.BatchNorm2d(s[1]), nn.ReLU), (32, 256, 28, 28), (2, 8, 7, 7)),
        ("layernorm gelu", norm(lambda s: nn.LayerNorm(s[-1]), nn.GELU), (8, 1024, 768), (2, 4, 48)),
        ("layernorm of images silu", norm(lambda s: nn.LayerNorm(s[1:]), nn.SiLU), (16, 64, 256, 128), (2, 3, 8, 4)),
        ("log_softmax", lambda s: nn.LogSoftmax(-1), (4096, 32000), (4, 96)),
        ("softmax over channels", lambda s: SoftmaxOverChannels(), (16, 21, 256, 256), (2, 5, 4, 4)),
        ("squeeze excite", lambda s: SqueezeExcite(), (32, 256, 56, 56), (2, 8, 7, 7)),
    )
}  # fmt: skip


# ---- timing ----------------------------------------------------------------------------------------------------------


def backward_of(candidate: Candidate) -> Callable:
    """The forward is run, and its backward is what is timed."""

    def prepare(*arguments):
        *inputs, gradient = arguments
        output = candidate.call(*inputs)
        leaves = [*inputs, *candidate.model.parameters()]
        return lambda: torch.autograd.grad(output, leaves, gradient)

    return prepare


def bytes_of(*tensors: torch.Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def time_model(model: nn.Module, draw: Callable[[], list[torch.Tensor]], options, with_copy: bool) -> dict:
    inputs = draw()
    with torch.no_grad():
        output = copy.deepcopy(model)(*inputs)
    moved = {"forward": bytes_of(*inputs, output), "backward": 2 * bytes_of(*inputs) + bytes_of(output)}
    shape, dtype, device = output.shape, output.dtype, output.device
    del inputs, output

    def fresh() -> list[torch.Tensor]:
        return [t.requires_grad_() for t in draw()] + [torch.randn(shape, dtype=dtype, device=device)]

    candidates = candidates_of(model, fresh(), options.compile)
    budget = {"seconds": options.seconds, "rounds": options.rounds}
    result: dict = {"bytes": moved}
    with torch.no_grad():
        forwards = {name: forward_of(c) for name, c in candidates.items()}
        if with_copy:
            forwards["copy"] = copy_of(moved["forward"], device)
        result["forward"] = timings(interleaved(forwards, fresh, **budget))
    if with_copy:
        backwards = {name: backward_of(c) for name, c in candidates.items()}
        copied = copy_of(moved["backward"], device)
        backwards["copy"] = lambda *a: lambda: copied()
        result["backward"] = timings(interleaved(backwards, fresh, prepared=True, **budget))
    steps = {name: step_of(c) for name, c in candidates.items()}
    result["step"] = timings(interleaved(steps, fresh, **budget))

    verdicts = judged(candidates, fresh)
    result["problems"] = [verdict.problem for verdict in verdicts if not verdict.ok]
    result["error"] = {v.name: [v.error, v.eager_error] for v in verdicts}
    if device.type == "cuda":
        *inputs, gradient = fresh()
        result["kernels"] = profile(step_of(candidates[OURS]), [*inputs, gradient])
        result["memory"] = {
            name: asdict(memory_of(c.model, c.call, inputs, [gradient])) for name, c in candidates.items()
        }
    return result


def timings(found: dict[str, Timing]) -> dict:
    rows = common.timings(found)
    if "copy" in found:  # how much of the copy's speed each one has
        for name, timing in found.items():
            rows[name]["of_copy"] = speedup(found["copy"], timing)
    return rows


def profile(step: Callable, arguments: list[torch.Tensor]) -> list[dict]:
    """The device's work in one step, kernel by kernel."""
    try:
        with profiled() as found:
            step(*arguments)
            torch.cuda.synchronize()
    except Exception as error:  # a profiler that does not work here must not cost the numbers
        return [{"name": f"n/a: {type(error).__name__}", "us": 0.0}]
    on_device = torch.autograd.DeviceType.CUDA
    events = [e for e in found.events() if e.device_type == on_device and "Memset" not in e.name]
    return [{"name": e.name[:120], "us": e.device_time_total} for e in events]


# ---- the parts -------------------------------------------------------------------------------------------------------


def chains(options, done: dict, table: dict[str, Row] = CHAINS) -> None:
    for name, row in chosen(table, options, done):
        shape = row.tiny if options.scale == "tiny" else row.shape
        with options.device:
            model = row.make(shape).to(options.device)
        done[name] = time_model(model, lambda s=shape: [torch.randn(s, device=options.device)], options, True)
        done[name]["bars"] = {"forward": row.forward, "backward": row.backward}
        report(name, done[name])


def layers(options, done: dict) -> None:
    chains(options, done, LAYERS)


def models(options, done: dict) -> None:
    scale = "small" if options.scale == "tiny" else options.scale
    for name, path in chosen(showcase(), options, done):
        file = load(path)
        model = file.build(scale, 0, options.device)
        draw = lambda file=file: file.inputs(scale, options.device)  # noqa: E731
        done[name] = time_model(model, draw, options, False)
        report(name, done[name])


def host(options, done: dict) -> None:
    """Times a call on the host, with tensors so small that the device has nothing to do."""
    tiny = {"mul leaky_relu gelu": CHAINS["mul leaky_relu gelu 64x64x254x254"]}
    tiny["groupnorm swish mul swish"] = CHAINS["groupnorm(256) swish mul swish 1024x8192"]
    for name, row in chosen(tiny, options, done):
        with options.device:
            model = row.make(row.tiny).to(options.device)
        x = torch.randn(row.tiny, device=options.device, requires_grad=True)
        found = candidates_of(model, [x, torch.ones_like(model(x))], options.compile)
        done[name] = {}
        for kind, candidate in found.items():
            call = candidate.call
            with torch.no_grad():
                forward = per_call(lambda call=call, x=x: call(x), x)
            gradient = torch.ones_like(call(x))
            step = per_call(lambda call=call, x=x, g=gradient: call(x).backward(g), x, calls=200)
            done[name][kind] = {"forward_s": forward, "step_s": step}
        done[name]["region alone"] = {"forward_s": region_alone(model, x)}
        plain = x.detach()  # one operator of PyTorch's: hosts differ, and so does one from hour to hour
        done[name]["torch.add alone"] = {"forward_s": per_call(lambda x=plain: torch.add(x, x), x)}
        print(f"  {name}: {done[name]}", flush=True)


def per_call(call: Callable[[], object], x: torch.Tensor, calls: int = 1000) -> float:
    """Seconds a call, the best of five runs of many: the queue of the device never fills up."""
    best = float("inf")
    for _ in range(5):
        synchronize([x])
        start = time.perf_counter()
        for number in range(calls):
            call()
            if number % 100 == 99:
                paused = time.perf_counter()
                synchronize([x])
                start += time.perf_counter() - paused
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def region_alone(model: nn.Module, x: torch.Tensor) -> float:
    """The operator that a captured graph calls, without Dynamo's guards around it."""
    import contextlib

    from fusewright.capture.backend import Session, Stop
    from fusewright.capture.capture import capture

    session = Session("host", record=True)
    with contextlib.suppress(Stop), torch.no_grad():
        capture(model._call_impl, session, None)(x)
    (region,) = session.captured[0].regions
    parameters = dict(model.named_parameters())
    tensors = []
    for node in region.imported.inputs:
        size = tuple(node.meta["val"].shape)
        known = [p for p in parameters.values() if tuple(p.shape) == size]
        tensors.append((x if size == tuple(x.shape) else known[0]).detach())
    run, handle = fusewright._core.run_region, region.compiled.handle
    with torch.no_grad():
        for _ in range(4):
            run(handle, tensors, [])
            fusewright._core.finish_compiling()  # in the background; then a call times it
        return per_call(lambda: run(handle, tensors, []), x)


def first(options, done: dict) -> None:
    scale = "small" if options.scale == "tiny" else options.scale
    for name, path in chosen(showcase(), options, done):
        done[name] = first_calls(load(path), scale, options.device)
        print(f"  {name}: " + ", ".join(f"{k} {show_seconds(v['seconds'])}" for k, v in done[name].items()), flush=True)


PARTS = {"chains": chains, "models": models, "host": host, "first": first, "layers": layers}
USUAL = [name for name in PARTS if name != "layers"]  # of a whole run
BAR_MODELS = {"conv2d_mul_leakyrelu_gelu": 2.4, "convtranspose3d_leakyrelu_mul_leakyrelu_maxpool": 2.0}


def chosen(table: dict, options, done: dict):
    """The rows that are wanted; a second start of the same run leaves out what is recorded already."""
    for name, value in table.items():
        if options.only in name and (options.only or name not in done):
            print(name, flush=True)
            yield name, value
            options.save()


def report(name: str, row: dict) -> None:
    for phase in ("forward", "backward", "step"):
        if phase in row:
            cells = [f"{kind} {show_seconds(t['median_s'])}" for kind, t in row[phase].items()]
            of_copy = row[phase]["fusewright"].get("of_copy")
            cells += [f"= {of_copy:.0%} of copy"] if of_copy else []
            print(f"  {phase}: " + ", ".join(cells), flush=True)
    for problem in row["problems"]:
        print(f"  WRONG: {problem}", flush=True)


# ---- what is written -------------------------------------------------------------------------------------------------


def machine(device: torch.device) -> dict:
    name = platform.machine()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return {
        "device": name,
        **software(),
        "cuda": torch.version.cuda,
        "tf32": {
            "matmul": torch.backends.cuda.matmul.allow_tf32,
            "convolution": torch.backends.cudnn.allow_tf32,
        },
    }


def markdown(results: dict) -> str:
    facts = results["machine"]
    lines = [
        "# GPU numbers",
        "",
        f"`{results['command']}`, {facts['date']}, commit {facts['commit'] or 'unknown'}: {facts['device']}, "
        f"torch {facts['torch']}, {results['scale']} sizes. TF32: {facts['tf32']}.",
        "The method stands in `bench/gpu_chains.py`; quartiles, errors and kernels in the JSON file.",
    ]
    for part, title in (("chains", "Chains alone"), ("layers", "Layers")):
        if not results.get(part):
            continue
        lines += ["", f"## {title}", ""]
        lines += [
            f"| {part[:-1]} | phase | copy | fusewright | of copy | bar | torch.compile | eager | vs compile | right |"
        ]
        lines += ["|---" * 10 + "|"]
        for name, row in results[part].items():
            for phase in ("forward", "backward", "step"):
                found = row[phase]
                bar = row["bars"].get(phase)
                cells = [seconds(found, "copy"), seconds(found, "fusewright"), percent(found["fusewright"])]
                cells += [f"{bar} %" if bar else "", compared(found, "torch.compile"), compared(found, "eager")]
                cells += [times(found, "torch.compile"), "; ".join(row["problems"]) or "yes"]
                lines.append(f"| {name} | {phase} | " + " | ".join(cells) + " |")
    if results.get("models"):
        lines += ["", "## The four models, library contractions", ""]
        lines += ["| model | phase | fusewright | eager | vs eager | bar | torch.compile | vs compile | right |"]
        lines += ["|---" * 9 + "|"]
        for name, row in results["models"].items():
            for phase in ("forward", "step"):
                found = row[phase]
                bar = f"{BAR_MODELS[name]}x" if phase == "forward" and name in BAR_MODELS else ""
                cells = [seconds(found, "fusewright"), seconds(found, "eager"), times(found, "eager"), bar]
                cells += [seconds(found, "torch.compile"), times(found, "torch.compile")]
                lines.append(
                    f"| {name} | {phase} | " + " | ".join(cells) + f" | {'; '.join(row['problems']) or 'yes'} |"
                )
    with_memory = {**results.get("chains", {}), **results.get("layers", {}), **results.get("models", {})}
    with_memory = {name: row["memory"] for name, row in with_memory.items() if "memory" in row}
    if with_memory:
        lines += memory_table(with_memory)
    if results.get("host"):
        lines += ["", "## Host time of a call, tiny tensors: forward / forward and backward", ""]
        for name, row in results["host"].items():
            cells = []
            for kind, found in row.items():
                step = f" / {show_seconds(found['step_s'])}" if "step_s" in found else ""
                cells.append(f"{kind} {show_seconds(found['forward_s'])}{step}")
            lines.append(f"- {name}: " + ", ".join(cells))
    if results.get("first"):
        lines += first_call_table(results["first"])
    return "\n".join(lines) + "\n"


def seconds(found: dict, name: str) -> str:
    return show_seconds(found[name]["median_s"]) if name in found else "n/a"


def percent(row: dict) -> str:
    return f"{row['of_copy']:.0%}" if "of_copy" in row else ""


def compared(found: dict, name: str) -> str:
    """Time, and where there is a copy to compare with, its share of it."""
    return f"{seconds(found, name)} {percent(found[name])}".strip() if name in found else "n/a"


def times(found: dict, name: str) -> str:
    return f"{found[name]['fusewright_speedup']:.2f}x" if name in found else "n/a"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}; all but layers by default")
    parser.add_argument("--only", default="", help="rows whose name contains this, measured again")
    parser.add_argument("--quick", action="store_true", help="few rounds, no torch.compile")
    parser.add_argument("--compile", action="store_true", help="torch.compile with --quick too")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--scale", choices=("full", "tiny"), default="full")
    parser.add_argument("--seconds", type=float, default=None, help="time spent on each timing")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of gpu_chains.json and gpu_chains.md")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    options.device = torch.device(options.device)
    options.seconds = options.seconds or (0.2 if options.quick else 1.0)
    options.rounds = (5, 100) if options.quick else (15, 300)
    options.compile = options.compile or not options.quick

    torch.manual_seed(0)
    command = " ".join(["python bench/gpu_chains.py", *sys.argv[1:]])
    results = {"command": command, "scale": options.scale, "machine": machine(options.device)}
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / ("gpu_chains_quick.json" if options.quick else "gpu_chains.json")
    if path.exists():  # started again: what was recorded on the same machine and commit stays
        before = json.loads(path.read_text())
        same = all(before["machine"].get(key) == results["machine"][key] for key in ("device", "torch", "commit"))
        if same and before["scale"] == options.scale:
            results |= {part: before[part] for part in PARTS if part in before}

    def save() -> None:
        path.write_text(json.dumps(results, indent=1) + "\n")
        path.with_suffix(".md").write_text(markdown(results))

    options.save = save
    for part in options.parts or USUAL:
        PARTS[part](options, results.setdefault(part, {}))
        save()
    print(markdown(results))
    rows = [row for part in ("chains", "models") for row in results.get(part, {}).values()]
    return 1 if any(row["problems"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
