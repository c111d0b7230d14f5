"""What certify and bench are asked about: a model or function as a plain copy, its inputs, and what surrounds it."""

from __future__ import annotations

import copy
import os
import platform
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.utils import _pytree as pytree

from . import _core
from .errors import InputError
from .optimize import restore


class _Function(nn.Module):
    def __init__(self, function: Callable):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def plain_copy(model, command: str) -> nn.Module:
    """A copy that nothing was done to; a function becomes a module."""
    if not callable(model):
        raise TypeError(f"{command}: expected a torch.nn.Module or a function, got a {type(model).__name__}")
    if not isinstance(model, nn.Module):
        return _Function(restore(model))
    try:
        return copy.deepcopy(model)
    except Exception as error:  # whatever an attribute of it raises
        raise InputError(
            f"{command}: the model cannot be copied: {type(error).__name__}: {first_line(error)}"
        ) from error


def name_of(model) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", type(model).__name__)


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def resampled(inputs: Sequence, first_seed: int, seed: int) -> list:
    """The inputs themselves for the first seed, then their own elements drawn anew: of the same range, whatever it is.
    Integers and booleans may mean something by row, so rows are drawn."""
    if seed == first_seed:
        return list(inputs)
    generator = torch.Generator("cpu").manual_seed(seed)

    def one(x: torch.Tensor) -> torch.Tensor:
        if x.numel() == 0 or x.dim() == 0:
            return x
        if x.is_floating_point():
            return x.flatten()[torch.randint(x.numel(), x.shape, generator=generator, device="cpu").to(x.device)]
        return x[torch.randint(len(x), (len(x),), generator=generator, device="cpu").to(x.device)]

    return list(pytree.tree_map_only(torch.Tensor, one, list(inputs)))


def versions() -> dict[str, str | None]:
    """What the numbers depend on."""
    return {
        "fusewright": _core.version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def flags() -> dict[str, object]:
    """The switches of torch, and of ours, that change numbers or kernels."""
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        **{name: value for name, value in sorted(os.environ.items()) if name.startswith("FUSEWRIGHT_")},
    }


def device_words(device: torch.device) -> str:
    """The device with what it is: `cuda:0 (NVIDIA H200)`, `cpu (2 threads, x86_64)`."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return f"{device} ({gpu or f'{torch.get_num_threads()} threads, {platform.machine()}'})"
