"""Which devices have kernels of ours."""

from __future__ import annotations

import torch

from . import _core, reasons
from .errors import Decline


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
