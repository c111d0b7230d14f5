"""Puts an operator into contexts: alone, between two pointwise operators, before a reduction, in place.

The operators before it change no value, so that no sample leaves the operator's domain.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def before(x):
    """Another operator that gives the same numbers, and the same gradient."""
    if isinstance(x, (list, tuple)):
        return type(x)([before(y) for y in x]) if type(x) in (list, tuple) else x
    if not isinstance(x, torch.Tensor) or x.dtype.is_complex or x.layout is not torch.strided:
        return x
    if x.dtype is torch.bool:
        return torch.logical_not(torch.logical_not(x))
    return torch.maximum(x, x - 1) if x.dtype.is_floating_point else torch.neg(torch.neg(x))


def _to_each(change: Callable) -> Callable:
    def apply(y):
        if isinstance(y, (list, tuple)):
            return [apply(z) for z in y]
        if not isinstance(y, torch.Tensor) or y.dtype.is_complex or y.layout is not torch.strided:
            return y
        return change(y)

    return apply


def _pointwise(y):
    """Smooth, and steep everywhere: no error of the operator disappears."""
    if y.dtype is torch.bool:
        return torch.logical_not(y)
    return y * 1.25 + torch.tanh(y) if y.dtype.is_floating_point else y * 3 + 1


def _sum(y):
    return y.sum()


def _mean(y):
    if not y.dtype.is_floating_point:
        return y
    return y.mean(-1, keepdim=True) if y.dim() else y.mean()


def _softmax(y):
    return y.softmax(-1) if y.dtype.is_floating_point else y


AFTER = {"between": _to_each(_pointwise), "sum": _to_each(_sum), "mean": _to_each(_mean), "softmax": _to_each(_softmax)}


def function_of(op, kind: str) -> Callable:
    """The function that is optimised; a new one each time, for Dynamo keeps what it learns by function."""
    call, change = op.op, op.inplace_variant

    def plain(input, *args, **kwargs):
        return call(input, *args, **kwargs)

    def between(input, *args, **kwargs):
        return AFTER["between"](call(before(input), *before(args), **kwargs))

    def reduced(input, *args, **kwargs):
        return AFTER[kind](call(input, *args, **kwargs))

    def inplace(input, *args, **kwargs):
        copy = input.clone()
        change(copy, *args, **kwargs)
        return copy

    def written(input, *args, **kwargs):
        return change(input, *args, **kwargs)

    functions = {"between": between, "inplace": inplace, "written": written}
    return functions.get(kind, reduced if kind in AFTER else plain)
