"""The benchmark and the report on a GPU: device times of every kernel, the allocator's own numbers, host time."""

import pytest
import torch
from torch import nn

import fusewright
from fusewright.pages.html.page import page
from fusewright.pages.study import study

CANDIDATES = ("eager", "fusewright")


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(512, 1024), nn.GroupNorm(8, 1024), nn.SiLU(), nn.BatchNorm1d(1024), nn.GELU())


@pytest.fixture(autouse=True)
def by_rule(monkeypatch):
    """Timed beside other tests, so small a region may lose against eager."""
    monkeypatch.setenv("FUSEWRIGHT_TUNE", "0")


def test_bench(model, device):
    result = fusewright.bench(model, torch.randn(2048, 512), candidates=CANDIDATES, seconds=0.2)
    assert result.ok and not result.doubts, str(result)
    ours, eager = (result.row(name) for name in reversed(CANDIDATES))
    assert ours.memory.held < eager.memory.held and ours.memory.peak > 0
    for mode in result.modes:
        steps = [timing.median for timing in result.steps[mode]]
        # Kernels one by one take about as long as all of them together; other tests may be running.
        assert all(steps) and sum(steps) < 3 * ours.timings[mode].median, str(result)
        assert 0 < result.of_floor("fusewright", mode) <= 1
        if device.type == "cuda":
            assert ours.host[mode] > 0


def test_report(model, device):
    found = study(model, lambda seed: [torch.randn(256, 512)], candidates=CANDIDATES, seconds=0.1)
    assert found.ok and all(found.steps) and found.machine.bandwidth > 1e9
    assert page([found], found.name).count("did not run") == 0
