"""The judge (tests/judge, docs/judge.md): as many of its cases as fit into two minutes, and that it finds faults."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_core
pytest.importorskip("expecttest", reason="PyTorch's list of operators imports expecttest")

TESTS = Path(__file__).resolve().parents[1]
SECONDS = 100

# Three faults: cos is computed as sin, sin ends the process, exp hangs.
FAULTS = """
import os, signal, time, torch
from fusewright.operators import TABLE

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
