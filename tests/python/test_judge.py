"""The judge (tests/judge, docs/judge.md): as many of its cases as fit into two minutes, and that it finds faults."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.real_core
pytest.importorskip("expecttest", reason="PyTorch's list of operators imports expecttest")

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from judge.cases import Sample  # noqa: E402
from judge.compare import call, problems  # noqa: E402

SECONDS = 100

# Three faults: cos is computed as sin, sin ends the process, exp hangs.
FAULTS = """
import os, signal, time, torch
from fusewright.capture.operators import TABLE

def plant(operator, build):
    TABLE[operator] = TABLE[operator]._replace(build=build)

aten = torch.ops.aten
plant(aten.cos.default, TABLE[aten.sin.default].build)
plant(aten.sin.default, lambda c, self: os.kill(os.getpid(), signal.SIGSEGV))
plant(aten.exp.default, lambda c, self: time.sleep(1000))
"""


def judge(folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess, dict]:
    """Run the judge; its process, and what it wrote about each case."""
    file = folder / "results.jsonl"
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "judge", "--results", str(file), *arguments]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    records = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return done, {record["case"]: record for record in records if "case" in record}


def test_drawn_cases(tmp_path, capsys):
    done, records = judge(tmp_path, "--samples", "1", "--shuffle", "--seed", "test", "--limit-seconds", str(SECONDS))
    assert done.returncode == 0, done.stdout + done.stderr
    with capsys.disabled():
        print(f"\njudge: {sum(r['status'] != 'none' for r in records.values())} cases in {SECONDS} s", end=" ")
    assert len(records) >= 10


def test_planted_faults_are_found(tmp_path):
    """Each as what it is, and nothing else, before or behind it."""
    (tmp_path / "faults.py").write_text(FAULTS)
    names = [f"{operator}/float32/plain/0" for operator in ("cos", "sin", "exp", "neg")]
    before = str(tmp_path / "faults.py")
    done, records = judge(tmp_path, "--cases", *names, "--before", before, "--case-seconds", "30")
    assert done.returncode == 1, done.stdout + done.stderr
    found = [records[name]["status"] for name in names]
    assert found == ["wrong", "crash", "timeout", "ok"], done.stdout


def test_what_is_held_back_runs_only_when_asked_for(tmp_path):
    chosen = ("--operators", "add", "--dtypes", "float32", "--kinds", "plain")
    (tmp_path / "other").mkdir()
    _, usual = judge(tmp_path, *chosen)
    _, held_back = judge(tmp_path / "other", *chosen, "--held-back")
    assert usual and held_back and not usual.keys() & held_back.keys()
    again, records = judge(tmp_path, *chosen)  # which finds everything done
    assert records == usual and "nothing wrong" in again.stdout


class OtherGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2.001


def refuse(kind, text):
    raise kind(text)


def spoil(x, element):
    y = (2 * x).detach().clone()
    y[0, 0] = element
    return y + 0 * x


# Each entry has eager's function, a faulty one, and the beginning of the problem that the judge must report.
FAULTY = {
    "value": (lambda x: 2 * x, lambda x: 2.001 * x, "output 0: error"),
    "element": (lambda x: 2 * x, lambda x: spoil(x, 2 * x[0, 0] + 1e-3), "output 0: error"),
    "NaN": (lambda x: 2 * x, lambda x: spoil(x, float("nan")), "output 0: NaN"),
    "NaN lost": (lambda x: spoil(x, float("nan")), lambda x: 2 * x, "output 0: NaN"),
    "gradient": (lambda x: 2 * x, OtherGradient.apply, "gradient of input 0: error"),
    "gradient lost": (lambda x: 2 * x, lambda x: (2 * x).detach(), "gradient through output 0"),
    "dtype": (lambda x: 2 * x, lambda x: 2 * x.double(), "dtype of output 0"),
    "shape": (lambda x: x.sum(0), lambda x: x.sum(0, keepdim=True), "output 0"),
    "strides": (lambda x: 2 * x, lambda x: 2 * x.t().contiguous().t(), "strides of output 0"),
    "alias": (lambda x: x.t(), lambda x: x.t().contiguous().t().clone(), "input whose memory output 0 shares"),
    "structure": (lambda x: (2 * x, x), lambda x: [2 * x, x], "structure"),
    "integer": (lambda x: (2 * x).argmax(), lambda x: (2 * x).argmin(), "output 0: differs"),
    "number": (lambda x: 3, lambda x: 4, "output 0: differs"),
    "type": (lambda x: 3, lambda x: True, "type of output 0"),
    "exception": (lambda x: 2 * x, lambda x: refuse(ValueError, "no"), "exception"),
    "no exception": (lambda x: refuse(ValueError, "no"), lambda x: 2 * x, "exception"),
    "other exception": (lambda x: refuse(ValueError, "no"), lambda x: refuse(TypeError, "no"), "exception"),
    "other words": (lambda x: refuse(ValueError, "no"), lambda x: refuse(ValueError, "yes"), "exception"),
    "write": (lambda x: x.detach().mul_(2).sum(), lambda x: (x.detach() * 2).sum(), "input 0 afterwards"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_difference_is_found(name):
    eager, faulty, beginning = FAULTY[name]
    sample = Sample(torch.randn(5, 7, requires_grad=True), (), {})
    assert not problems(lambda nudge: call(eager, sample, nudge=nudge), eager, sample)
    found = problems(lambda nudge: call(faulty, sample, nudge=nudge), eager, sample)
    assert any(problem.startswith(beginning) for problem in found), found
