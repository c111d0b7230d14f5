"""Building and loading: the torch that is there is the one that counts, and what does not fit is one line."""

import importlib.util
import os
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


def supported_torch():
    text = (ROOT / "pyproject.toml").read_text()
    return re.search(r'^supported-torch = "(.*)\.\.\.<(.*)"', text, re.MULTILINE).groups()


# ---- loading -----------------------------------------------------------------------------------------------

USE = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
import torch, fusewright
torch.__version__ = sys.argv[1] or torch.__version__
model = torch.nn.Linear(2, 2)
assert fusewright.optimize(model) is model
if fusewright.is_optimized(model):
    sys.exit()
assert fusewright.restore(model) is model
for failing in (lambda: fusewright.optimize(model, strict=True), lambda: fusewright.stats()):
    try:
        failing()
    except fusewright.errors.BuildError as error:
        assert isinstance(error, ImportError) and "\\n" not in str(error)
    else:
        sys.exit("no error")
"""


@pytest.mark.real_core
@pytest.mark.parametrize(
    "version, missing, damaged, expected",
    [
        ("", "", "", ""),
        ("2.99.0", "", "", "for torch 2.99.0 and Python 3."),  # a source tree has no sources in its package
        ("", "", "_core-", "cannot be loaded with torch"),
        ("", "libfusewright", "", "fusewright is not built here"),
    ],
)
def test_without_its_libraries_everything_is_eager_and_one_line_says_so(tmp_path, version, missing, damaged, expected):
    package = Path(importlib.util.find_spec("fusewright").origin).parent
    shutil.copytree(package, tmp_path / "fusewright", ignore=shutil.ignore_patterns("__pycache__"))
    for library in (tmp_path / "fusewright").glob("*.so"):
        if missing and library.name.startswith(missing):
            library.unlink()
        if damaged and library.name.startswith(damaged):
            library.write_text("damaged")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", USE, version]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert len(said) == bool(expected) and expected in done.stderr
    assert not said or said[0].startswith("nothing is fused: ")


# ---- configuring -------------------------------------------------------------------------------------------


def configure(tmp_path, python_path=None, required=True, python=sys.executable):
    """The last lines of CMake for a folder that is first in Python's path."""
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(test LANGUAGES NONE)\n"
        f'list(APPEND CMAKE_MODULE_PATH "{ROOT}/cmake")\nset(Python_EXECUTABLE "{python}")\n'
        + f"find_package(TorchPaths {'...<'.join(supported_torch())}{' REQUIRED' * required})\n"
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
@pytest.mark.parametrize("version", ["2.5.1+cu124", "2.20.0", "3.0.0a0+git1"])
def test_configuring_refuses_another_torch_in_one_line(tmp_path, version):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(
        f"__version__ = '{version}'\nclass _C:\n    _GLIBCXX_USE_CXX11_ABI = True\n"
    )
    low, high = supported_torch()
    for required in (True, False):
        status, text = configure(tmp_path, tmp_path, required)
        assert status != 0
        assert f"fusewright: torch {version} is not supported: install torch>={low},<{high} first\n" in text


@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake")
def test_a_wheel_is_built_without_torch_and_a_source_tree_is_not(tmp_path):
    bare = tmp_path / "bare/bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    status, text = configure(tmp_path, python=bare)
    assert status != 0 and f"fusewright: '{bare}' cannot import torch: install torch, then" in text
    status, text = configure(tmp_path, python=bare, required=False)
    assert status == 0 and "No torch is in sight: the package builds the part for it when it is first used\n" in text


def test_one_range_of_versions():
    low, end = supported_torch()
    major, minor = end.split(".")
    high = f"{major}.{int(minor) - 1}"
    assert load_setup().supported_torch() == tuple(tuple(map(int, version.split("."))) for version in (low, end))
    assert f'"torch>={low}"' in (ROOT / "pyproject.toml").read_text()
    for page in ("README.md", "CONTRIBUTING.md"):
        named = re.findall(r"(?:torch|first) \(?([\d.]+\d) to ([\d.]+\d)", (ROOT / page).read_text())
        assert named and set(named) == {(low, high)}, page


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
