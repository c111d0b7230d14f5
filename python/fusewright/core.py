"""The compiled extension, ready for use. `from . import _core` anywhere in the package comes here."""

from __future__ import annotations

import atexit
import importlib
from pathlib import Path
from types import ModuleType

import torch  # before the extension, which is linked against its libraries

from . import log
from .errors import BuildError

AGAIN = "build it again in its sources: pip install --no-build-isolation ."


def load() -> ModuleType:
    """The extension. For another torch than the one it was built for, one line instead of the linker's complaint.

    Within one minor version of torch it is tried: what it was linked against rarely changes there.
    """
    built, here = _built_with(), torch.__version__
    other = f"fusewright was built for torch {built}, and torch {here} is here; {AGAIN}"
    if built and built.split(".")[:2] != here.split(".")[:2]:
        raise BuildError(other)
    try:
        return importlib.import_module("fusewright._core")
    except ModuleNotFoundError:
        raise BuildError(f"the extension of fusewright is not built for this Python; {AGAIN}") from None
    except ImportError as error:
        if built == here:
            raise
        unloaded = f"the extension of fusewright cannot be loaded ({error}); {AGAIN}"
        raise BuildError(other if built else unloaded) from None


def _built_with() -> str:
    """The version of torch, written by the build."""
    try:
        return importlib.import_module("fusewright._built_with").TORCH
    except ImportError:
        return ""


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
