"""The compiled libraries, ready for use. `from . import _core` anywhere in the package comes here.

`libfusewright.so` is the core, which knows neither torch nor Python. `_core-X.Y.*.so` is the part that includes torch,
for one minor version of torch and one Python; what the package does not bring is built once (torch_part.py).
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch  # before the part, which is linked against its libraries

from . import log
from .errors import BuildError

NAME = "fusewright._core"
# An editable install may have the libraries in another folder than the modules.
FOLDERS = [Path(folder) for folder in sys.modules[__package__].__path__]


def load() -> ModuleType:
    """The part for the torch that is here. A `BuildError` says in one line why there is none."""
    if NAME in sys.modules:  # a test's own
        return sys.modules[NAME]
    library = _first("libfusewright.so")
    try:
        core = ctypes.CDLL(str(library))  # the part finds it by name, wherever the part lies
    except OSError as error:
        raise BuildError(f"fusewright is not built here ({error}): install it with pip, or run `make build`") from None
    sources = library.parent / "sources"
    if part := brought(torch.__version__):
        try:
            return _load(part)
        except BuildError as error:
            if not sources.exists():
                raise
            log.logger.info("%s", error)
    from . import torch_part

    with torch_part.built(core, sources) as path:
        return _load(path)


def _first(name: str) -> Path:
    """The file of this name in the folders of the package, or where it would be."""
    return next((folder / name for folder in FOLDERS if (folder / name).exists()), FOLDERS[0] / name)


def brought(version: str) -> Path | None:
    """The part that the package has for this version of torch and this Python."""
    minor = ".".join(version.split(".")[:2])
    files = (_first(f"_core-{minor}{suffix}") for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    return next((file for file in files if file.exists()), None)


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(NAME, path)
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise BuildError(f"{path} cannot be loaded with torch {torch.__version__}: {error}") from None
    sys.modules[NAME] = module
    return module


extension = load()


def library_directories() -> list[str]:
    """`nvidia/*/lib` beside torch (the packages that its CUDA wheels depend on), and torch's own."""
    torch_folder = Path(torch.__file__).resolve().parent
    found = sorted((torch_folder.parent / "nvidia").glob("*/lib"))
    return [str(folder) for folder in (*found, torch_folder / "lib") if folder.is_dir()]


atexit.register(extension.finish_compiling)  # while there is an interpreter to log to
log.configure()
extension.set_log_sink(log.core_sink)
extension.add_library_directories(library_directories())
extension.set_key_salt(f"torch {torch.__version__}")  # part of the key of every cached kernel
