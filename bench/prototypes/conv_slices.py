"""Does a convolution with its layout changes take less time when the batch goes through it in slices?

    python bench/prototypes/conv_slices.py

cuDNN's TF32 convolution wants channels last: x is copied into that order, the convolution writes its result in it, and
the kernel behind reads that. Each of the two is written to memory and read again, 4 GB for 64 images. A slice of a few
images might leave them in the L2 cache, and slices on several streams have one's convolution beside another's copies.
The slices are calls of the optimised model, recorded in a CUDA graph, so that the host decides nothing.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
import fusewright
from fusewright.benchmark.measure import device_seconds
from fusewright.models import load

MODEL = Path(__file__).resolve().parents[2] / "examples/showcase/conv2d_mul_leakyrelu_gelu.py"
GPU = torch.device("cuda", 0)


def recorded(work, extra_streams: int = 0):
    """`work(all streams)` as one graph, and what it returned."""
    graph = torch.cuda.CUDAGraph()
    others = [torch.cuda.Stream() for _ in range(extra_streams)]
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        for other in others:
            other.wait_stream(main)
        kept = work([main, *others])
        for other in others:
            main.wait_stream(other)
    return graph, kept


def timed(graph, rounds: int = 9) -> str:
    samples = [device_seconds(graph.replay, GPU, 100e-6) * 1e3 for _ in range(rounds)]
    low, _, high = statistics.quantiles(samples, n=4)
    return f"{statistics.median(samples):.3f} ms [{low:.3f} .. {high:.3f}]"


def kernels(graph) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph.replay()
        torch.cuda.synchronize()
    for event in sorted(profile.key_averages(), key=lambda e: -e.device_time_total)[:3]:
        print(f"    {event.device_time_total / 1e3:.3f} ms in {event.count} of {event.key[:60]}")


def main() -> None:
    source = load(MODEL)
    eager = source.build("full", device=GPU)
    x = torch.rand(64, 64, 256, 256, device=GPU)
    with torch.no_grad():
        wanted = eager(x)
        print(f"eager: {timed(recorded(lambda _: eager(x))[0])}", flush=True)
        weight = eager.conv.weight.to(memory_format=torch.channels_last)
        for images in (64, 8, 4, 2, 1):
            part = x[:images].contiguous(memory_format=torch.channels_last)
            F.conv2d(part, weight)
            graph, _ = recorded(lambda _, p=part, n=64 // images: [F.conv2d(p, weight) for _ in range(n)][-1])
            print(f"convolution alone, {images} images {64 // images} times: {timed(graph)}", flush=True)
        fast = fusewright.optimize(source.build("full", device=GPU))
        for images in (64, 16, 8, 4, 2):
            slices = x.split(images)
            for _ in range(3):
                for part in slices:  # at every offset: Dynamo tells them apart
                    fast(part)
                fusewright._core.finish_compiling()

            def in_turn(streams, slices=slices):
                kept = []
                for number, part in enumerate(slices):
                    with torch.cuda.stream(streams[number % len(streams)]):
                        kept.append(fast(part))
                return kept

            for streams in (1, 2, 3) if images < 64 else (1,):
                graph, kept = recorded(in_turn, streams - 1)
                print(f"{images} images a slice, {streams} streams: {timed(graph)}", flush=True)
                if streams == 1:
                    kernels(graph)
                pieces = zip(kept, wanted.split(images), strict=True)
                error = max(((a - b).norm() / b.norm()).item() for a, b in pieces)
                if not error < 1e-3:
                    print(f"WRONG: {error}")
                del graph, kept
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
