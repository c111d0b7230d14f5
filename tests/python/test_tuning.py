"""The tuner as a user meets it: what is timed, what is remembered, and regions that lose against eager.

In the emulator; each case is a process with a cache of its own.
"""

import json
import os
import subprocess
import sys

import pytest
import torch

import fusewright
from fusewright import _core

pytestmark = pytest.mark.real_core

SCRIPT = """
import json, logging, time, types
import torch, fusewright
from fusewright import _core
from fusewright.capture import plain
_core.emulate_cuda(True)
lines = []
class Sink(logging.Handler):
    def emit(self, record):
        if not record.getMessage().startswith("tim"):  # timing takes long on a busy machine
            lines.append(record.getMessage())
logging.getLogger("fusewright").addHandler(Sink())
def f(x, w):
    return torch.tanh(x * w)
x, w = torch.randn(6, 40, requires_grad=True), torch.randn(40, requires_grad=True)
def step(ours, grad=True):
    x.grad = w.grad = None
    with torch.set_grad_enabled(grad):
        y = ours(x, w)
    torch.testing.assert_close(y, f(x, w), atol=1e-6, rtol=1e-5)
    if grad:
        assert x.grad is None and w.grad is None, "timing left gradients behind"
        y.sum().backward()
        expected = torch.autograd.grad(f(x, w).sum(), [x, w])
        torch.testing.assert_close([x.grad, w.grad], list(expected), atol=1e-5, rtol=1e-5)
def slowly(function):
    def slow(*arguments):
        time.sleep(0.02)
        return function(*arguments)
    return slow
def fused_wins():
    original = plain.Plain.whole.func
    plain.Plain.whole = property(lambda self: slowly(original(self)))
def eager_wins():
    _core.run_region = slowly(_core.run_region)
{body}
print(json.dumps([fusewright.stats(), lines]))
"""


@pytest.fixture
def run(emulator, tmp_path):
    """Run lines of Python in a new process; returns its counters and its log."""

    def run(body, **environment):
        variables = {"FUSEWRIGHT_CACHE_DIR": str(tmp_path / "cache"), "FUSEWRIGHT_TUNE": "1", **environment}
        process = subprocess.run(
            [sys.executable, "-c", SCRIPT.replace("{body}", body)], env={**os.environ, **variables}, text=True,
            capture_output=True, timeout=300, check=False,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr
        counts, lines = json.loads(process.stdout.splitlines()[-1])
        return counts, lines

    return run


def test_kernels_are_timed_once_and_remembered(run):
    body = "ours = fusewright.optimize(f, strict=True)\nfor _ in range(3): step(ours), fusewright.stats()"
    first, log = run(body)
    assert first["kernels_tuned"] >= 2 and first["fallback_calls"] == 0 and not log, (first, log)
    again, log = run(body)
    assert again["kernels_tuned"] == 0 and again["kernels_compiled"] == 0 and not log, (again, log)


def test_a_convolution_that_the_library_computes_exactly(run):
    """TF32 is allowed, but the library (here the CPU's) does not use it: ours, with 11 bits, is not as accurate."""
    body = """
x, w = torch.randn(2, 8, 14, 14), torch.randn(8, 8, 3, 3)
ours = fusewright.optimize(lambda x, w: torch.conv2d(x, w).relu(), strict=True)
for _ in range(4): result = ours(x, w), fusewright.stats()
exact = torch.conv2d(x.double(), w.double()).relu()
assert (result[0] - exact).norm() / exact.norm() < 1e-6
"""
    first, log = run(body)
    assert first["convolutions"] == 1 and not log  # the one that is compared
    again, log = run(body)
    assert again["convolutions"] == 0 and not log  # the choice is on disk


@pytest.mark.parametrize("off", ["environment", "option", "deterministic", "backend"])
def test_switched_off(run, off):
    ours = {
        "environment": "ours = fusewright.optimize(f)",
        "option": "ours = fusewright.optimize(f, tune=False)",
        "deterministic": "torch.use_deterministic_algorithms(True); ours = fusewright.optimize(f)",
        "backend": "ours = torch.compile(f, backend='fusewright', options={'tune': False})",
    }[off]
    counts, log = run(f"{ours}\nstep(ours)", FUSEWRIGHT_TUNE="0" if off == "environment" else "1")
    assert counts["kernels_tuned"] == 0 and counts["region_calls"] > 0 and counts["fallback_calls"] == 0 and not log


def test_eager_runs_where_it_is_faster(run):
    body = """
eager_wins()
ours = fusewright.optimize(f)
for grad in (True, False): step(ours, grad)
tuned = fusewright.stats()["kernels_tuned"]  # kernels that were compiled early are timed already
fusewright.reset_stats()  # waits for all kernels: the next call decides
for _ in range(3): step(ours)
assert fusewright.stats()["fallback_calls"] == 3
for _ in range(2): step(ours, grad=False)
page = str(fusewright.explain(f, x, w))
assert "slower_than_eager" in page, page
tuned += fusewright.stats()["kernels_tuned"]
assert tuned {}, tuned
"""
    counts, log = run(body.format(">= 4"))
    assert counts["fallback_calls"] == 5
    assert len(log) == 2 and all("slower_than_eager" in line for line in log), "one capture with gradients, one without"
    counts, log = run(body.format("== 0"))  # known from the disk
    assert counts["fallback_calls"] == 5


def test_the_region_runs_where_it_is_faster(run):
    counts, log = run("fused_wins()\nours = fusewright.optimize(f)\nfor _ in range(3): step(ours)")
    assert counts["fallback_calls"] == 0 and counts["region_calls"] >= 3 and not log, (counts, log)


def test_hooks_for_saved_tensors_see_the_region_alone(run):
    """A checkpoint compares what its two forwards save."""
    body = """
from torch.utils.checkpoint import checkpoint
eager_wins()
ours = fusewright.optimize(f)
for _ in range(2): step(lambda x, w: checkpoint(ours, x, w, use_reentrant=False))
before = fusewright.stats()
assert before["fallback_calls"] == 0
step(ours)
for _ in range(2): step(lambda x, w: checkpoint(ours, x, w, use_reentrant=False))
assert fusewright.stats()["fallback_calls"] == 1
"""
    run(body)


def test_recording_a_graph_times_nothing(run):
    body = """
import os
fused_wins()
ours = fusewright.optimize(f, dynamic=True)
step(ours, grad=False)
counts = fusewright.stats()
os.environ["FUSEWRIGHT_EMULATOR_CAPTURING"] = "1"
x, w = torch.randn(90, 41, requires_grad=True), torch.randn(41, requires_grad=True)
for _ in range(2): step(ours, grad=False)
after = fusewright.stats()
assert after["kernels_tuned"] == counts["kernels_tuned"] and after["region_calls"] >= counts["region_calls"] + 2
assert after["fallback_calls"] == counts["fallback_calls"]
"""
    run(body)


@pytest.mark.parametrize("number", range(6))
def test_any_candidate(emulated, number):
    from check import check

    _core.force_candidate(number)
    try:
        check(lambda x, y: (x * y).softmax(-1) * y, [torch.randn(31, 68), torch.randn(31, 68)], layouts=["contiguous"])
        check(lambda x: (x - x.mean(0)).tanh(), [torch.randn(70, 33)], layouts=["contiguous"])
    finally:
        _core.force_candidate(-1)
    assert fusewright.stats()["kernels_tuned"] == 0
