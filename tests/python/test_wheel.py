"""The sdist and the wheel, installed into a folder and used from another; the libraries are those of build/."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
BUILD = Path(os.environ.get("FUSEWRIGHT_BUILD_DIR", ROOT / "build"))
MINOR = ".".join(torch.__version__.split(".")[:2])

pytestmark = [
    pytest.mark.real_core,
    pytest.mark.skipif(not (BUILD / "build.ninja").exists(), reason="no build folder"),
    pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake"),
]

USE = """
import sys
# An editable install would win over PYTHONPATH.
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
import torch, fusewright
torch.__version__ = sys.argv[1] if sys.argv[1:] else torch.__version__
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Softmax(-1))
x = torch.randn(4, 8, requires_grad=True)
expected = model(x)
expected.square().sum().backward()
wanted, x.grad = x.grad, None
assert fusewright.optimize(model) is model
result = model(x)
result.square().sum().backward()
torch.testing.assert_close(result, expected)
torch.testing.assert_close(x.grad, wanted)
print(fusewright.__file__)
print(fusewright.stats()["region_calls"] if fusewright.is_optimized(model) else "eager")
"""

# What stands in for compilers: it takes objects of build/ instead of compiling them, and writes down what it did.
COMPILER = """#!{python}
import os, shutil, sys
words = sys.argv[1:]
with open({log!r}, "a") as log:
    print("compile" if "-c" in words else "link", file=log)
if "-c" not in words:
    os.execvp({cxx!r}, [{cxx!r}, *words])
source = os.path.basename(words[words.index("-c") + 1])
shutil.copyfile(os.path.join({objects!r}, source + ".o"), words[words.index("-o") + 1])
"""


def run(*command, cwd=ROOT, **environment):
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def hook(name, folder, cwd, settings=None):
    """A hook of the build backend, as pip and `python -m build` call it; the file it has written."""
    program = f"from scikit_build_core import build; print(build.{name}({str(folder)!r}, {settings!r}))"
    return folder / run(sys.executable, "-c", program, cwd=cwd).splitlines()[-1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, and the wheel made from what it holds."""
    pytest.importorskip("scikit_build_core")
    folder = tmp_path_factory.mktemp("wheel")
    sdist = hook("build_sdist", folder, ROOT)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder)
    run("cmake", "--install", BUILD, "--component", "python", "--prefix", folder / "prebuilt")
    libraries = folder / "prebuilt/fusewright"
    shutil.copy(next(libraries.glob("_core-*.so")), libraries / "_core-9.9.other.so")  # of another torch
    sources = folder / sdist.name.removesuffix(".tar.gz")
    wheel = hook("build_wheel", folder, sources, {"cmake.define.FUSEWRIGHT_PREBUILT": str(libraries)})
    return sdist, wheel


@pytest.fixture
def installed(built, tmp_path):
    """A folder with the wheel in it, and one to use it from."""
    target, elsewhere = tmp_path / "target", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = ("-m", "pip", "-q", "--disable-pip-version-check", "install", "--no-deps", "--no-index")
    run(sys.executable, *pip, "--target", target, built[1], cwd=elsewhere)
    return target / "fusewright", elsewhere


def use(installed, python=sys.executable, arguments=(), **environment):
    """What the program prints; the package must be the installed one."""
    package, elsewhere = installed
    environment = {"PYTHONPATH": str(package.parent), "FUSEWRIGHT_CACHE_DIR": str(elsewhere / "cache"), **environment}
    lines = run(python, "-c", USE, *arguments, cwd=elsewhere, **environment).splitlines()
    assert str(package / "__init__.py") in lines, lines
    return lines


def test_both_hold_what_they_should(built):
    sdist, wheel = built
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CMakeLists.txt", "src/torch/region.cpp", "tests/python/test_wheel.py", "LICENSE"} <= files
    assert not any(name.endswith(".so") or name.startswith(("build/", ".venv/")) for name in files)
    assert "-py3-none-linux_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
    parts = [name for name in files if name.startswith("fusewright/_core-")]
    assert len(parts) == 2 and any(name.startswith(f"fusewright/_core-{MINOR}.") for name in parts)
    assert {"fusewright/libfusewright.so", "fusewright/sources/src/torch/region.cpp"} <= files
    assert {"fusewright/sources/src/ops/ops.def", "fusewright/sources/generated/embedded_kernels.h"} <= files


def test_the_wheel_is_used_from_another_folder(installed):
    lines = use(installed)
    assert lines[-1] == "1" and not any("building" in line for line in lines)


@pytest.fixture
def compiler(tmp_path):
    log = tmp_path / "compiled"
    path = tmp_path / "c++"
    objects = str(BUILD / "CMakeFiles/_core.dir/src/torch")
    text = COMPILER.format(python=sys.executable, log=str(log), objects=objects, cxx=shutil.which("g++") or "c++")
    path.write_text(text)
    path.chmod(0o755)
    log.touch()
    return path, log


def without_part(installed):
    for part in installed[0].glob("_core-*"):
        part.unlink()


def test_a_part_that_is_missing_is_built_once(installed, compiler):
    without_part(installed)
    path, log = compiler
    lines = use(installed, CXX=str(path))
    files = len(list((ROOT / "src/torch").glob("*.cpp")))
    said = f"building the part of fusewright for torch {torch.__version__} and Python"
    assert sum(said in line for line in lines) == 1 and lines[-1] == "1"
    assert sum(line.startswith("  compiled src/torch/") for line in lines) == files
    done = log.read_text().split()
    assert done.count("compile") == files
    # From now on it is in the cache.
    lines = use(installed, CXX=str(path))
    assert lines[-1] == "1" and not any("building" in line for line in lines)
    assert log.read_text().split().count("compile") == files


def test_a_part_that_does_not_load_is_built(installed, compiler):
    for part in installed[0].glob(f"_core-{MINOR}.*"):
        part.write_bytes(b"no library")
    lines = use(installed, CXX=str(compiler[0]))
    assert lines[-1] == "1" and any("building the part" in line for line in lines)


@pytest.mark.skipif(not shutil.which("nm"), reason="needs nm of binutils")
def test_parts_load_with_the_core_of_their_headers_alone(installed):
    """The core defines a symbol that is named after its headers, and a part refers to it."""
    package, _ = installed
    (part,) = package.glob(f"_core-{MINOR}.*")

    def interface(file, which):
        found = run("nm", "-D", which, file).split()
        return [name for name in found if name.startswith("fusewright_interface_")]

    defined = interface(package / "libfusewright.so", "--defined-only")
    assert len(defined) == 1 and interface(part, "--undefined-only") == defined
    text = (package / "sources/generated/interface.h").read_text()
    assert text.split()[-1] == defined[0]


@pytest.mark.parametrize("problem", ["none", "broken"])
def test_without_a_compiler_one_line_and_eager(installed, tmp_path, problem):
    without_part(installed)
    chosen = "/no/such/compiler"
    if problem == "broken":
        chosen = str(tmp_path / "broken")
        Path(chosen).write_text("#!/bin/sh\necho 'x.cpp:1: error: no' >&2; exit 1\n")
        Path(chosen).chmod(0o755)
    lines = use(installed, FUSEWRIGHT_CXX=chosen)
    assert lines[-1] == "eager"
    why = {"none": "no C++ compiler is found", "broken": "x.cpp:1: error: no"}[problem]
    assert [why in line and line.startswith("nothing is fused") for line in lines].count(True) == 1
    assert len(lines) == (3 if problem == "none" else 4)  # `broken` had begun


def test_a_torch_outside_of_the_range_is_named_in_one_line(installed):
    lines = use(installed, arguments=["2.99.1"])
    assert len(lines) == 3 and lines[-1] == "eager"
    assert sum(
        line.startswith("nothing is fused: torch 2.99.1 is not supported: install torch>=2.6,<") for line in lines
    )


def test_another_torch(installed):
    """FUSEWRIGHT_TEST_PYTHON: an interpreter with another torch, for which the part is compiled in earnest."""
    python = os.environ.get("FUSEWRIGHT_TEST_PYTHON")
    if not python:
        pytest.skip("FUSEWRIGHT_TEST_PYTHON names no interpreter with another torch")
    assert use(installed, python)[-1] == "1"
