"""The table itself and how a row enters it; the package's docstring says what a row is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

COMPUTE, HEAVY, CAST, PASSIVE = "compute", "heavy", "cast", "passive"


class Row(NamedTuple):
    """One line of the table."""

    name: str  # as the user knows it: origin in the core, operator in `explain`
    role: str
    build: Callable
    parameters: tuple[str, ...]


TABLE: dict[torch._ops.OpOverload, Row] = {}

# Pure views that the core has no operation for. PyTorch runs them for free; they are reported where they cut a chain.
FREE_VIEWS: set = set()


def overload_of(spelling: str):
    """`aten.add.Tensor` for "add.Tensor"; None where this version of PyTorch has no such overload."""
    packet, _, overload = spelling.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def imports(*spellings: str, name: str | None = None, role: str = COMPUTE):
    """Enter the function under these ATen overloads."""

    def enter(build):
        code = build.__code__
        parameters = code.co_varnames[1 : code.co_argcount]
        for spelling in spellings:
            overload = overload_of(spelling)
            if overload is not None:
                row_name = name or spelling.partition(".")[0].strip("_")
                TABLE[overload] = Row(row_name, role, build, parameters)
        return build

    return enter


for _spelling in (
    "slice.Tensor", "select.int", "split.Tensor", "split_with_sizes", "chunk", "unbind.int", "narrow", "diagonal",
    "as_strided", "unfold", "tensor_split.sections", "view_as_real", "real", "imag",
):  # fmt: skip
    if (_found := overload_of(_spelling)) is not None:
        FREE_VIEWS.add(_found)
