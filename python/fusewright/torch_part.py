"""Builds the part of the package that includes torch, for a torch or a Python that the package brings none for.

It is compiled once, from the package's own sources, and kept in the cache of kernels under the rules of that cache.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from .errors import BuildError
from .log import logger

# As CMakeLists.txt compiles it.
FLAGS = (
    *("-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-ffp-contract=off", "-w"),
    *("-fvisibility=hidden", "-fvisibility-inlines-hidden"),
    *("-DTORCH_EXTENSION_NAME=_core", "-DTORCH_API_INCLUDE_EXTENSION_H"),
)
LIBRARIES = ("torch", "torch_cpu", "c10", "torch_python")
WAIT = 1800  # seconds for another process that builds the same

_failed = ""  # it is not tried twice in a process


@contextmanager
def built(core: ctypes.CDLL, sources: Path) -> Iterator[Path]:
    """The file of the part, as long as the block runs. A `BuildError` says in one line why there is none."""
    global _failed
    if _failed:
        raise BuildError(_failed)
    try:
        try:
            library = _obtain(core, sources)
        except OSError as error:  # no folder for temporary files, a compiler that cannot be run
            raise BuildError(
                f"the part of fusewright for torch {torch.__version__} cannot be built: {error}"
            ) from error
    except BuildError as error:
        _failed = str(error)
        raise
    with tempfile.TemporaryDirectory(prefix="fusewright-") as folder:
        path = Path(folder, "_core.so")
        path.write_bytes(library)
        yield path


def _obtain(core: ctypes.CDLL, sources: Path) -> bytes:
    what = f"the part of fusewright for torch {torch.__version__} and Python {sysconfig.get_python_version()}"
    if not (sources / "src").is_dir():
        raise BuildError(f"{what} is not built, and its sources are not here: run `make build`, or install with pip")
    low, end = (sources / "supported-torch").read_text().strip().split("...<")
    if not _number(low) <= _number(torch.__version__) < _number(end):
        raise BuildError(f"torch {torch.__version__} is not supported: install torch>={low},<{end}")
    compiler = _compiler()
    if compiler is None:
        raise BuildError(
            f"{what} cannot be built: no C++ compiler is found; install g++ (11 or newer) or set FUSEWRIGHT_CXX"
        )
    python_headers = sysconfig.get_path("include")
    if not Path(python_headers, "Python.h").exists():
        raise BuildError(f"{what} cannot be built: there is no Python.h in {python_headers}; install python3-dev")
    core.fusewright_version.restype = ctypes.c_char_p
    version = core.fusewright_version().decode()
    cache, key = _Cache(core), _key(version, sources, compiler)
    library = cache.get(key)
    if library is None:
        with cache.lock(key):
            library = cache.get(key)
            if library is None:
                library = _build(what, version, sources, compiler, python_headers)
                cache.put(key, library)
    return library


def _build(what: str, version: str, sources: Path, compiler: list[str], python_headers: str) -> bytes:
    from .console import progress  # which imports more than finding the part in the cache takes

    root = Path(torch.__file__).resolve().parent
    new_strings = bool(torch._C._GLIBCXX_USE_CXX11_ABI)
    files = source_files(sources, new_strings)
    system = (root / "include", root / "include/torch/csrc/api/include", python_headers)
    flags = [
        *FLAGS,
        *(f"-I{sources / folder}" for folder in ("src", "include", "generated")),
        *(word for folder in system for word in ("-isystem", str(folder))),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(new_strings)}",
        f'-DFUSEWRIGHT_VERSION="{version}"',
    ]
    linked = [str(root / "lib" / f"lib{name}.so") for name in LIBRARIES]
    if new_strings:
        linked.insert(0, str(sources.parent / "libfusewright.so"))
    with (
        tempfile.TemporaryDirectory(prefix="fusewright-") as folder,
        progress(len(files) + 1) as step,
        ThreadPoolExecutor(_jobs()) as threads,
    ):
        step(f"building {what}, once: {len(files)} files")
        objects = [f"{folder}/{number}.o" for number in range(len(files))]

        def compiled(pair: tuple[Path, str]) -> Path:
            _run(what, [*compiler, *flags, "-c", str(pair[0]), "-o", pair[1]], folder)
            return pair[0]

        try:
            for file in threads.map(compiled, zip(files, objects, strict=True)):
                step(f"  compiled {file.relative_to(sources)}")
        except BaseException:
            threads.shutdown(wait=True, cancel_futures=True)
            raise
        library = f"{folder}/_core.so"
        # What comes out of archives stays inside (CMakeLists.txt).
        _run(what, [*compiler, "-shared", "-o", library, *objects, "-Wl,--exclude-libs,ALL", *linked, "-ldl"], folder)
        return Path(library).read_bytes()


def source_files(sources: Path, new_strings: bool) -> list[Path]:
    """What is compiled, the largest first. With the old std::string (torch 2.6) the core is compiled as well."""
    files = [*(sources / "src/torch").glob("*.cpp")]
    if not new_strings:
        folders = ("base", "ir", "ops", "passes", "schedule", "codegen", "runtime", "emit")
        files += [file for name in folders for file in (sources / "src" / name).rglob("*.cpp")]
        files.append(sources / "generated/embedded_kernels.cpp")
    return sorted(files, key=lambda file: (-file.stat().st_size, file))


def _run(what: str, command: list[str], folder: str) -> None:
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": folder}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode == 0:
        return
    logger.debug("%s\n%s", shlex.join(command), done.stdout)
    lines = done.stdout.splitlines()
    reason = next((line for line in lines if "error" in line), lines[-1] if lines else f"status {done.returncode}")
    raise BuildError(f"{what} cannot be built: {reason.strip()} (FUSEWRIGHT_LOG=debug shows the whole output)")


def _compiler() -> list[str] | None:
    """FUSEWRIGHT_CXX and no other, else CXX, g++, c++ or clang++, as for kernels."""
    chosen = os.environ.get("FUSEWRIGHT_CXX", "")
    if chosen:
        commands = [[chosen] if shutil.which(chosen) else chosen.split()]
    else:
        commands = [os.environ.get("CXX", "").split(), ["g++"], ["c++"], ["clang++"]]
    for command in commands:
        program = shutil.which(command[0]) if command else None
        if program and os.path.isabs(program):
            return [program, *command[1:]]
    return None


def _key(version: str, sources: Path, compiler: list[str]) -> str:
    """Of all that decides the library."""
    digest = hashlib.sha256()

    def add(*fields: object) -> None:
        for field in fields:
            content = field if isinstance(field, bytes) else str(field).encode()
            digest.update(b"%d:" % len(content) + content)

    add("torch part", version, torch.__version__, torch.version.git_version, torch._C._GLIBCXX_USE_CXX11_ABI)
    add(sysconfig.get_config_var("SOABI"), *FLAGS)
    for word in compiler:
        add(word)
        if program := shutil.which(word):
            status = os.stat(program)
            add(os.path.realpath(program), status.st_size, status.st_mtime_ns)
    for name in ("CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"):
        add(os.environ.get(name, ""))
    for file in sorted(file for file in sources.rglob("*") if file.is_file()):
        add(file.relative_to(sources), file.read_bytes())
    return digest.hexdigest()


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _jobs() -> int:
    chosen = os.environ.get("MAX_JOBS", "")
    return int(chosen) if chosen.isdecimal() and int(chosen) > 0 else len(os.sched_getaffinity(0))


class _Cache:
    """The core's cache on disk (src/runtime/cache/exported.cpp)."""

    def __init__(self, core: ctypes.CDLL):
        self._take = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)
        self._get, self._put = core.fusewright_cache_get, core.fusewright_cache_put
        self._lock, self._unlock = core.fusewright_cache_lock, core.fusewright_cache_unlock
        self._get.argtypes, self._get.restype = [ctypes.c_char_p, self._take], ctypes.c_bool
        self._put.argtypes, self._put.restype = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t], None
        self._lock.argtypes, self._lock.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
        self._unlock.argtypes, self._unlock.restype = [ctypes.c_void_p], None

    def get(self, key: str) -> bytes | None:
        found: list[bytes] = []
        take = self._take(lambda address, size: found.append(ctypes.string_at(address, size)))
        return found[0] if self._get(key.encode(), take) else None

    def put(self, key: str, content: bytes) -> None:
        self._put(key.encode(), content, len(content))

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        held = self._lock(key.encode(), WAIT)
        try:
            yield
        finally:
            self._unlock(held)
