"""How large our errors are beside eager's, result by result and gradient by gradient, over many draws.

    .venv/bin/python tests/python/audit.py --draws 100 [--above 1.5] [pytest's arguments]

runs tests that use `check`, and repeats each of their cases with other numbers: the elements of inputs and parameters
in another order. It prints the results whose error (root of the mean square over all draws) exceeds eager's, and fails
if one is above the limit. A single draw says little where a result is one number: eager's error may be close to 0.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from fusewright.judge.oracle import Run, errors

FILE, DRAWS = "FUSEWRIGHT_TEST_AUDIT", "FUSEWRIGHT_TEST_AUDIT_DRAWS"
ROUNDING = {torch.float32: 2.0**-24, torch.float64: 2.0**-53, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
TESTS = ("test_showcase.py", "test_operators.py", "test_training.py", "test_layouts.py")


def record(run: Run) -> None:
    """Called by `check` with each case that passed; writes nothing unless an audit runs."""
    path = os.environ.get(FILE)
    if path is None:
        return
    squares: dict[str, list[float]] = {}
    draws = int(os.environ[DRAWS])
    for seed in range(draws):
        eager, exact, fused = (run(who, _in_another_order(seed)) for who in ("eager", "exact", "fused"))
        for name, value in eager.items():
            if value is None or not value.is_floating_point() or not torch.isfinite(value).all():
                continue
            ours, theirs = errors(fused[name], exact[name])[0], errors(value, exact[name])[0]
            # Nobody can be closer than half a rounding: an error of eager's below that is luck.
            floor = ROUNDING[value.dtype] / math.sqrt(12 * value.numel()) if value.numel() else 0.0
            sums = squares.setdefault(name, [0.0, 0.0, 0.0, 0.0])
            for k, term in enumerate((ours**2, theirs**2, floor**2, 1.0)):
                sums[k] += term
    with Path(path).open("a") as file:
        for name, (ours, theirs, floor, count) in squares.items():
            row = {"test": os.environ.get("PYTEST_CURRENT_TEST", "").removesuffix(" (call)"), "name": name}
            row |= {"ours": math.sqrt(ours / count), "eager": math.sqrt(max(theirs, floor) / count)}
            file.write(json.dumps(row) + "\n")


def _in_another_order(seed: int) -> Callable[[torch.Tensor], torch.Tensor]:
    generator = torch.Generator("cpu").manual_seed(seed)

    def reorder(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or tensor.numel() < 2:
            return tensor
        order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
        return tensor.detach().flatten()[order].view(tensor.shape)

    return reorder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--above", type=float, default=1.5)
    parser.add_argument("pytest", nargs="*", help="tests, default: " + " ".join(TESTS))
    options, rest = parser.parse_known_args()
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        path.touch()
        environment = os.environ | {FILE: str(path), DRAWS: str(options.draws)}
        chosen = options.pytest or [str(here / name) for name in TESTS]
        command = [sys.executable, "-m", "pytest", "-q", *chosen, *rest]
        tests = subprocess.run(command, env=environment).returncode
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["ratio"] = row["ours"] / row["eager"] if row["eager"] else (math.inf if row["ours"] else 0.0)
    rows.sort(key=lambda row: -row["ratio"])
    above = [row for row in rows if row["ratio"] > options.above]
    print(f"{len(rows)} results over {options.draws} draws; {len(above)} above {options.above:g} times eager's error")
    print("| ratio | ours | eager | result | test |\n|---|---|---|---|---|")
    for row in rows[: max(20, len(above))]:
        name = row["test"].rpartition("/")[2]
        print(f"| {row['ratio']:.2f} | {row['ours']:.1e} | {row['eager']:.1e} | {row['name']} | {name} |")
    sys.exit(tests or bool(above))


if __name__ == "__main__":
    main()
