"""The benchmark of models on a GPU: its list is the one that was written down, and the script works on a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import model_list  # noqa: E402

pytestmark = pytest.mark.real_core


def test_list_is_the_recorded_one():
    assert model_list.listing() == (BENCH / "results" / "gpu_models_list.txt").read_text()


def test_list_has_what_it_is_drawn_from():
    """Each kind of convolution, norms, pooling, reductions and 0-d tensors, in sizes of all orders."""
    rows = model_list.models()
    names = " ".join(layer.name for row in rows for layer in row.layers)
    for kind in (*model_list.CONVOLUTIONS, "Norm", "Pool", "OverChannels", "Softmax", "ScalarTensor", "Linear"):
        assert kind in names, kind
    kernels = {row.layers[0].arguments[2] for row in rows if row.name.startswith("conv")}
    assert {1, 3, 5, 7} <= kernels
    assert (len(rows), len({str(row.layers) for row in rows})) == (60, 60)


@pytest.mark.parametrize("row", model_list.models(tiny=True), ids=lambda row: row.name)
def test_models_run(row):
    x = torch.randn(row.shape, requires_grad=True)
    y = row.build()(x)
    assert torch.isfinite(y).all() and y.numel() > 0
    y.sum().backward()
    assert torch.isfinite(x.grad).all()


def test_script(tmp_path):
    """Both stages, then a second start, which measures nothing anew."""
    command = [sys.executable, str(BENCH / "gpu_models.py"), "--device", "cpu", "--tiny", "--models", "linear07"]
    command += ["--real", "none", "--seconds", "0.01", "--workers", "1", "--out", str(tmp_path), "--resume"]
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    lines = []
    for _ in range(2):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        lines.append((tmp_path / "gpu_models_tiny.jsonl").read_text().splitlines())
    assert lines[0] == lines[1] and len(lines[0]) == 1
    (row,) = map(json.loads, lines[0])
    assert row["problems"] == [] and row["distance"]["fusewright"] < 1e-5
    for mode in ("forward", "step"):
        assert {"eager", "fusewright"} <= row["timings"][mode].keys()
    assert "linear07" in (tmp_path / "gpu_models_tiny.md").read_text()
