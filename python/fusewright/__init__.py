"""Fusewright: a fusion compiler for PyTorch.

model = fusewright.optimize(model)        # in place; train and evaluate it as before
print(fusewright.explain(model, x))       # what was fused, what was not, and why
print(fusewright.certify(model, x))       # whether it is right, against float64
print(fusewright.bench(model, x))         # how fast it is, beside eager and torch.compile
fusewright.report(model, x, path="report.html")  # all of it on one page
"""

import atexit as _atexit
from importlib import metadata as _metadata

import torch

from . import _core, devices, log
from .benchmark.benchmark import Benchmark, bench
from .errors import FusewrightError, InputError, UnsupportedError
from .explain import Explanation, explain
from .judge.certify import Certificate, certify
from .optimize import is_optimized, optimize, restore
from .pages.report import report
from .stats import reset_stats, stats

__all__ = [
    "Benchmark",
    "Certificate",
    "Explanation",
    "FusewrightError",
    "InputError",
    "UnsupportedError",
    "bench",
    "certify",
    "explain",
    "is_optimized",
    "optimize",
    "report",
    "reset_stats",
    "restore",
    "stats",
]

try:
    __version__ = _metadata.version("fusewright")
except _metadata.PackageNotFoundError:  # run from a build directory
    __version__ = _core.version()

_atexit.register(_core.finish_compiling)  # while there is an interpreter to log to
log.configure()
_core.set_log_sink(log.core_sink)
_core.add_library_directories(devices.library_directories())
_core.set_key_salt(f"torch {torch.__version__}")  # part of the key of every cached kernel
