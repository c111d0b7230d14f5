"""Makes .venv, with everything that building and running Fusewright needs. Standard library only.

    python3 scripts/setup.py
    python3 scripts/setup.py --tests        what only tests and lint need as well
    python3 scripts/setup.py --browser      Chromium, in which `make test` opens the report, where it can be installed

The environment is made from the interpreter that runs this script. If that has a supported torch, the
environment sees it and only what is missing is installed; with nothing missing, no network is touched.
Otherwise torch and the rest come from PyPI. Runs again in a moment when nothing changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = (
    VENV / "fusewright-setup"
)  # two digests, what .venv was made from and which requirements; `tests` if it has those
MADE_FROM = VENV / "made-from"  # the interpreter, for the next `make`

SUPPORTED_PYTHON = ((3, 10), (3, 13))
TORCH_FROM_PYPI = "torch==2.13.0"


def main(tests: bool = False) -> None:
    low, high = SUPPORTED_PYTHON
    if not low <= sys.version_info[:2] <= high:
        fail(
            f"Python {low[0]}.{low[1]} to {high[0]}.{high[1]} is needed, {sys.executable} is "
            f"{sys.version.split()[0]}: make setup PYTHON=/path/to/another"
        )

    environment = digest(sys.executable, sys.version, str(ROOT))
    requirements = digest((ROOT / "pyproject.toml").read_text(), Path(__file__).read_text())
    stamp = STAMP.read_text().split() if STAMP.exists() else []
    if stamp[:2] == [environment, requirements] and (stamp[2:] or not tests) and PYTHON.exists():
        return

    start = time.time()
    system_packages(tests)
    if stamp[:1] != [environment] or not PYTHON.exists():
        make_venv()
    install(tests)
    MADE_FROM.write_text(f"{sys.executable}\n")
    STAMP.write_text("\n".join([environment, requirements, *["tests"] * tests, ""]))
    say(f"environment ready in {time.time() - start:.0f} s")


# ---- the system --------------------------------------------------------------------------------------------


def system_packages(tests: bool) -> None:
    """Compiler, CMake, ninja, Python's headers and, for tests, GoogleTest: installed when missing and possible."""
    wanted = {
        "g++": shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++"),
        "cmake": shutil.which("cmake"),
        "ninja-build": shutil.which("ninja"),
        "libgtest-dev": not tests or has_gtest(),
        "python3-dev": has_python_headers(),
        "python3-venv": has_module("ensurepip"),
    }
    missing = [name for name, found in wanted.items() if not found]
    apt_install(missing)
    hint = "apt-get install " + " ".join(missing)
    if not (shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")):
        fail(f"no C++ compiler found (g++ 11 or newer, clang 14 or newer): {hint}")
    if not has_python_headers():
        fail(f"no Python.h in {sysconfig.get_path('include')}, the extension cannot be built: {hint}")
    if not has_module("ensurepip") and not has_module("pip"):
        fail(f"{sys.executable} cannot make a virtual environment with pip in it: {hint}")
    if tests and not has_gtest():
        say("GoogleTest is missing and could not be installed: the C++ tests will not be built.")
        say("As root: apt-get install libgtest-dev")


def apt_install(missing: list[str]) -> None:
    """Where that is possible; the caller looks what is there afterwards."""
    if not missing or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    say(f"installing system packages with apt-get: {' '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-q", "-y", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20"]
    install = [*apt, "install", "--no-install-recommends", *missing]
    if subprocess.run(install, env=environment).returncode != 0:  # perhaps the lists are old or empty
        subprocess.run([*apt, "update"], env=environment)
        subprocess.run(install, env=environment)


def browser() -> None:
    """Not among the packages above: only one test wants it, and it is large."""
    if not any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")):
        apt_install(["chromium"])


def has_gtest() -> bool:
    prefixes = [*os.environ.get("CMAKE_PREFIX_PATH", "").split(":"), "/usr", "/usr/local"]
    return any((Path(prefix) / "include/gtest/gtest.h").exists() for prefix in prefixes if prefix)


def has_python_headers() -> bool:
    return (Path(sysconfig.get_path("include")) / "Python.h").exists()


def has_module(name: str) -> bool:
    # Asked in a fresh interpreter: apt-get may have installed it after this one started.
    return subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True).returncode == 0


# ---- the environment ---------------------------------------------------------------------------------------


def make_venv() -> None:
    if VENV.exists():
        if not (VENV / "pyvenv.cfg").exists():
            fail(f"{VENV} exists and is no virtual environment: move it away")
        shutil.rmtree(VENV)
    torch = version_of_torch(sys.executable)
    inherit = torch is not None and supported(torch)
    origin = f"which has torch {torch}" if inherit else "torch from PyPI"
    say(f"making {VENV.name} from {sys.executable}, {origin}")
    own_pip = has_module("ensurepip")
    options = ["--system-site-packages"] * inherit + ["--without-pip"] * (not own_pip)
    run(sys.executable, "-m", "venv", *options, str(VENV))
    if inherit or not own_pip:
        see_parent_packages()
        if inherit and version_of_torch(PYTHON) != torch:
            fail(f"the environment does not see the torch {torch} of {sys.executable}")


def see_parent_packages() -> None:
    """--system-site-packages shows the packages of the base Python. Where our interpreter lives in a virtual
    environment itself, or has user packages, those are added here."""
    purelib = Path(ask(PYTHON, "import sysconfig; print(sysconfig.get_path('purelib'))"))
    seen = ask(PYTHON, "import sys; print('\\n'.join(sys.path))").split("\n")
    paths = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    hidden = [path for path in paths if Path(path).is_dir() and path not in seen]
    lines = [f"import site; site.addsitedir({path!r})\n" for path in hidden]
    (purelib / "_parent_packages.pth").write_text("".join(lines))
    # The old setuptools that venv adds before Python 3.12 would hide the parent's, which its torch may need.
    if (purelib / "setuptools").exists():
        pip("uninstall", "-y", "setuptools")


def install(tests: bool) -> None:
    if not supported(version_of_torch(PYTHON)):
        say(f"installing {TORCH_FROM_PYPI}")
        run(str(PYTHON), "-m", "pip", "install", TORCH_FROM_PYPI)  # not quiet: it may take minutes

    # What builds us comes first: our own build is not isolated, or it would fetch a second torch.
    build_tools = ["scikit-build-core>=0.10"]
    build_tools += ["cmake>=3.22"] if not shutil.which("cmake") else []
    build_tools += ["ninja"] if not shutil.which("ninja") else []
    pip("install", *build_tools)

    # Registers the package (metadata, entry points, the `fusewright` command) with a path to python/, where
    # `make build` puts the extension: nothing is compiled here.
    inplace = ["--config-settings=editable.mode=inplace", "--config-settings=wheel.cmake=false"]
    pip("install", "--no-build-isolation", "--no-deps", *inplace, "--editable", str(ROOT))

    # pip looks nothing up for a requirement that is met: no network.
    pip("install", *requirements())
    if not tests:
        return
    wanted = requirements("test")
    nvrtc = [name for name in wanted if name.startswith("nvidia-")]
    pip("install", *(name for name in wanted if name not in nvrtc))
    # What a machine without network may lack: the checks of layout, and NVRTC if torch brings none.
    may_lack(requirements("lint"), "ruff and clang-format could not be installed: lint will be skipped")
    may_lack(nvrtc, "NVRTC could not be installed: tests that compile GPU kernels use torch's or are skipped")


def may_lack(wanted: list[str], without: str) -> None:
    if pip("install", "--retries", "1", "--timeout", "30", *wanted, check=False) != 0:
        say(without)
        say("To try again: rm .venv/fusewright-setup && make setup")


def requirements(extra: str = "") -> list[str]:
    """What pyproject.toml asks for, with an extra and without torch, which is there already."""
    program = "import importlib.metadata as m; print('\\n'.join(m.requires('fusewright')))"
    result = []
    for line in ask(PYTHON, program).split("\n"):
        requirement, _, marker = line.partition(";")
        if not requirement.startswith("torch") and (not marker or (extra and extra in marker)):
            result.append(requirement.strip())
    return result


def version_of_torch(python: str | Path) -> str | None:
    program = "import torch; print(torch.__version__)"
    found = subprocess.run([str(python), "-c", program], capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else None


def supported(version: str | None) -> bool:
    if version is None:
        return False
    low, end = supported_torch()
    return low <= tuple(int(part) for part in version.split(".")[:2]) < end


def supported_torch() -> tuple[tuple[int, ...], ...]:
    """The first version and the first that is none any more, of pyproject.toml."""
    found = re.search(r'^supported-torch = "(.*)\.\.\.<(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    return tuple(tuple(int(part) for part in version.split(".")) for version in found.groups())


# ---- small things ------------------------------------------------------------------------------------------


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def ask(python: str | Path, program: str) -> str:
    done = subprocess.run([str(python), "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def run(*command: str, check: bool = True) -> int:
    status = subprocess.run(command, cwd=ROOT).returncode
    if check and status != 0:
        fail(f"failed: {' '.join(command)}")
    return status


def pip(*arguments: str, check: bool = True) -> int:
    return run(str(PYTHON), "-m", "pip", "--disable-pip-version-check", "-q", *arguments, check=check)


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def fail(text: str) -> None:
    sys.exit(f"setup: {text}")


if __name__ == "__main__":
    browser() if sys.argv[1:] == ["--browser"] else main(tests="--tests" in sys.argv[1:])
