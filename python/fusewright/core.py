"""The compiled extension, ready for use. `from . import _core` anywhere in the package comes here."""

from __future__ import annotations

import atexit
import importlib
from pathlib import Path

import torch  # before the extension, which is linked against its libraries

from . import log

extension = importlib.import_module("fusewright._core")


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
