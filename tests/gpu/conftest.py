"""Everything here needs a GPU, and is skipped as a whole without one.

FUSEWRIGHT_TEST_DEVICE=cpu runs what does not depend on CUDA itself on the CPU: that the tests work can be seen
anywhere.
"""

import os
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python")]  # check.py, showcase.py, and the tables that are shared
os.environ.setdefault("FUSEWRIGHT_TEST_DEVICE", "cuda")
try:
    import fusewright
except ImportError:
    sys.path[:0] = [str(ROOT / "python")]
    import fusewright

DEVICE = torch.device(os.environ["FUSEWRIGHT_TEST_DEVICE"])


from fusewright.capture import partition  # noqa: E402


@pytest.fixture(autouse=True)
def least_traffic(monkeypatch):
    """One operator is a region by itself, however small its example is, as in tests/python."""
    monkeypatch.setattr(partition, "LEAST_TRAFFIC", 0)


def _missing() -> str | None:
    if DEVICE.type == "cpu":
        return None
    if not torch.cuda.is_available():
        return "no GPU, or a torch without CUDA"
    return None if fusewright._core.cuda_available() else fusewright._core.cuda_unavailable_because()


def pytest_configure(config):
    config.addinivalue_line("markers", "real_core: needs the extension")
    config.addinivalue_line("markers", "cuda: about CUDA itself; means nothing on another device")
    config.addinivalue_line("markers", "big: many gigabytes of device memory")


def pytest_collection_modifyitems(items):
    missing = _missing()
    for item in items:
        if missing:
            item.add_marker(pytest.mark.skip(reason=missing))
        elif DEVICE.type == "cpu" and (item.get_closest_marker("cuda") or item.get_closest_marker("big")):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(autouse=True)
def fresh():
    """Every test starts with the same seed and no captures, and makes its tensors on the device."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    fusewright.reset_stats()
    with torch.device(DEVICE):
        yield
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()  # a fault belongs to the test that made it
        torch.cuda.empty_cache()


@pytest.fixture
def device():
    return DEVICE
