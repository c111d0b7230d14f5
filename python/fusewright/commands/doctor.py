"""doctor: what was found on this machine, what is missing and what to do about it, and whether the rest works.

The library itself is asked, by a small self-test: what it logs names the compiler, the driver and NVRTC that it takes,
and what it refuses has its reason.
"""

from __future__ import annotations

import copy
import logging
import os
import platform
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import torch
from torch import nn

from .. import _core
from ..errors import UnsupportedError
from ..judge.oracle import judge_step
from ..log import logger
from ..optimize import optimize
from ..units import show_bytes
from . import cache

# The variables of docs/environment.md that a process reads, and how those of our own tests begin: another is misspelt.
NAMES = """
CACHE_DIR CONVOLUTION CUDA_LIBRARY CXX DISABLE DUMP FLOAT32_MATMUL KEEP_SOURCES LOCK_TIMEOUT LOG NUM_THREADS
NVRTC_LIBRARY TUNE
"""
VARIABLES = frozenset(f"FUSEWRIGHT_{name}" for name in NAMES.split())
OF_TESTS = ("FUSEWRIGHT_TEST_", "FUSEWRIGHT_EMULATOR_", "FUSEWRIGHT_FUZZ_", "FUSEWRIGHT_FAKE_CORE")
COMPILER, GPUS, CACHE = "C++ compiler: ", "CUDA driver ", "cache: "  # how lines of the library begin

LITTLE_SPACE = 100e6  # bytes: some thousand kernels


@dataclass
class Advice:
    """Something that is missing or wrong, and what to do about it."""

    problem: str
    remedy: str


@dataclass
class SelfTest:
    """A small model, forward and backward, fused and compared with eager."""

    device: str
    ran: bool = False  # as fused kernels
    problems: list[str] = field(default_factory=list)

    @property
    def result(self) -> str:
        return "wrong" if self.problems else "right" if self.ran else "not fused"


@dataclass
class Diagnosis:
    """What `fusewright doctor` shows."""

    found: dict[str, str]
    environment: dict[str, str]
    cache: cache.CacheInfo
    self_tests: list[SelfTest]
    advice: list[Advice]

    @property
    def ok(self) -> bool:
        """Whether models can be fused somewhere here, and nothing is wrong."""
        return any(t.ran for t in self.self_tests) and not any(t.problems for t in self.self_tests)

    def to_dict(self) -> dict:
        tests = [{**asdict(test), "result": test.result} for test in self.self_tests]
        return {**asdict(self), "self_tests": tests, "usable": self.ok}

    def __str__(self) -> str:
        lines = [f"{name:16}  {value}" for name, value in self.found.items()]
        lines += [f"{name}={value}" for name, value in self.environment.items()]
        lines += [""]
        for test in self.self_tests:
            lines += [f"self-test on {test.device}: {test.result}", *(f"  {problem}" for problem in test.problems)]
        for advice in self.advice:
            lines += ["", advice.problem, f"  -> {advice.remedy}"]
        return "\n".join((*lines, "", "usable" if self.ok else "NOT usable"))


def diagnose() -> Diagnosis:
    """Look at the machine and run the self-test on every kind of device that is here."""
    advice: list[Advice] = []
    with _listening() as lines:
        tests = [_self_test(torch.device("cpu"), advice)]
        gpu = torch.cuda.is_available()
        if gpu and _core.cuda_available():
            tests.append(_self_test(torch.device("cuda"), advice))
        elif gpu:
            remedy = "a newer driver, or `pip install nvidia-cuda-nvrtc` of the driver's CUDA version"
            advice.append(Advice(f"PyTorch has a GPU, but we do not: {_core.cuda_unavailable_because()}", remedy))
        elif torch.version.cuda is not None:
            advice.append(Advice("this PyTorch is built for CUDA but finds no GPU", "see `nvidia-smi`"))
        compiler = next((line.removeprefix(COMPILER) for line in lines if line.startswith(COMPILER)), "")
        gpus = next((line for line in lines if line.startswith(GPUS)), "")
        complaints = [line.removeprefix(CACHE) for line in lines if line.startswith(CACHE)]
    place = cache.info()
    environment = {name: value for name, value in sorted(os.environ.items()) if name.startswith("FUSEWRIGHT_")}
    found = {
        "fusewright": _core.version(),
        "Python": f"{platform.python_version()} ({sys.executable})",
        "torch": f"{torch.__version__} (CUDA {torch.version.cuda})" if torch.version.cuda else torch.__version__,
        "C++ compiler": compiler or "none",
        "GPUs": _gpus() if gpu else "none",
        "driver and NVRTC": gpus or (_core.cuda_unavailable_because() if gpu else "not needed: PyTorch has no GPU"),
        "cache": _cache_line(place),
    }
    advice += _advice_on_cache(place, complaints)
    for name in environment:
        if name not in VARIABLES and not name.startswith(OF_TESTS):
            advice.append(Advice(f"{name} is set, but nothing reads it", "see docs/environment.md for the names"))
    return Diagnosis(found, environment, place, tests, advice)


@contextmanager
def _listening():
    """The lines of the package's logger, from the level on where the library says what it has chosen; shown nowhere."""
    lines: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(record.getMessage())
    level, propagate, handlers = logger.level, logger.propagate, logger.handlers[:]
    logger.setLevel(logging.INFO)
    logger.propagate, logger.handlers = False, [handler]
    try:
        yield lines
    finally:
        logger.setLevel(level)
        logger.propagate, logger.handlers = propagate, handlers


def _self_test(device: torch.device, advice: list[Advice]) -> SelfTest:
    test = SelfTest(str(device))
    gpus = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(24, 32), nn.GroupNorm(4, 32), nn.SiLU()).to(device)
        inputs, gradient = [torch.randn(6, 24, device=device)], torch.randn(6, 32, device=device)
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    try:
        verdicts = judge_step(optimize(model, strict=True), eager, exact, inputs, gradient)
    except UnsupportedError as error:
        first, _, rest = error.detail.partition("; ")
        remedy = rest or "the reason stands in the line above; FUSEWRIGHT_LOG=debug tells more"
        advice.append(Advice(f"nothing is fused on {device} ({error.reason}): {first}", remedy))
        return test
    test.ran = True
    test.problems = [verdict.problem for verdict in verdicts if not verdict.ok]
    if test.problems:
        remedy = "clear the cache (`fusewright cache clear`), try again, and report it with this page"
        advice.append(Advice(f"the self-test on {device} gives a wrong result", remedy))
    return test


def _gpus() -> str:
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return "; ".join(f"{d.name} ({d.major}.{d.minor}, {show_bytes(d.total_memory)})" for d in devices)


def _cache_line(place: cache.CacheInfo) -> str:
    if not place.usable:
        return f"{place.root or 'none'}: not usable, kernels are kept in memory only"
    if not place.exists:
        return f"{place.root}: not made yet"
    kept = f"{place.entries} entries, {show_bytes(place.bytes)}, {show_bytes(place.free_bytes)} free"
    return f"{place.root}: mode {place.mode}, {kept}"


def _advice_on_cache(place: cache.CacheInfo, complaints: list[str]) -> list[Advice]:
    """`complaints`: what the library met when it used the cache."""
    if not place.usable:
        complaints = complaints or [place.reason]
    elif not place.writable:
        complaints = complaints or [f"{place.root} cannot be written to: kernels are compiled anew in every process"]
    elif place.free_bytes is not None and place.free_bytes < LITTLE_SPACE:
        return [Advice(f"only {show_bytes(place.free_bytes)} are free for the cache", "fusewright cache clear")]
    remedy = "give it a directory of your own with mode 0700: FUSEWRIGHT_CACHE_DIR=/another/one"
    return [Advice(complaint, remedy) for complaint in complaints]
