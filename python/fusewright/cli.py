"""The command `fusewright`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fusewright", description="A fusion compiler for PyTorch.")
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser("run", help="take models through everything: check, explain, time, train")
    files = "files with Model, get_inputs and get_init_inputs; without any, the showcase"
    run.add_argument("models", nargs="*", type=Path, help=files)
    run.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="a GPU if there is one")
    run.add_argument("--scale", choices=("auto", "small", "full"), default="auto", help="sizes of the showcase")
    run.add_argument("--seconds", type=float, default=2.0, help="time spent on each timing")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--no-explain", action="store_true", help="do not print every model's kernels")
    run.add_argument("--no-compile", action="store_true", help="do not time torch.compile")

    options = parser.parse_args(arguments)
    from fusewright import tour  # torch takes its time to import; `--help` need not wait

    return tour.main(
        options.models,
        scale=options.scale,
        device=options.device,
        seed=options.seed,
        seconds=options.seconds,
        with_compile=not options.no_compile,
        explain=not options.no_explain,
    )


if __name__ == "__main__":
    sys.exit(main())
