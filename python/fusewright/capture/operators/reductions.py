"""Rows of reductions over dimensions, and softmax."""

from __future__ import annotations

import math

import torch

from ... import reasons
from .table import imports


def _axes(self, dim) -> list[int]:
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(self.rank))
    axes = [dim] if isinstance(dim, int) else list(dim)
    return sorted(axis % self.rank if self.rank else 0 for axis in axes)


def reduce_dims(c, name, self, dim, keepdim, **attributes):
    if self.rank == 0:  # a reduction of a number over nothing, or over its "dimension" 0
        self = c.op("reshape", [self], sizes=[1])
        dim, keepdim = [0], False
    return c.op(name, [self], dims=_axes(self, dim), keepdim=int(bool(keepdim)), **attributes)


@imports("sum.dim_IntList", "mean.dim", "prod.dim_int")
def _sum_dim(c, self, dim, keepdim):
    return reduce_dims(c, c.row.name, c.cast(self, c.result_dtype), dim, keepdim)


@imports("sum", "mean", "prod")
def _sum_all(c, self):
    return reduce_dims(c, c.row.name, c.cast(self, c.result_dtype), None, False)


@imports("amax", "amin")
def _amax(c, self, dim, keepdim):
    return reduce_dims(c, c.row.name, _ordered(c, self), dim, keepdim, tie=0)


@imports("max", name="amax")
def _max_all(c, self):
    return reduce_dims(c, "amax", _ordered(c, self), None, False, tie=0)


@imports("min", name="amin")
def _min_all(c, self):
    return reduce_dims(c, "amin", _ordered(c, self), None, False, tie=0)


@imports("max.dim", name="max")
def _max_dim(c, self, dim, keepdim):
    return _with_index(c, "amax", "argmax", self, dim, keepdim)


@imports("min.dim", name="min")
def _min_dim(c, self, dim, keepdim):
    return _with_index(c, "amin", "argmin", self, dim, keepdim)


def _with_index(c, value, index, self, dim, keepdim):
    x = _ordered(c, self)
    return (lambda: reduce_dims(c, value, x, dim, keepdim, tie=1), lambda: reduce_dims(c, index, x, dim, keepdim))


def _ordered(c, self):
    if self.dtype is torch.bool:
        c.decline(reasons.UNSUPPORTED_DTYPE, "extrema of booleans")
    return self


@imports("argmax", "argmin")
def _argmax(c, self, dim, keepdim):
    x = _ordered(c, self)
    if dim is None and x.rank != 1:  # the position in the flattened tensor
        if keepdim:
            c.decline(reasons.UNSUPPORTED_ATTRIBUTE, "keepdim without dim")
        x = c.op("reshape", [x], sizes=[c.size(math.prod(x.sizes))])
    return reduce_dims(c, c.row.name, x, 0 if dim is None else dim, keepdim)


@imports("var.correction", "std.correction")
def _var_correction(c, self, dim, correction, keepdim):
    return _var_or_std(c, self, dim, 1 if correction is None else correction, keepdim)


@imports("var.dim", "std.dim")
def _var_dim(c, self, dim, unbiased, keepdim):
    return _var_or_std(c, self, dim, int(unbiased), keepdim)


@imports("var", "std")
def _var_all(c, self, unbiased):
    return _var_or_std(c, self, None, int(unbiased), False)


def _var_or_std(c, self, dim, correction, keepdim):
    if not self.dtype.is_floating_point:
        c.decline(reasons.UNSUPPORTED_DTYPE, "variance of complex numbers")
    name = "stddev" if "std" in str(c.node.target) else "var"
    return reduce_dims(c, name, self, dim, keepdim, correction=c.number(correction))


@imports("var_mean.correction", "std_mean.correction", name="var_mean")
def _var_mean_correction(c, self, dim, correction, keepdim):
    return _var_mean(c, self, dim, 1 if correction is None else correction, keepdim)


@imports("var_mean.dim", "std_mean.dim", name="var_mean")
def _var_mean_dim(c, self, dim, unbiased, keepdim):
    return _var_mean(c, self, dim, int(unbiased), keepdim)


@imports("var_mean", "std_mean", name="var_mean")
def _var_mean_all(c, self, unbiased):
    return _var_mean(c, self, None, int(unbiased), False)


def _var_mean(c, self, dim, correction, keepdim):
    return (
        lambda: _var_or_std(c, self, dim, correction, keepdim),
        lambda: reduce_dims(c, "mean", self, dim, keepdim),
    )


@imports("logsumexp")
def _logsumexp(c, self, dim, keepdim):
    return reduce_dims(c, "logsumexp", c.cast(self, c.result_dtype), dim, keepdim)


@imports("linalg_vector_norm", name="vector_norm")
def _vector_norm(c, self, ord, dim, keepdim):
    x = c.cast(self, c.result_dtype)
    order = c.number(ord)
    if order not in (1, 2):
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, f"a norm of order {order}")
    return reduce_dims(c, "vector_norm", x, dim, keepdim, order=int(order))


@imports("softmax.int", "log_softmax.int", "_softmax", "_log_softmax")
def _softmax(c, self, dim):
    if self.rank == 0:
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, "softmax of a number")
    return c.op(c.row.name, [c.cast(self, c.result_dtype)], dim=dim % self.rank)
