"""What eager PyTorch runs: operators that touch memory, and the bytes that they read and write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .measure import tensors_in

# Operators that stay with the library: counted apart, before and after.
LIBRARY_OPERATORS = (
    "convolution",
    "convolution_backward",
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "linear",
    "matmul",
)
_TOUCH_NOTHING = ("detach", "empty", "empty_like", "empty_strided")


@dataclass(frozen=True)
class Traffic:
    operators: int
    library: int  # calls
    bytes: int  # outside the library's operators


def traffic_of(call: Callable[[], object]) -> Traffic:
    """Of what the call runs, with a backward if it asks for one."""
    with _CountOperators() as count:
        call()
    return Traffic(count.operators, count.library, count.bytes)


class _CountOperators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators = self.library = self.bytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        namespace, name = function._schema.name.split("::")
        returns = function._schema.returns
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        if is_view or name in _TOUCH_NOTHING or namespace == "prim":  # which asks fake tensors for their device
            return result
        if name in LIBRARY_OPERATORS:
            self.library += 1
        else:
            self.operators += 1
            self.bytes += sum(_bytes(tensor) for tensor in tensors_in([*arguments, result]))
        return result


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
