"""Our convolution kernels beside cuDNN's on a GPU: the result and both gradients, each alone.

    python bench/gpu_convolutions.py [--only WORDS] [--out FOLDER]

Device time of all kernels of a call, from the profiler, median of calls with a cold L2 cache. cuDNN is timed with
row-major tensors and in channels last; ours in both, too. "error" is the relative L2 distance to float64, ours /
cuDNN's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

os.environ["FUSEWRIGHT_CONVOLUTION"] = "own"

import torch
import torch.nn.functional as F
from common import software
from torch.profiler import ProfilerActivity, profile

import fusewright

# name: function, image, weight, options
CASES = {
    "64>64 k3 64x256": (F.conv2d, (64, 64, 256, 256), (64, 64, 3, 3), {}),
    "64>128 k3 32x128": (F.conv2d, (32, 64, 128, 128), (128, 64, 3, 3), {"padding": 1}),
    "128>128 k3 64x28": (F.conv2d, (64, 128, 28, 28), (128, 128, 3, 3), {"padding": 1}),
    "256>256 k3 64x14": (F.conv2d, (64, 256, 14, 14), (256, 256, 3, 3), {"padding": 1}),
    "512>512 k3 64x7": (F.conv2d, (64, 512, 7, 7), (512, 512, 3, 3), {"padding": 1}),
    "256>64 k1 64x56": (F.conv2d, (64, 256, 56, 56), (64, 256, 1, 1), {}),
    "3>64 k7 s2 64x224": (F.conv2d, (64, 3, 224, 224), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    "8>64 k3 128x128": (F.conv2d, (128, 8, 128, 128), (64, 8, 3, 3), {}),
    "3>24 k3 128x32^3": (F.conv3d, (16, 3, 32, 64, 64), (24, 3, 3, 3, 3), {}),
    "8>16 3d k3": (F.conv3d, (32, 8, 32, 64, 64), (16, 8, 3, 3, 3), {"padding": 1}),
    "32>64 3d k3": (F.conv3d, (8, 32, 16, 64, 64), (64, 32, 3, 3, 3), {"padding": 1}),
    "64>96 k5 s2": (F.conv2d, (16, 64, 128, 128), (96, 64, 5, 5), {"stride": 2}),
    "t 64>64 k4 s2": (F.conv_transpose2d, (32, 64, 64, 64), (64, 64, 4, 4), {"stride": 2, "padding": 1}),
    "t 64>128 k3 s2": (
        F.conv_transpose2d,
        (16, 64, 128, 128),
        (64, 128, 3, 3),
        {"stride": 2, "padding": 1, "output_padding": 1},
    ),
    "t 16>32 3d k3 s2": (
        F.conv_transpose3d,
        (16, 16, 16, 32, 32),
        (16, 32, 3, 3, 3),
        {"stride": 2, "padding": 1, "output_padding": 1},
    ),
    "t 32>64 3d k3 s2": (F.conv_transpose3d, (16, 32, 16, 32, 32), (32, 64, 3, 3, 3), {"stride": 2, "padding": 1}),
    "t 3>16 3d k3 s2": (F.conv_transpose3d, (16, 3, 16, 32, 32), (3, 16, 3, 3, 3), {"stride": 2, "padding": 1}),
    "t 384>128 k5 s2": (
        F.conv_transpose2d,
        (8, 384, 56, 56),
        (384, 128, 5, 5),
        {"stride": 2, "padding": 2, "output_padding": 1},
    ),
}


CALLS = 5


@dataclass
class Case:
    """A convolution of drawn numbers, in one memory order."""

    convolution: Callable
    options: dict
    x: torch.Tensor
    w: torch.Tensor
    dy: torch.Tensor

    @classmethod
    def draw(cls, convolution, image, weight, options, last: bool) -> Case:
        form = torch.contiguous_format
        if last:
            form = torch.channels_last if len(image) == 4 else torch.channels_last_3d
        x = torch.randn(image, device="cuda").to(memory_format=form).requires_grad_()
        w = (torch.randn(weight, device="cuda") / 10).to(memory_format=form).requires_grad_()
        with torch.no_grad():
            dy = torch.randn_like(convolution(x, w, **options)).to(memory_format=form)
        return cls(convolution, options, x, w, dy)

    def forward(self) -> torch.Tensor:
        return self.convolution(self.x, self.w, **self.options)

    def backward(self, *mask: bool, dy: torch.Tensor | None = None):
        """cuDNN's gradients of x and w."""
        rank = self.x.dim() - 2
        full = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0, **self.options}
        stride, padding, dilation, more = ([n] * rank for n in full.values())
        transposed = "transpose" in self.convolution.__name__
        return torch.ops.aten.convolution_backward(
            self.dy if dy is None else dy,
            self.x,
            self.w,
            None,
            stride,
            padding,
            dilation,
            transposed,
            more,
            1,
            [*mask, False],
        )

    def optimised(self):
        convolution, options = self.convolution, self.options
        return fusewright.optimize(lambda x, w: convolution(x, w, **options).relu(), tune=False)


def kernels_of(call) -> dict[str, float]:
    """Microseconds by kernel of one call, with a cold L2 cache."""
    torch.empty(256 << 20, dtype=torch.uint8, device="cuda").zero_()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        call()
        torch.cuda.synchronize()
    return {e.key: e.device_time_total for e in p.key_averages()}


def library_time(call) -> float:
    call()
    return statistics.median(sum(kernels_of(call).values()) for _ in range(CALLS))


def own_times(case: Case, function) -> list[str]:
    """Of the result and both gradients: the kernel + what is launched beside it."""
    given = (case.x, case.w)
    for _ in range(2):
        torch.autograd.grad(function(*given), given, case.dy)
    before, samples = fusewright.stats()["convolutions"], {"y": [], "dx": [], "dw": []}
    for _ in range(CALLS):
        out = []
        forward = kernels_of(lambda out=out: out.append(function(*given)))
        backward = kernels_of(lambda out=out: torch.autograd.grad(out[0], given, case.dy))
        pack = ("fw_conv_scales", "fw_conv_pack")
        samples["y"].append((forward["fw_conv"], sum(forward[k] for k in pack)))
        samples["dx"].append((backward["fw_conv"], sum(backward[k] for k in pack)))
        samples["dw"].append((backward["fw_conv_weight"], backward["fw_conv_weight_sum"]))
    assert fusewright.stats()["convolutions"] == before + 3 * CALLS
    return [
        " + ".join(f"{statistics.median(part):.0f}" for part in zip(*times, strict=True)) for times in samples.values()
    ]


def errors(case: Case, function) -> list[str]:
    """Relative L2 distances to float64, ours / cuDNN's."""
    given = (case.x, case.w)
    y = function(*given)
    ours = [y, *torch.autograd.grad(y, given, case.dy)]
    masked = case.dy * (y > 0)
    cudnn = [case.forward().relu(), *case.backward(True, True, dy=masked)[:2]]
    double = [t.detach().double().requires_grad_() for t in given]
    z = case.convolution(*double, **case.options)
    exact = [z.relu(), *torch.autograd.grad(z, double, masked.double())]

    def distance(a, b):
        return ((a.double() - b).norm() / b.norm()).item()

    return [f"{distance(a, e):.1e} / {distance(b, e):.1e}" for a, b, e in zip(ours, cudnn, exact, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    lines = []

    def say(text: str) -> None:
        print(text, flush=True)
        lines.append(text)

    say(f"{torch.cuda.get_device_name()}, {software()}\n")
    say("| case | what | ours, row-major | ours, channels last | cuDNN, row-major | cuDNN, channels last | error |")
    say("|---|---|---|---|---|---|---|")
    prepared = []
    for name, (convolution, image, weight, options) in CASES.items():
        if args.only in name:
            cases = [Case.draw(convolution, image, weight, options, last) for last in (False, True)]
            functions = [case.optimised() for case in cases]
            for case, function in zip(cases, functions, strict=True):
                torch.autograd.grad(function(case.x, case.w), (case.x, case.w), case.dy)
            prepared.append((name, cases, functions))
    fusewright._core.finish_compiling()
    for name, cases, functions in prepared:
        ours = [own_times(case, function) for case, function in zip(cases, functions, strict=True)]
        theirs = [
            [
                library_time(call)
                for call in (c.forward, partial(c.backward, True, False), partial(c.backward, False, True))
            ]
            for c in cases
        ]
        found = errors(cases[0], functions[0])
        for i, what in enumerate(("y", "dx", "dw")):
            library = " | ".join(f"{times[i]:.0f}" for times in theirs)
            say(f"| {name} | {what} | {ours[0][i]} | {ours[1][i]} | {library} | {found[i]} |")
    if args.out:
        (args.out / "gpu_convolutions.md").write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
