"""Times PyTorch's own convolutions on a GPU in both memory orders: where is cuDNN faster in channels last?

    python bench/gpu_layouts.py --out FOLDER                  writes gpu_layouts.{json,md}
    python bench/gpu_layouts.py --only transposed             rows whose name contains this
    python bench/gpu_layouts.py --device cpu --scale tiny     checks that the script itself works

Default flags: TF32 allowed in convolutions, cudnn.benchmark off. Each row is one convolution. For every element type it
times the forward and `aten.convolution_backward` with one mask (input, weight) and with both (joint), operands and
weights given row-major and given in channels last, and the copies from one order into the other. Calls of a row take
turns; 256 MB are written before each sample, so that nothing of the operands is in the L2 cache; the device waits while
the host queues the call; medians. The kernels behind each call are recorded once by the profiler: cuDNN's own
transposes have names.

The constants of the layout pass (src/passes/layout_cost.cpp) come from these numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

ROW_MAJOR, LAST = "row_major", "channels_last"
PARTS = ("forward", "input", "weight", "joint")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
RESULTS = Path(os.environ.get("OUT") or Path(__file__).resolve().parents[1] / "build" / "gpu-results")


@dataclass(frozen=True)
class Row:
    """A convolution of an image whose sides are all `size` pixels (3-d: a volume)."""

    rank: int
    transposed: bool
    batch: int
    inputs: int
    outputs: int
    size: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def name(self) -> str:
        kind = f"conv{'_transpose' * self.transposed}{self.rank}d"
        options = f"k{self.kernel} s{self.stride} p{self.padding}" + (f" g{self.groups}" if self.groups > 1 else "")
        return f"{kind} {self.inputs}->{self.outputs} {options} {self.batch}x{'x'.join([str(self.size)] * self.rank)}"


def rows_of(rank: int, transposed: bool, *shapes: tuple[int, ...]) -> list[Row]:
    return [Row(rank, transposed, *shape) for shape in shapes]


# Batch, channels in and out, side, kernel, stride, padding, groups. The first of each kind come first, so that a short
# run has some of all.
KINDS = [
    rows_of(2, True, (16, 64, 128, 128, 3, 2, 1), (16, 64, 64, 128, 4, 2, 1), (16, 32, 64, 128, 4, 2, 1),
            (32, 64, 64, 128, 3, 1, 1), (32, 128, 64, 64, 2, 2, 0), (32, 3, 16, 128, 3, 2, 1),
            (64, 16, 32, 64, 5, 2, 2), (16, 13, 31, 128, 3, 2, 1), (32, 512, 256, 16, 2, 2, 0),
            (16, 64, 64, 64, 7, 2, 3), (16, 64, 64, 64, 3, 3, 0)),
    rows_of(2, False, (16, 64, 64, 256, 3, 1, 0), (64, 64, 128, 64, 3), (64, 8, 64, 128, 3), (64, 3, 64, 224, 7, 2, 3),
            (64, 16, 64, 128, 3), (64, 64, 256, 56, 1), (64, 256, 64, 56, 1), (64, 128, 128, 28, 3, 1, 1),
            (64, 128, 128, 56, 3, 2, 1), (64, 512, 512, 7, 3, 1, 1), (64, 256, 512, 56, 1, 2, 0), (64, 3, 16, 128, 3),
            (32, 32, 64, 128, 5, 1, 2), (32, 13, 31, 128, 3, 1, 1), (32, 12, 60, 128, 3, 1, 1), (64, 512, 2048, 7, 1),
            (8, 64, 64, 256, 3, 1, 1), (32, 64, 3, 128, 3, 1, 1), (32, 64, 64, 128, 3, 1, 1, 64),
            (32, 64, 64, 128, 3, 1, 1, 4), (64, 8, 64, 32, 3), (2, 64, 64, 32, 3, 1, 1), (32, 64, 64, 126, 3, 3, 0)),
    # Depthwise: PyTorch has kernels of its own beside cuDNN's.
    rows_of(2, False, (64, 192, 192, 112, 1, 1, 0, 192), (64, 192, 192, 56, 3, 1, 1, 192),
            (64, 192, 192, 56, 5, 1, 2, 192), (64, 192, 192, 56, 3, 2, 1, 192), (32, 96, 96, 56, 7, 1, 3, 96),
            (64, 24, 24, 112, 3, 1, 1, 24), (64, 192, 384, 28, 3, 1, 1, 192)),
    rows_of(3, False, (16, 8, 32, 32, 3, 1, 1), (16, 3, 16, 32, 3), (8, 32, 64, 32, 3), (8, 64, 128, 16, 3, 1, 1),
            (8, 16, 32, 32, 5, 1, 2), (8, 64, 64, 32, 3, 2, 1), (8, 128, 256, 16, 1), (8, 13, 31, 24, 3, 1, 1),
            (8, 32, 64, 30, 3, 3, 0)),
    rows_of(3, True, (16, 32, 64, 16, 3, 2, 1), (16, 3, 16, 16, 3, 2, 1), (16, 16, 32, 16, 3, 2, 1),
            (16, 16, 64, 16, 4, 2, 1), (8, 32, 64, 16, 5, 2, 2), (8, 64, 64, 16, 3), (8, 128, 64, 16, 2, 2, 0),
            (8, 13, 31, 16, 3, 2, 1), (16, 64, 96, 13, 3, 3, 0), (8, 16, 48, 18, 3, 3, 1), (8, 32, 64, 12, 4, 4, 0)),
]  # fmt: skip
ROWS = [kind[i] for i in range(max(map(len, KINDS))) for kind in KINDS if i < len(kind)]


def shrunk(row: Row) -> Row:
    return replace(row, batch=1, size=9)


# ---- the calls -------------------------------------------------------------------------------------------------------


def lying(t: torch.Tensor, order: str) -> torch.Tensor:
    last = torch.channels_last if t.dim() == 4 else torch.channels_last_3d
    return t.contiguous(memory_format=last if order == LAST else torch.contiguous_format)


def order_of(t: torch.Tensor) -> str:
    last = torch.channels_last if t.dim() == 4 else torch.channels_last_3d
    return ROW_MAJOR if t.is_contiguous() else LAST if t.is_contiguous(memory_format=last) else "other"


class Calls:
    """The calls of one row in one element type, by name, and the bytes of their operands."""

    def __init__(self, row: Row, dtype: torch.dtype, device: torch.device):
        spatial = [row.size] * row.rank
        across = (row.inputs, row.outputs // row.groups) if row.transposed else (row.outputs, row.inputs // row.groups)
        self.options = ([row.stride] * row.rank, [row.padding] * row.rank, [1] * row.rank, row.transposed,
                        [0] * row.rank, row.groups)  # fmt: skip
        x = torch.randn(row.batch, row.inputs, *spatial, dtype=dtype, device=device)
        w = torch.randn(*across, *[row.kernel] * row.rank, dtype=dtype, device=device) * 0.05
        dy = torch.randn_like(self.forward(x, w))
        self.operands = {order: tuple(lying(t, order) for t in (x, w, dy)) for order in (ROW_MAJOR, LAST)}
        self.bytes = {name: t.numel() * t.element_size() for name, t in zip(("x", "w", "y"), (x, w, dy), strict=True)}
        self.calls: dict[str, Callable[[], object]] = {}
        for order, (x, w, dy) in self.operands.items():
            self.calls[f"forward {order}"] = lambda x=x, w=w: self.forward(x, w)
            for part in ("input", "weight", "joint"):
                self.calls[f"{part} {order}"] = lambda x=x, w=w, dy=dy, part=part: self.backward(dy, x, w, part)
            other = LAST if order == ROW_MAJOR else ROW_MAJOR
            for name, t in (("x", x), ("w", w), ("y", dy)):
                self.calls[f"copy {name} from {order}"] = lambda t=t, other=other: lying(t, other)
        self.calls["plain copy of y"] = lambda: self.operands[ROW_MAJOR][2].clone()

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.convolution(x, w, None, *self.options)

    def backward(self, dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, part: str) -> tuple[torch.Tensor, ...]:
        masks = {"input": [True, False, False], "weight": [False, True, False], "joint": [True, True, False]}
        return torch.ops.aten.convolution_backward(dy, x, w, None, *self.options, masks[part])

    def results(self) -> dict[str, list[str]]:
        """In which order each call's results lie."""
        found = {}
        for name, call in self.calls.items():
            if "copy" not in name:
                results = call()
                results = results if isinstance(results, tuple) else (results,)
                found[name] = [order_of(t) for t in results if t is not None]
        return found


# ---- timing ----------------------------------------------------------------------------------------------------------


class Timer:
    def __init__(self, device: torch.device, rounds: int):
        self.device, self.rounds = device, rounds
        self.flush = torch.empty(64 << 20 if device.type == "cuda" else 1, dtype=torch.int32, device=device)

    def seconds(self, calls: dict[str, Callable[[], object]]) -> dict[str, float]:
        samples = {name: [] for name in calls}
        for _ in range(self.rounds):
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            for name, call in calls.items():
                samples[name].append(self._sample(call))
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            samples = {name: [start.elapsed_time(end) / 1e3 for start, end in all] for name, all in samples.items()}
        return {name: statistics.median(all) for name, all in samples.items()}

    def _sample(self, call: Callable[[], object]):
        if self.device.type != "cuda":
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(200_000)  # about 0.1 ms, in which the host queues what follows
        self.flush.zero_()
        start.record()
        call()
        end.record()
        return start, end


def kernels_of(calls: dict[str, Callable[[], object]], device: torch.device) -> dict[str, list[list]]:
    """The names and microseconds of the kernels that each call launches; a fill of int64 stands between calls."""
    if device.type != "cuda":
        return {}
    marker = torch.empty(64, dtype=torch.int64, device=device)
    found: dict[str, list[list]] = {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        for call in calls.values():
            marker.fill_(1)
            call()
        torch.cuda.synchronize()
    events = [e for e in profiled.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    names = iter(calls)
    for event in sorted(events, key=lambda e: e.time_range.start):
        if "FillFunctor<long>" in event.name:
            kernels = found.setdefault(next(names), [])
        elif found:
            kernels.append([event.name[:140], round(event.device_time_total, 1)])
    return found


def measured(row: Row, dtype: torch.dtype, timer: Timer) -> dict:
    calls = Calls(row, dtype, timer.device)
    orders = calls.results()  # the first call of each is also the one that looks for a kernel
    return {
        "bytes": calls.bytes,
        "seconds": timer.seconds(calls.calls),
        "results": orders,
        "kernels": kernels_of({n: c for n, c in calls.calls.items() if "copy" not in n}, timer.device),
    }


# ---- what is written -------------------------------------------------------------------------------------------------


def moved(part: str) -> tuple[str, str]:
    """Which tensors, beside the weights, are copied into channels last for a call, and which one out of it."""
    return {"forward": ("x", "y"), "input": ("y", "x"), "weight": ("xy", ""), "joint": ("xy", "x")}[part]


def with_copies(seconds: dict[str, float], part: str) -> float:
    """Everything row-major outside: operands and weights copied in, the result of an image's size copied out."""
    into, out = moved(part)
    total = seconds[f"{part} {LAST}"] + seconds[f"copy w from {ROW_MAJOR}"]
    total += sum(seconds[f"copy {name} from {ROW_MAJOR}"] for name in into)
    return total + sum(seconds[f"copy {name} from {LAST}"] for name in out)


def markdown(document: dict) -> str:
    lines = [
        f"# cuDNN in both memory orders: {document['machine']}",
        "",
        f"torch {document['torch']}, cuDNN {document['cudnn']}. Microseconds row-major / channels last = ratio",
        "(above 1: channels last is faster); in brackets the ratio with every copy around the call. Last: the two",
        "gradients apart over the joint call.",
        "",
        "| convolution | dtype | forward | input | weight | joint | apart / joint, row-major, channels last |",
        "|---" * 7 + "|",
    ]
    for name, kinds in document["rows"].items():
        for dtype, row in kinds.items():
            if "error" in row:
                lines.append(f"| {name} | {dtype} | {row['error'][:100]} | | | | |")
                continue
            s = row["seconds"]
            cells = []
            for part in PARTS:
                a, b = s[f"{part} {ROW_MAJOR}"], s[f"{part} {LAST}"]
                cells.append(f"{a * 1e6:.0f} / {b * 1e6:.0f} = {a / b:.2f} ({a / with_copies(s, part):.2f})")
            apart = [(s[f"input {o}"] + s[f"weight {o}"]) / s[f"joint {o}"] for o in (ROW_MAJOR, LAST)]
            lines.append(f"| {name} | {dtype} | {' | '.join(cells)} | {apart[0]:.2f}, {apart[1]:.2f} |")
    if document["left_out"]:
        lines += ["", "Left out for lack of time: " + "; ".join(document["left_out"])]
    return "\n".join(lines) + "\n"


def save(document: dict, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu_layouts.json").write_text(json.dumps(document, indent=1))
    (folder / "gpu_layouts.md").write_text(markdown(document))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder for the results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=90, help="no row starts after this time")
    parser.add_argument("--scale", choices=("full", "tiny"), default="full")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no GPU: use --device cpu --scale tiny to check the script itself")
        return 2
    timer = Timer(device, options.rounds)
    document = {
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "machine": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "rows": {},
        "left_out": [],
    }
    start = time.monotonic()
    for row in ROWS:
        if options.only not in row.name:
            continue
        if time.monotonic() - start > options.seconds:
            document["left_out"].append(row.name)
            continue
        scaled = shrunk(row) if options.scale == "tiny" else row
        kinds = document["rows"][scaled.name] = {}
        for name, dtype in DTYPES.items():
            try:
                kinds[name] = measured(scaled, dtype, timer)
            except RuntimeError as error:  # a call that the library refuses is a result as well
                kinds[name] = {"error": f"{type(error).__name__}: {error}"}
        print(f"{time.monotonic() - start:5.1f} s  {scaled.name}", flush=True)
        save(document, options.out)
    save(document, options.out)
    print(markdown(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
