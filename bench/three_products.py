"""float32 matrix products from narrower ones, emulated: errors against float64.

    python bench/three_products.py          writes bench/results/three_products.md (two minutes on one core)
    python bench/three_products.py 64 512   these K, printed only

A tensor core multiplies numbers of 8 or 11 bits and adds the products up in float32. A float32 number is the sum of two
or three such numbers (a = hi + lo), so that a b is hi hi + hi lo + lo hi, and lo lo is small enough to be left out.
Nothing here needs a GPU: products of the parts are exact in float64, and one instruction's worth of them (`STEP` of K)
is added to the accumulator and rounded once, to nearest or, as tensor cores do it, towards zero. How many bits real
ones keep while they add within an instruction NVIDIA does not say; here they keep all.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from common import software

RESULTS = Path(__file__).resolve().parent / "results"
ROWS = COLUMNS = 48
SIZES = (64, 512, 2048, 8192)
STEP = 16  # of K in one instruction: m16n8k16; of TF32 half of it
PROMOTED = 128  # of K, after which a fresh accumulator begins

# ---- rounding ----------------------------------------------------------------------------------------------


def to_bf16(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def to_fp16(x: torch.Tensor) -> torch.Tensor:
    return x.half().float()


def to_tf32(x: torch.Tensor) -> torch.Tensor:
    """To 10 bits behind the point, ties to even; the exponent is float32's."""
    bits = x.contiguous().view(torch.int32)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
    return torch.where(x.isfinite(), rounded.view(torch.float32), x)


def towards_zero(x: torch.Tensor) -> torch.Tensor:
    """float64 to float32."""
    nearest = x.float()
    return torch.where(nearest.double().abs() > x.abs(), torch.nextafter(nearest, torch.zeros_like(nearest)), nearest)


def to_nearest(x: torch.Tensor) -> torch.Tensor:
    return x.float()


# ---- products ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """How a product of two float32 matrices is formed: pairs of parts (0 is hi, 1 is lo), the small ones first."""

    round: Callable[[torch.Tensor], torch.Tensor] | None = None  # None: the numbers as they are
    pairs: tuple[tuple[int, int], ...] = ((0, 0),)
    step: int = STEP
    accumulate: Callable[[torch.Tensor], torch.Tensor] = to_nearest
    promoted: int = 0  # 0: one accumulator for all of K
    scaled: bool = False  # rows of a and columns of b by powers of two, so that their largest is below 1

    def __call__(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if self.scaled:
            down_a, down_b = exponents(a, 1), exponents(b, 0)
            return torch.ldexp(self._product(torch.ldexp(a, -down_a), torch.ldexp(b, -down_b)), down_a + down_b)
        return self._product(a, b)

    def _product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        pieces = [(x.double(), y.double()) for x, y in self._pieces(a, b)]
        total = accumulator = torch.zeros(a.shape[0], b.shape[1])
        for k in range(0, a.shape[1], self.step):
            for x, y in pieces:
                terms = x[:, k : k + self.step] @ y[k : k + self.step]
                accumulator = self.accumulate(accumulator.double() + terms)
            if self.promoted and (k + self.step) % self.promoted == 0:
                total, accumulator = total + accumulator, torch.zeros_like(total)
        return total + accumulator

    def _pieces(self, a: torch.Tensor, b: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        if self.round is None:
            return [(a, b)]
        count = 1 + max(max(pair) for pair in self.pairs)
        parts_a, parts_b = split(a, self.round, count), split(b, self.round, count)
        return [(parts_a[i], parts_b[j]) for i, j in self.pairs]


def split(x: torch.Tensor, round_: Callable[[torch.Tensor], torch.Tensor], count: int) -> list[torch.Tensor]:
    """x = the sum of the parts, but for what is smaller than the last one's rounding."""
    parts = []
    for _ in range(count):
        parts.append(round_(x))
        x = x - parts[-1]  # exact in float32
    return parts


def exponents(x: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.frexp(x.abs().amax(dim, keepdim=True)).exponent


ONE, TWO, THREE = ((0, 0),), ((1, 0), (0, 0)), ((1, 0), (0, 1), (0, 0))
SIX = ((2, 0), (0, 2), (1, 1), *THREE)
METHODS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "1 bf16": Method(to_bf16, ONE),
    "2 bf16: only a is split": Method(to_bf16, TWO),
    "3 bf16": Method(to_bf16, THREE),
    "6 bf16: three parts": Method(to_bf16, SIX),
    "1 tf32": Method(to_tf32, ONE, STEP // 2),
    "2 tf32: only a is split": Method(to_tf32, TWO, STEP // 2),
    "3 tf32": Method(to_tf32, THREE, STEP // 2),
    "3 tf32, sums towards zero": Method(to_tf32, THREE, STEP // 2, accumulate=towards_zero),
    f"3 tf32, sums towards zero, promoted every {PROMOTED}": Method(
        to_tf32, THREE, STEP // 2, accumulate=towards_zero, promoted=PROMOTED
    ),
    "3 fp16, scaled rows": Method(to_fp16, THREE, scaled=True),
    f"3 fp16, scaled rows, sums towards zero, promoted every {PROMOTED}": Method(
        to_fp16, THREE, accumulate=towards_zero, promoted=PROMOTED, scaled=True
    ),
    "float32, one accumulator (FMA)": Method(step=1),
    "float32, PyTorch on this CPU": torch.matmul,
}

# ---- data --------------------------------------------------------------------------------------------------


def normal(k: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(ROWS, k), torch.randn(k, COLUMNS)


def positive(k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Nothing cancels: what is always rounded the same way adds up."""
    return torch.rand(ROWS, k), torch.rand(k, COLUMNS)


def wide_range(k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of twelve decades in every row, large ones of a times small ones of b: all products count."""
    scale = 10 ** (torch.rand(k) * 12 - 6)
    a, b = normal(k)
    return a * scale, b / scale[:, None]


def cancelling(k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The second half of K takes away all but a thousandth of what the first gave."""
    a, b = normal(k // 2)
    again_a, again_b = (x * (1 + 1e-3 * torch.randn_like(x)) for x in (a, b))
    return torch.cat([a, -again_a], 1), torch.cat([b, again_b])


DATA = {"normal": normal, "positive": positive, "wide range": wide_range, "cancelling": cancelling}

# ---- what is written ---------------------------------------------------------------------------------------


def measure(sizes: tuple[int, ...]) -> dict[str, dict[int, dict[str, float]]]:
    """Data, K, method: the norm of the error over the norm of the exact result."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for name, draw in DATA.items():
        for k in sizes:
            print(f"{name}, K = {k}", file=sys.stderr, flush=True)
            torch.manual_seed(k)
            a, b = draw(k)
            exact = a.double() @ b.double()
            found.setdefault(name, {})[k] = {
                method: ((product(a, b).double() - exact).norm() / exact.norm()).item()
                for method, product in METHODS.items()
            }
    return found


def table(head: list[str], cells: Callable[[str], list[float]]) -> list[str]:
    lines = ["| products | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    return lines + [f"| {name} | " + " | ".join(f"{value:.1e}" for value in cells(name)) + " |" for name in METHODS]


def markdown(found: dict[str, dict[int, dict[str, float]]], command: str) -> str:
    largest, made = max(next(iter(found.values()))), software()
    lines = ["# float32 products from narrower ones: errors against float64", ""]
    lines += [
        f"`{command}`, {made['date']}, commit {made['commit'] or 'none'}, torch {made['torch']}: emulated on the CPU.",
        f"The norm of the error over the norm of the exact result, of {ROWS}x{COLUMNS} elements. What is modelled, and "
        "what is not, stands in `bench/three_products.py`.",
    ]
    lines += ["", f"## All data, K = {largest}", ""]
    lines += table(list(found), lambda method: [by_size[largest][method] for by_size in found.values()])
    for name, by_size in found.items():
        title = f"{name[0].upper()}{name[1:]}"
        lines += ["", f"## {title}", ""]
        lines += table([f"K = {k}" for k in by_size], lambda m, d=by_size: [row[m] for row in d.values()])
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, metavar="K", help="even numbers; all of the table by default")
    options = parser.parse_args()
    if any(k < 2 or k % 2 for k in options.sizes):
        parser.error("K is even and at least 2")
    text = markdown(measure(tuple(options.sizes) or SIZES), " ".join(["python bench/three_products.py", *sys.argv[1:]]))
    print(text)
    if not options.sizes:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "three_products.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
