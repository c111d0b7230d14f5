"""Runs what compute-sanitizer checks: every row of the operator table, the four models and every candidate of columns
and groups, forward and backward, small.

    compute-sanitizer --tool memcheck python tests/gpu/sanitize.py
    python tests/gpu/sanitize.py --device cpu --only gelu        that the script itself works

No comparisons: eager's kernels would be watched too, and take most of the time. Each name is printed before it runs, so
that a report of the sanitizer stands below the operator it belongs to. Ends after --seconds and says what is left;
--skip starts further down the list.

racecheck itself fails ("failed to handle a hardware exception") where cuDNN's kernels run, though it watches only ours:
--leave-out conv. memcheck has no such trouble, and finds nothing there.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python")]
try:
    import fusewright
except ImportError:
    sys.path[:0] = [str(ROOT / "python")]
    import fusewright


def cases(device: torch.device) -> dict:
    """Functions that make a callable and its arguments on the device."""
    os.environ["FUSEWRIGHT_TEST_DEVICE"] = device.type
    import showcase
    from check import lay_out, place
    from test_operators import ENTRIES

    found = {}
    for name, (fn, inputs) in ENTRIES.items():
        found[name] = lambda fn=fn, inputs=inputs: (place(fn), [place(x) for x in inputs()])
    for name in showcase.NAMES:
        for size in (0, 2):
            key = f"{name} {showcase.SIZES[name][size]}"
            found[key] = lambda n=name, s=size: (place(showcase.make(n)), [place(showcase.inputs(n, s))])
    for name in (showcase.CONV, showcase.CONV_TRANSPOSE):
        found[f"{name} channels_last"] = lambda n=name: (
            place(showcase.make(n)),
            [lay_out(place(showcase.inputs(n)), "channels_last")],
        )
    for dtype in (torch.float16, torch.bfloat16):
        for name in showcase.NAMES:
            found[f"{name} {dtype}"] = lambda n=name, d=dtype: (
                place(showcase.make(n)).to(d),
                [place(showcase.inputs(n)).to(d)],
            )
    # Every way to launch what has the most of them, clusters of blocks among them.
    for number in range(11):
        found[f"columns, candidate {number}"] = lambda k=number: in_way(k, place(torch.nn.BatchNorm1d(40)), 1024, 40)
        found[f"groups, candidate {number}"] = lambda k=number: in_way(k, place(torch.nn.GroupNorm(32, 256)), 600, 256)
    for number in range(4):
        instances = torch.nn.InstanceNorm2d(8, affine=True)
        found[f"rows, candidate {number}"] = lambda k=number, m=instances: in_way(k, place(m), 20, 8, 160, 160)
    return found


def in_way(number: int, norm: torch.nn.Module, *sizes: int) -> tuple:
    from check import place

    fusewright._core.force_candidate(number)
    return torch.nn.Sequential(norm, torch.nn.SiLU()), [place(torch.randn(sizes))]


def run(make) -> None:
    try:
        fn, inputs = make()
        leaves = [x.requires_grad_(x.is_floating_point()) if isinstance(x, torch.Tensor) else x for x in inputs]
        ours = fusewright.optimize(fn, strict=True, dynamic=True if any(isinstance(x, float) for x in leaves) else None)
        results = [y for y in pytree.tree_leaves(ours(*leaves)) if isinstance(y, torch.Tensor) and y.requires_grad]
        if results:
            torch.autograd.backward(results, [torch.ones_like(y) for y in results])
    finally:
        fusewright._core.force_candidate(-1)  # in_way's


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--leave-out", help="not names that contain this")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many from the start")
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    device = torch.device(options.device)
    chosen = [(name, make) for name, make in cases(device).items() if options.only in name]
    chosen = [(name, make) for name, make in chosen if not options.leave_out or options.leave_out not in name]
    chosen = chosen[options.skip :]
    end = time.monotonic() + options.seconds
    for number, (name, make) in enumerate(chosen):
        if time.monotonic() > end:
            print(f"sanitize: out of time, {len(chosen) - number} left: --skip {options.skip + number}", flush=True)
            return 3
        print(f"sanitize: {name}", flush=True)
        torch.manual_seed(0)
        torch._dynamo.reset()
        run(make)
        if device.type == "cuda":
            torch.cuda.synchronize()
    counts = fusewright.stats()
    print(f"sanitize: {len(chosen)} cases, {counts['region_calls']} region calls", flush=True)
    return 0 if counts["fallback_calls"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
