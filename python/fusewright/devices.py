"""Which devices have kernels of ours, and where PyTorch's packages keep the libraries of CUDA."""

from __future__ import annotations

from pathlib import Path

import torch

from . import _core, reasons
from .errors import Decline


def library_directories() -> list[str]:
    """`nvidia/*/lib` beside torch (the packages that its CUDA wheels depend on), and torch's own."""
    torch_folder = Path(torch.__file__).resolve().parent
    found = sorted((torch_folder.parent / "nvidia").glob("*/lib"))
    return [str(folder) for folder in (*found, torch_folder / "lib") if folder.is_dir()]


def check(device: torch.device) -> None:
    """Declines a device without kernels of ours."""
    if device.type == "cpu":
        return
    if device.type != "cuda":
        raise Decline(reasons.DEVICE, str(device))
    if not _core.cuda_available():
        raise Decline(reasons.NO_GPU_RUNTIME, _core.cuda_unavailable_because())


def gpu_index(device: torch.device) -> int:
    """The index of a GPU, or -1 for the CPU: as the core counts."""
    if device.type != "cuda":
        return -1
    return torch.cuda.current_device() if device.index is None else device.index
