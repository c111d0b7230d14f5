"""Fixtures shared by all Python tests.

FUSEWRIGHT_FAKE_CORE=1, or a missing extension, runs the tests against fake_core.py: capture alone, no fusion.
FUSEWRIGHT_TEST_EMULATE=1 compiles every region for a GPU and runs it in the emulator (test_emulated.py always does).
"""

import collections
import importlib.util
import os
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


if importlib.util.find_spec("fusewright") is None:
    sys.path.insert(0, str(HERE.parents[1] / "python"))


def _use_fake_core() -> bool:
    if os.environ.get("FUSEWRIGHT_FAKE_CORE") == "1":
        return True
    package = importlib.util.find_spec("fusewright")
    folders = [Path(folder) for folder in package.submodule_search_locations]
    return not any(list(folder.glob("_core*.so")) for folder in folders)


FAKE_CORE = _use_fake_core()
if FAKE_CORE:
    import fake_core

    sys.modules["fusewright._core"] = fake_core

# Read when the package is imported, opened when a region for a GPU is first compiled.
EMULATOR = Path(os.environ.get("FUSEWRIGHT_EMULATOR_DIR", HERE.parents[1] / "build" / "tests" / "emulator"))
for _variable, _library in (("CUDA", "cuda"), ("NVRTC", "nvrtc")):
    if (EMULATOR / f"lib{_library}_emulator.so").exists():
        os.environ.setdefault(f"FUSEWRIGHT_{_variable}_LIBRARY", str(EMULATOR / f"lib{_library}_emulator.so"))

os.environ.setdefault("FUSEWRIGHT_TUNE", "0")  # the emulator's times mean nothing, and would take long

import fusewright  # noqa: E402
from fusewright.capture import partition  # noqa: E402


@pytest.fixture(autouse=True)
def least_traffic(monkeypatch):
    """The examples of the tests are small and stand for large ones: of these, one operator is a region by itself.
    Returns from how many bytes on that is so elsewhere."""
    least = partition.LEAST_TRAFFIC
    monkeypatch.setattr(partition, "LEAST_TRAFFIC", 0)
    return least


def pytest_configure(config):
    config.addinivalue_line("markers", "real_core: needs the extension, not fake_core.py")


# A process takes a file at a time (scripts/test.sh). Those that take long come first, so that no process is left with
# one of them at the end; behind them come those of many tests.
LONG_FILES = (
    "emulated",
    "emit",
    "gpu_models",
    "training",
    "second_derivatives",
    "judge",
    "wheel",
    "programs",
    "numerics",
)


def _sort_files(items):
    count = collections.Counter(item.path for item in items)
    rank = {f"test_{name}.py": place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: (rank.get(item.path.name, len(rank)), -count[item.path], str(item.path)))


def pytest_collection_modifyitems(items):
    _sort_files(items)
    for item in items:
        if FAKE_CORE and item.get_closest_marker("real_core"):
            item.add_marker(pytest.mark.skip(reason="the extension is not built"))


@pytest.fixture(scope="session")
def emulator():
    """Skips where the emulator is not there."""
    if FAKE_CORE:
        pytest.skip("the extension is not built")
    if not (EMULATOR / "libcuda_emulator.so").exists():
        pytest.skip(f"the emulator is not built: no libcuda_emulator.so in {EMULATOR}")
    if not fusewright._core.cuda_available():
        pytest.skip(fusewright._core.cuda_unavailable_because())


@pytest.fixture
def emulated(emulator):
    """Regions of CPU tensors are compiled for a GPU, and run in the emulator."""
    fusewright._core.emulate_cuda(True)
    yield
    fusewright._core.emulate_cuda(os.environ.get("FUSEWRIGHT_TEST_EMULATE") == "1")


@pytest.fixture(scope="session", autouse=True)
def everything_emulated(request):
    if os.environ.get("FUSEWRIGHT_TEST_EMULATE") == "1":
        request.getfixturevalue("emulator")
        fusewright._core.emulate_cuda(True)


@pytest.fixture(autouse=True)
def fresh():
    """Every test starts with the same seed, no counts and no captures of the tests before it."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    fusewright.reset_stats()
    yield
