"""Building and loading: the torch that is there is the one that counts, and what does not fit is one line."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def load_setup():
    spec = importlib.util.spec_from_file_location("fusewright_setup", ROOT / "scripts/setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- the torch that the extension was built for ------------------------------------------------------------

USE = """
import sys, types
built, loads = sys.argv[1], sys.argv[2]
sys.modules["fusewright._built_with"] = types.SimpleNamespace(TORCH=built) if built else None

class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "fusewright._core":
            raise {"missing": ModuleNotFoundError, "undefined": ImportError}[loads]("undefined symbol: _ZN2at")

if loads != "yes":
    sys.meta_path.insert(0, Broken())
import fusewright
try:
    fusewright.optimize
except fusewright.errors.BuildError as error:
    assert isinstance(error, ImportError)
    print(error)
"""


@pytest.mark.real_core
@pytest.mark.parametrize(
    "built, loads, expected",
    [
        (torch.__version__, "yes", ""),
        ("", "yes", ""),
        ("2.5.1", "yes", f"was built for torch 2.5.1, and torch {torch.__version__} is here; build it again"),
        ("2.5.1", "undefined", "was built for torch 2.5.1"),
        (torch.__version__ + "x", "undefined", f"was built for torch {torch.__version__}x"),
        ("", "undefined", "cannot be loaded (undefined symbol: _ZN2at)"),
        ("", "missing", "is not built for this Python; build it again"),
    ],
)  # fmt: skip
def test_another_torch_is_named_in_one_line(built, loads, expected):
    done = subprocess.run([sys.executable, "-c", USE, built, loads], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout and len(done.stdout.splitlines()) == bool(expected)


# ---- configuring -------------------------------------------------------------------------------------------


def configure(tmp_path, python_path=None):
    """The last lines of CMake for a folder that is first in Python's path."""
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(test LANGUAGES NONE)\n"
        f'list(APPEND CMAKE_MODULE_PATH "{ROOT}/cmake")\nset(Python_EXECUTABLE "{sys.executable}")\n'
        + re.search(r"  find_package\(TorchPaths.*\n", (ROOT / "CMakeLists.txt").read_text())[0]
    )
    environment = {"PATH": "/usr/bin:/bin", **({"PYTHONPATH": str(python_path)} if python_path else {})}
    command = [shutil.which("cmake"), "-S", str(tmp_path), "-B", str(tmp_path / "build")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake")
def test_configuring_finds_the_torch_that_is_there(tmp_path):
    assert f"Found torch {torch.__version__}" in configure(tmp_path)[1]
    # Hides the packages beside the interpreter, as pip's isolated build does.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]"
    )
    assert f"Found torch {torch.__version__}" in configure(tmp_path, tmp_path)[1]


@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake")
@pytest.mark.parametrize("version", ["2.5.1+cu124", "2.14.0", "3.0.0a0+git1"])
def test_configuring_refuses_another_torch_in_one_line(tmp_path, version):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(
        f"__version__ = '{version}'\nclass _C:\n    _GLIBCXX_USE_CXX11_ABI = True\n"
    )
    status, text = configure(tmp_path, tmp_path)
    assert status != 0
    assert f"fusewright: torch {version} is not supported: install torch>=2.6,<2.14 first\n" in text


def test_one_range_of_versions():
    low, high = load_setup().SUPPORTED_TORCH
    cmake, package = (ROOT / "CMakeLists.txt").read_text(), (ROOT / "pyproject.toml").read_text()
    assert f"find_package(TorchPaths {low[0]}.{low[1]}...<{high[0]}.{high[1] + 1} REQUIRED)" in cmake
    assert f'"torch>={low[0]}.{low[1]}"' in package


# ---- setup -------------------------------------------------------------------------------------------------


@pytest.fixture
def setup(monkeypatch, tmp_path):
    """scripts/setup.py on a machine that has nothing; nothing is installed."""
    module = load_setup()
    module.commands = []
    monkeypatch.setattr(module, "has_gtest", lambda: False)
    monkeypatch.setattr(module, "supported", lambda version: True)
    monkeypatch.setattr(module, "version_of_torch", lambda python: "2.13.0")
    monkeypatch.setattr(module, "make_venv", lambda: None)
    monkeypatch.setattr(module, "run", lambda *command, check=True: module.commands.append(" ".join(command)) or 0)
    lines = ["rich>=13", 'pytest>=8; extra == "test"', 'ruff==1; extra == "lint"', "torch>=2.6"]
    monkeypatch.setattr(module, "ask", lambda *_: "\n".join(lines))
    for name, path in (("VENV", ""), ("STAMP", "stamp"), ("MADE_FROM", "made-from"), ("PYTHON", "python")):
        monkeypatch.setattr(module, name, tmp_path / path)
    (tmp_path / "python").touch()
    monkeypatch.setattr(module.os, "geteuid", lambda: 0)
    real = shutil.which
    monkeypatch.setattr(module.shutil, "which", lambda name: "/usr/bin/apt-get" if name == "apt-get" else real(name))

    def run(command, **_):
        if "import " in command[-1]:  # what a fresh interpreter has
            return subprocess.CompletedProcess(command, 0)
        module.commands.append(" ".join(command))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(module.subprocess, "run", run)
    return module


def test_run_installs_nothing_that_only_tests_need(setup, capsys):
    setup.main()
    everything = "\n".join(setup.commands)
    assert "rich>=13" in everything
    assert not any(name in everything for name in ("pytest>=8", "ruff==1", "libgtest"))
    del setup.commands[:]
    setup.main()
    assert not setup.commands
    setup.main(tests=True)
    everything = "\n".join(setup.commands)
    assert all(name in everything for name in ("pytest>=8", "ruff==1", "libgtest-dev"))
    said = capsys.readouterr().out.splitlines()
    assert "setup: installing system packages with apt-get: libgtest-dev" in said
    del setup.commands[:]
    setup.main()
    setup.main(tests=True)
    assert not setup.commands


def test_make_run_asks_for_no_tests():
    for target, expected in (("run", "scripts/setup.py\n"), ("test", "scripts/setup.py --tests\n")):
        listed = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True).stdout
        assert expected in listed and ("--tests" in listed) == (target == "test"), listed
