"""Every float32 number through every function of one argument, against float64: errors in units of the last place.

    python bench/gpu_ulp.py                     all 2^32 patterns; writes gpu_ulp.{json,md} into the results folder
    python bench/gpu_ulp.py exp erf --bits 20   some functions, 2^20 patterns spread over all

The unit is the spacing of float32 at the exact result (2^-149 among denormals). Beside ours stands eager's error on the
same device. NaN, infinity and overflow are counted apart: they must stand where eager, or float64 rounded, has them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

try:
    import fusewright
except ImportError:  # built in place, not installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
    import fusewright

RESULTS = Path(os.environ.get("OUT") or Path(__file__).resolve().parents[1] / "build" / "gpu-results")
CHUNK = 2**24

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "erf": torch.erf,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sin": torch.sin,
    "cos": torch.cos,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "elu": F.elu,
    "log_sigmoid": F.logsigmoid,
}


class Worst:
    """The errors of one implementation over all chunks."""

    def __init__(self) -> None:
        self.ulp, self.at, self.total, self.count, self.above_one = 0.0, 0.0, 0.0, 0, 0

    def add(self, x: torch.Tensor, result: torch.Tensor, exact: torch.Tensor, unit: torch.Tensor, usual) -> None:
        off = torch.where(usual, (result.double() - exact).abs() / unit, 0.0)
        worst, place = off.max(0)
        if worst.item() > self.ulp:
            self.ulp, self.at = worst.item(), x[place].item()
        self.total += off.sum().item()
        self.count += int(usual.sum().item())
        self.above_one += int((off > 1).sum().item())

    def row(self) -> dict:
        mean = self.total / max(self.count, 1)
        return {"max_ulp": self.ulp, "at": self.at, "mean_ulp": mean, "above_one": self.above_one / max(self.count, 1)}


def unit_of(exact: torch.Tensor) -> torch.Tensor:
    """The spacing of float32 around a number."""
    exponent = torch.frexp(exact).exponent.to(torch.int32)
    return torch.ldexp(torch.ones_like(exact), (exponent - 24).clamp(min=-149))


def measure(name: str, device: torch.device, bits: int) -> dict:
    fn = FUNCTIONS[name]
    ours = fusewright.optimize(lambda x: fn(x * 1.0), strict=True)  # the product changes no number
    found, eager = Worst(), Worst()
    odd = 0
    examples: list[float] = []
    stride = 2 ** (32 - bits)
    chunk = min(CHUNK, 2**bits)
    for start in range(0, 2**bits, chunk):
        pattern = torch.arange(start, start + chunk, dtype=torch.int64, device=device) * stride
        if stride > 1:
            pattern += torch.randint(0, stride, pattern.shape, device=device)
        x = torch.where(pattern >= 2**31, pattern - 2**32, pattern).to(torch.int32).view(torch.float32)
        exact = fn(x.double())
        mine, theirs, rounded = ours(x), fn(x), exact.float()
        usual = exact.isfinite() & rounded.isfinite() & mine.isfinite()
        unit = unit_of(torch.where(usual, exact, 1.0))
        found.add(x, mine, exact, unit, usual)
        eager.add(x, theirs, exact, unit, usual & theirs.isfinite())
        same = [(mine == y) | (mine.isnan() & y.isnan()) for y in (theirs, rounded)]
        wrong = ~usual & ~same[0] & ~same[1]
        odd += int(wrong.sum().item())
        if len(examples) < 4:
            examples += x[wrong][:4].tolist()
    return {"fusewright": found.row(), "eager": eager.row(), "odd": odd, "odd_at": examples[:4]}


def markdown(results: dict) -> str:
    lines = [
        "# Errors in units of the last place, float32",
        "",
        f"`{results['command']}`, {results['date']}: {results['device']}, torch {results['torch']}, "
        f"2^{results['bits']} patterns. Exact: the same function in float64.",
        "",
        "| function | max | at | mean | above 1 | eager max | eager mean | NaN or infinity elsewhere |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in results["functions"].items():
        ours, eager = row["fusewright"], row["eager"]
        lines.append(
            f"| {name} | {ours['max_ulp']:.3g} | {ours['at']:.9g} | {ours['mean_ulp']:.3f} | {ours['above_one']:.2%} | "
            f"{eager['max_ulp']:.3g} | {eager['mean_ulp']:.3f} | {row['odd']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("functions", nargs="*", metavar="function", help=f"{', '.join(FUNCTIONS)}; all by default")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--bits", type=int, default=32, help="2^bits patterns are tried")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if unknown := set(options.functions) - set(FUNCTIONS):
        parser.error(f"no such function: {', '.join(sorted(unknown))}")
    device = torch.device(options.device)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "gpu_ulp.json"
    results = {
        "command": " ".join(["python bench/gpu_ulp.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "bits": options.bits,
        "functions": {},
    }
    if path.exists():  # restarted: what was measured with as many patterns is kept
        before = json.loads(path.read_text())
        if all(before.get(key) == results[key] for key in ("device", "torch", "bits")):
            results["functions"] = before["functions"]
    for name in options.functions or [name for name in FUNCTIONS if name not in results["functions"]]:
        start = time.perf_counter()
        results["functions"][name] = row = measure(name, device, options.bits)
        ours, eager = row["fusewright"], row["eager"]
        print(
            f"{name}: {ours['max_ulp']:.3g} ulp at {ours['at']:.9g} (eager {eager['max_ulp']:.3g}), "
            f"{row['odd']} odd, {time.perf_counter() - start:.1f} s",
            flush=True,
        )
        path.write_text(json.dumps(results, indent=1) + "\n")
        (options.out / "gpu_ulp.md").write_text(markdown(results))
    print(markdown(results))
    return 1 if any(row["odd"] for row in results["functions"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
