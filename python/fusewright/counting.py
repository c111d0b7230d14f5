"""What eager runs, counted: operators that touch memory, and the bytes that they move."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

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


class CountOperators(TorchDispatchMode):
    """Counts what eager runs: operators that touch memory, and the bytes they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = self.library = self.bytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        name = function._schema.name.split("::")[1]
        returns = function._schema.returns
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        if is_view or name in ("detach", "empty", "empty_like", "empty_strided"):
            return result
        if name in LIBRARY_OPERATORS:
            self.library += 1
        else:
            self.operators += 1
            self.bytes += _tensor_bytes([*arguments, result])
        return result


def _tensor_bytes(values: object) -> int:
    if isinstance(values, torch.Tensor):
        return values.numel() * values.element_size()
    if isinstance(values, (list, tuple)):
        return sum(_tensor_bytes(value) for value in values)
    return 0
