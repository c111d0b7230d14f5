"""The one table of operators: ATen overload -> how it is imported into the core.

A row is a function `(c, **arguments)` whose parameters carry the names of the ATen schema; defaults come from the schema,
so a row lists only what it reads. Tensors arrive as `Operand`, numbers as Python numbers or as `Dynamic` (a number
known only at run time). `c` is the importer's `Context`: `c.op(name, operands, **attributes)` adds an operation of the core
(src/ops/ops.def), `c.decline(reason, detail)` leaves the node to PyTorch. The importer casts each result to the dtype that
eager gave the node, so rows only choose the dtype they compute in.

Role of a row:
  COMPUTE  the reason to have a region
  HEAVY    matrix products and convolutions: welcome in a region, but not worth one alone
  CAST     a change of dtype: likewise
  PASSIVE  views and identities: inside a region for its own use, run by PyTorch for everybody else, so that aliasing
           stays eager's
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from . import reasons

COMPUTE, HEAVY, CAST, PASSIVE = "compute", "heavy", "cast", "passive"


class Row(NamedTuple):
    """One line of the table."""

    name: str  # as the user knows it: origin in the core, operator in `explain`
    role: str
    build: Callable
    parameters: tuple[str, ...]


TABLE: dict[torch._ops.OpOverload, Row] = {}

# Pure views that the core has no operation for. PyTorch runs them for free; they are reported only where they cut a chain.
FREE_VIEWS: set = set()


def _overload(spelling: str):
    """`aten.add.Tensor` for "add.Tensor"; None where this version of PyTorch has no such overload."""
    packet, _, overload = spelling.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def imports(*spellings: str, name: str | None = None, role: str = COMPUTE):
    """Enter the function under these ATen overloads."""

    def enter(build):
        code = build.__code__
        parameters = code.co_varnames[1 : code.co_argcount]
        for spelling in spellings:
            overload = _overload(spelling)
            if overload is not None:
                row_name = name or spelling.partition(".")[0].strip("_")
                TABLE[overload] = Row(row_name, role, build, parameters)
        return build

    return enter


for _spelling in (
    "slice.Tensor", "select.int", "split.Tensor", "split_with_sizes", "chunk", "unbind.int", "narrow", "diagonal",
    "as_strided", "unfold", "tensor_split.sections", "view_as_real", "real", "imag",
):  # fmt: skip
    if (_found := _overload(_spelling)) is not None:
        FREE_VIEWS.add(_found)


# ---- pointwise, one operand -------------------------------------------------------------------------------------


def _unary(spelling: str, core: str | None = None, floating: bool = True):
    # A function of the reals computes on integers in the dtype of its result; abs, neg and sign keep theirs.
    def build(c, self):
        if not floating and self.dtype is torch.bool:
            c.decline(reasons.UNSUPPORTED_DTYPE, "bool")
        return c.op(core or spelling, [c.cast(self, c.result_dtype) if floating else self])

    imports(spelling)(build)


for _name in ("exp", "expm1", "log", "log1p", "erf", "tanh", "sigmoid", "sin", "cos", "sqrt", "rsqrt", "reciprocal"):
    _unary(_name)
for _name in ("neg", "abs", "sign", "square"):
    _unary(_name, floating=False)
_unary("negative", "neg", floating=False)
_unary("absolute", "abs", floating=False)
for _name in ("relu", "silu", "mish", "hardswish", "hardsigmoid", "log_sigmoid"):
    _unary(_name)


@imports("floor", "ceil", "round", "trunc", "fix")
def _rounding(c, self):
    name = "trunc" if c.row.name == "fix" else c.row.name
    return c.op(name, [self]) if self.dtype.is_floating_point else self


@imports("isnan")
def _isnan(c, self):
    return c.op("isnan", [c.cast(self, torch.get_default_dtype()) if not self.dtype.is_floating_point else self])


@imports("logical_not")
def _logical_not(c, self):
    return c.op("logical_not", [c.boolean(self)])


@imports("bitwise_not", name="bitwise_not")
def _bitwise_not(c, self):
    if self.dtype is not torch.bool:
        c.decline(reasons.UNSUPPORTED_DTYPE, "bitwise operators of integers")
    return c.op("logical_not", [self])


@imports("log_sigmoid_forward", name="log_sigmoid")
def _log_sigmoid_forward(c, self):
    return (lambda: c.op("log_sigmoid", [self]), None)


# ---- activations with attributes ----------------------------------------------------------------------------------


@imports("gelu")
def _gelu(c, self, approximate):
    return c.op("gelu", [self], approximate=approximate)


@imports("leaky_relu")
def _leaky_relu(c, self, negative_slope):
    if c.changes(negative_slope):
        positive = c.op("gt", [self, c.scalar(0.0, self, runtime=False)])
        return c.op("select", [positive, self, c.op("mul", [self, c.scalar(negative_slope, self)])])
    return c.op("leaky_relu", [self], negative_slope=c.number(negative_slope))


@imports("softplus")
def _softplus(c, self, beta, threshold):
    return c.op("softplus", [self], beta=c.number(beta), threshold=c.number(threshold))


@imports("hardtanh")
def _hardtanh(c, self, min_val, max_val):
    if c.changes(min_val, max_val):
        return _limited(c, self, min_val, max_val, "le", "ge")
    return c.op("hardtanh", [self], min_val=c.number(min_val), max_val=c.number(max_val))


@imports("relu6")
def _relu6(c, self):
    return c.op("hardtanh", [self], min_val=0.0, max_val=6.0)


@imports("elu")
def _elu(c, self, alpha, scale, input_scale):
    numbers = {"alpha": c.number(alpha), "scale": c.number(scale), "input_scale": c.number(input_scale)}
    return c.op("elu", [self], **numbers)


@imports("selu")
def _selu(c, self):
    return c.op("elu", [self], alpha=1.6732632423543772, scale=1.0507009873554805, input_scale=1.0)


@imports("celu")
def _celu(c, self, alpha):
    alpha = c.number(alpha)
    return c.op("elu", [self], alpha=alpha, scale=1.0, input_scale=1.0 / alpha)


@imports("clamp", "clip", name="clamp")
def _clamp(c, self, min, max):
    return _clamp_to(c, self, min, max)


@imports("clamp_min", name="clamp")
def _clamp_min(c, self, min):
    return _clamp_to(c, self, min, None)


@imports("clamp_max", name="clamp")
def _clamp_max(c, self, max):
    return _clamp_to(c, self, None, max)


def _clamp_to(c, self, low, high):
    if c.changes(low, high):
        return _limited(c, c.cast(self, c.result_dtype), low, high, "lt", "gt")
    limits = {key: c.number(limit) for key, limit in (("min", low), ("max", high)) if limit is not None}
    if not limits or any(math.isnan(limit) for limit in limits.values()):
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, "limits that are NaN or absent")
    return c.op("clamp", [c.cast(self, c.result_dtype)], **limits)


def _limited(c, x, low, high, below, above):
    # Limits that change from call to call: the comparisons decide where the derivative is 0, as hardtanh and clamp differ.
    if low is not None:
        x = c.op("select", [c.op(below, [x, c.scalar(low, x)]), c.scalar(low, x), x])
    if high is not None:
        x = c.op("select", [c.op(above, [x, c.scalar(high, x)]), c.scalar(high, x), x])
    return x


@imports("threshold")
def _threshold(c, self, threshold, value):
    return c.op("select", [c.op("le", [self, c.scalar(threshold, self)]), c.scalar(value, self), self])


@imports("hardshrink")
def _hardshrink(c, self, lambd):
    limit = c.number(lambd)
    inside = [c.op("ge", [self, c.scalar(-limit, self)]), c.op("le", [self, c.scalar(limit, self)])]
    return c.op("select", [c.op("logical_and", inside), c.scalar(0.0, self), self])


@imports("prelu", "_prelu_kernel", name="prelu")
def _prelu(c, self, weight):
    if self.rank > 2 and weight.rank == 1 and weight.sizes[0] != 1:
        weight = c.op("reshape", [weight], sizes=[*c.sizes(weight), *[1] * (self.rank - 2)])
    if weight.rank and self.rank == 0:
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, "a number with a weight of rank 1")
    positive = c.op("gt", [self, c.scalar(0.0, self)])
    return c.op("select", [positive, self, c.op("mul", [c.cast(weight, self.dtype), self])])


# ---- pointwise, two and three operands ------------------------------------------------------------------------------


def _arithmetic(c, name, a, b):
    dtype = c.promoted(a, b)
    if dtype is torch.bool:
        c.decline(reasons.UNSUPPORTED_DTYPE, "arithmetic of booleans")
    return c.op(name, [c.cast(a, dtype), c.cast(b, dtype)])


def _scaled(c, operand, alpha, dtype):
    if isinstance(alpha, (int, float)) and alpha == 1:
        return operand
    return c.op("mul", [c.cast(operand, dtype), c.cast(alpha, dtype)])


@imports("add.Tensor", "add.Scalar")
def _add(c, self, other, alpha):
    return _arithmetic(c, "add", self, _scaled(c, other, alpha, c.promoted(self, other)))


@imports("sub.Tensor", "sub.Scalar", "subtract.Tensor", "subtract.Scalar", name="sub")
def _sub(c, self, other, alpha):
    return _arithmetic(c, "sub", self, _scaled(c, other, alpha, c.promoted(self, other)))


@imports("rsub.Tensor", "rsub.Scalar", name="sub")
def _rsub(c, self, other, alpha):
    return _arithmetic(c, "sub", other, _scaled(c, self, alpha, c.promoted(self, other)))


@imports("mul.Tensor", "mul.Scalar", "multiply.Tensor", "multiply.Scalar", name="mul")
def _mul(c, self, other):
    return _arithmetic(c, "mul", self, other)


@imports("div.Tensor", "div.Scalar", "divide.Tensor", "divide.Scalar", "true_divide.Tensor", "true_divide.Scalar", name="div")
def _div(c, self, other):
    # The division of integers is one of the default floating type, which is the node's own.
    return c.op("div", [c.cast(self, c.result_dtype), c.cast(other, c.result_dtype)])


@imports("maximum", "max.other", name="maximum")
def _maximum(c, self, other):
    return _extremum(c, "maximum", self, other)


@imports("minimum", "min.other", name="minimum")
def _minimum(c, self, other):
    return _extremum(c, "minimum", self, other)


def _extremum(c, name, a, b):
    dtype = c.promoted(a, b)
    if dtype is torch.bool:
        return c.op("logical_or" if name == "maximum" else "logical_and", [a, b])
    return c.op(name, [c.cast(a, dtype), c.cast(b, dtype)])


def _comparison(core: str, *spellings: str):
    def build(c, self, other):
        dtype = c.promoted(self, other)
        if dtype is torch.bool:
            c.decline(reasons.UNSUPPORTED_DTYPE, "comparison of booleans")
        return c.op(core, [c.cast(self, dtype), c.cast(other, dtype)])

    imports(*(f"{s}.{kind}" for s in spellings for kind in ("Tensor", "Scalar")), name=core)(build)


_comparison("lt", "lt", "less")
_comparison("le", "le", "less_equal")
_comparison("gt", "gt", "greater")
_comparison("ge", "ge", "greater_equal")
_comparison("eq", "eq")
_comparison("ne", "ne", "not_equal")


@imports("logical_and", name="logical_and")
def _logical_and(c, self, other):
    return c.op("logical_and", [c.boolean(self), c.boolean(other)])


@imports("logical_or", name="logical_or")
def _logical_or(c, self, other):
    return c.op("logical_or", [c.boolean(self), c.boolean(other)])


@imports("bitwise_and.Tensor", "__and__.Tensor", name="logical_and")
def _bitwise_and(c, self, other):
    return _both_boolean(c, "logical_and", self, other)


@imports("bitwise_or.Tensor", "__or__.Tensor", name="logical_or")
def _bitwise_or(c, self, other):
    return _both_boolean(c, "logical_or", self, other)


def _both_boolean(c, name, a, b):
    if a.dtype is not torch.bool or b.dtype is not torch.bool:
        c.decline(reasons.UNSUPPORTED_DTYPE, "bitwise operators of integers")
    return c.op(name, [a, b])


@imports("pow.Tensor_Scalar", name="pow")
def _pow_scalar(c, self, exponent):
    if not c.result_dtype.is_floating_point:
        c.decline(reasons.UNSUPPORTED_DTYPE, "powers of integers")
    x = c.cast(self, c.result_dtype)
    if isinstance(exponent, (int, float)):
        exact = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}.get(exponent)
        if exact:
            return c.op(exact, [x])
        if exponent == 1:
            return x
        if exponent == 3:
            return c.op("mul", [c.op("square", [x]), x])
    return c.op("pow", [x, c.cast(exponent, c.result_dtype)])


@imports("pow.Tensor_Tensor", "pow.Scalar", name="pow")
def _pow(c, self, exponent):
    if not c.result_dtype.is_floating_point:
        c.decline(reasons.UNSUPPORTED_DTYPE, "powers of integers")
    return c.op("pow", [c.cast(self, c.result_dtype), c.cast(exponent, c.result_dtype)])


@imports("where.self", "where.Scalar", "where.ScalarOther", "where.ScalarSelf", name="where")
def _where(c, condition, self, other):
    if condition.dtype is not torch.bool:
        c.decline(reasons.UNSUPPORTED_DTYPE, "a condition that is not boolean")
    return c.op("select", [condition, c.cast(self, c.result_dtype), c.cast(other, c.result_dtype)])


@imports("masked_fill.Scalar", "masked_fill.Tensor", name="masked_fill")
def _masked_fill(c, self, mask, value):
    if mask.dtype is not torch.bool:
        c.decline(reasons.UNSUPPORTED_DTYPE, "a mask that is not boolean")
    return c.op("select", [mask, c.cast(value, self.dtype), self])


@imports("addcmul")
def _addcmul(c, self, tensor1, tensor2, value):
    dtype = _floating_result(c)
    product = c.op("mul", [c.cast(tensor1, dtype), c.cast(tensor2, dtype)])
    return c.op("add", [c.cast(self, dtype), _scaled(c, product, value, dtype)])


@imports("addcdiv")
def _addcdiv(c, self, tensor1, tensor2, value):
    dtype = _floating_result(c)
    quotient = c.op("div", [c.cast(tensor1, dtype), c.cast(tensor2, dtype)])
    return c.op("add", [c.cast(self, dtype), _scaled(c, quotient, value, dtype)])


@imports("lerp.Scalar", name="lerp")
def _lerp(c, self, end, weight):
    dtype, w = _floating_result(c), c.number(weight)
    start, end = c.cast(self, dtype), c.cast(end, dtype)
    difference = c.op("sub", [end, start])
    if abs(w) < 0.5:
        return c.op("add", [start, c.op("mul", [difference, c.scalar(w, start)])])
    return c.op("sub", [end, c.op("mul", [difference, c.scalar(1.0 - w, start)])])


def _floating_result(c):
    if not c.result_dtype.is_floating_point:
        c.decline(reasons.UNSUPPORTED_DTYPE, "integers")
    return c.result_dtype


# ---- casts ------------------------------------------------------------------------------------------------------


def _cast(c, self):
    return c.cast(self, c.result_dtype)


for _spelling in ("_to_copy", "to.dtype", "to.dtype_layout", "to.device", "to.other", "type_as"):
    imports(_spelling, name="to", role=CAST)(_cast)


# ---- reductions -----------------------------------------------------------------------------------------------------


def _axes(self, dim) -> list[int]:
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(self.rank))
    axes = [dim] if isinstance(dim, int) else list(dim)
    return sorted(axis % self.rank if self.rank else 0 for axis in axes)


def _reduce(c, name, self, dim, keepdim, **attributes):
    if self.rank == 0:  # a reduction of a number over nothing, or over its "dimension" 0
        self = c.op("reshape", [self], sizes=[1])
        dim, keepdim = [0], False
    return c.op(name, [self], dims=_axes(self, dim), keepdim=int(bool(keepdim)), **attributes)


@imports("sum.dim_IntList", "mean.dim", "prod.dim_int")
def _sum_dim(c, self, dim, keepdim):
    return _reduce(c, c.row.name, c.cast(self, c.result_dtype), dim, keepdim)


@imports("sum", "mean", "prod")
def _sum_all(c, self):
    return _reduce(c, c.row.name, c.cast(self, c.result_dtype), None, False)


@imports("amax", "amin")
def _amax(c, self, dim, keepdim):
    return _reduce(c, c.row.name, _ordered(c, self), dim, keepdim, tie=0)


@imports("max", name="amax")
def _max_all(c, self):
    return _reduce(c, "amax", _ordered(c, self), None, False, tie=0)


@imports("min", name="amin")
def _min_all(c, self):
    return _reduce(c, "amin", _ordered(c, self), None, False, tie=0)


@imports("max.dim", name="max")
def _max_dim(c, self, dim, keepdim):
    return _with_index(c, "amax", "argmax", self, dim, keepdim)


@imports("min.dim", name="min")
def _min_dim(c, self, dim, keepdim):
    return _with_index(c, "amin", "argmin", self, dim, keepdim)


def _with_index(c, value, index, self, dim, keepdim):
    x = _ordered(c, self)
    return (lambda: _reduce(c, value, x, dim, keepdim, tie=1), lambda: _reduce(c, index, x, dim, keepdim))


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
    return _reduce(c, c.row.name, x, 0 if dim is None else dim, keepdim)


def _variance(c, self, dim, correction, keepdim):
    if not self.dtype.is_floating_point:
        c.decline(reasons.UNSUPPORTED_DTYPE, "variance of complex numbers")
    return _reduce(c, "var", self, dim, keepdim, correction=c.number(correction))


def _root(c, x):
    # sqrt whose derivative is 0 where the result is 0, as std and norm have it (sqrt's own is infinite there).
    zero = c.op("eq", [x, c.scalar(0.0, x, runtime=False)])
    safe = c.op("select", [zero, c.scalar(1.0, x, runtime=False), x])
    return c.op("select", [zero, c.scalar(0.0, x, runtime=False), c.op("sqrt", [safe])])


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
    variance = _variance(c, self, dim, correction, keepdim)
    return _root(c, variance) if c.row.name == "std" else variance


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
    def spread():
        variance = _variance(c, self, dim, correction, keepdim)
        return _root(c, variance) if "std" in str(c.node.target) else variance

    return (spread, lambda: _reduce(c, "mean", self, dim, keepdim))


@imports("logsumexp")
def _logsumexp(c, self, dim, keepdim):
    return _reduce(c, "logsumexp", c.cast(self, c.result_dtype), dim, keepdim)


@imports("linalg_vector_norm", name="vector_norm")
def _vector_norm(c, self, ord, dim, keepdim):
    x = c.cast(self, c.result_dtype)
    order = c.number(ord)
    if order == 2:
        return _root(c, _reduce(c, "sum", c.op("square", [x]), dim, keepdim))
    if order == 1:
        return _reduce(c, "sum", c.op("abs", [x]), dim, keepdim)
    return c.decline(reasons.UNSUPPORTED_ATTRIBUTE, f"a norm of order {order}")


@imports("softmax.int", "log_softmax.int", "_softmax", "_log_softmax")
def _softmax(c, self, dim):
    if self.rank == 0:
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, "softmax of a number")
    return c.op(c.row.name, [c.cast(self, c.result_dtype)], dim=dim % self.rank)


def _loss(c, self, target, reduction, term):
    dtype = _floating_result(c)
    loss = term(c.op("sub", [c.cast(self, dtype), c.cast(target, dtype)]))
    if reduction == 0:
        return loss
    return _reduce(c, {1: "mean", 2: "sum"}[reduction], loss, None, False)


@imports("mse_loss")
def _mse_loss(c, self, target, reduction):
    return _loss(c, self, target, reduction, lambda difference: c.op("square", [difference]))


@imports("l1_loss")
def _l1_loss(c, self, target, reduction):
    return _loss(c, self, target, reduction, lambda difference: c.op("abs", [difference]))


# ---- norms ------------------------------------------------------------------------------------------------------
# Parameters of another dtype than the input's (float32 beside bfloat16): the norm computes in the wider one.


def _norm(c, name, operands, weight, bias, **attributes):
    given = [*operands, *(t for t in (weight, bias) if t is not None)]
    dtype = torch.float64 if any(t.dtype is torch.float64 for t in given) else given[0].dtype
    if any(t.dtype is not given[0].dtype for t in given):
        dtype = torch.promote_types(dtype, torch.float32)
    attributes["has_weight"] = int(weight is not None)
    if name != "rms_norm":
        attributes["has_bias"] = int(bias is not None)
    return c.op(name, [c.cast(t, dtype) for t in given], **attributes)


@imports("group_norm")
def _group_norm(c, input, num_groups, weight, bias, eps):
    return _norm(c, "group_norm", [input], weight, bias, groups=num_groups, eps=c.number(eps))


@imports("native_group_norm", name="group_norm")
def _native_group_norm(c, input, weight, bias, group, eps):
    return (lambda: _norm(c, "group_norm", [input], weight, bias, groups=group, eps=c.number(eps)), None, None)


@imports("layer_norm")
def _layer_norm(c, input, normalized_shape, weight, bias, eps):
    return _layer_norm_over(c, input, normalized_shape, weight, bias, eps)


@imports("native_layer_norm", name="layer_norm")
def _native_layer_norm(c, input, normalized_shape, weight, bias, eps):
    return (lambda: _layer_norm_over(c, input, normalized_shape, weight, bias, eps), None, None)


def _layer_norm_over(c, input, normalized_shape, weight, bias, eps):
    axes = len(normalized_shape)
    if weight is None and bias is not None:
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, "a bias without a weight")
    return _norm(c, "layer_norm", [input], weight, bias, axes=axes, eps=c.number(eps))


@imports("rms_norm")
def _rms_norm(c, input, normalized_shape, weight, eps):
    eps = torch.finfo(c.accumulation(input.dtype)).eps if eps is None else c.number(eps)
    return _norm(c, "rms_norm", [input], weight, None, axes=len(normalized_shape), eps=eps)


def _batch_norm_train(c, input, weight, bias, running_mean, running_var, momentum, eps):
    """(result, next running mean, next running variance), each built only if it is read."""
    momentum, eps = c.number(momentum), c.number(eps)

    def statistic(name, running):
        if running is None:
            c.decline(reasons.UNSUPPORTED_ATTRIBUTE, "no running statistics")
        result = c.op(name, [c.cast(input, running.dtype), running], momentum=momentum)
        c.mark_not_differentiable(result)
        return result

    return (
        lambda: _norm(c, "batch_norm", [input], weight, bias, eps=eps),
        lambda: statistic("batch_norm_running_mean", running_mean),
        lambda: statistic("batch_norm_running_var", running_var),
    )


def _batch_norm_eval(c, input, weight, bias, running_mean, running_var, eps):
    return _norm(c, "batch_norm_inference", [input, running_mean, running_var], weight, bias, eps=c.number(eps))


@imports("_native_batch_norm_legit_functional", name="batch_norm")
def _batch_norm_functional(c, input, weight, bias, running_mean, running_var, training, momentum, eps):
    if not training:
        y = lambda: _batch_norm_eval(c, input, weight, bias, running_mean, running_var, eps)  # noqa: E731
        return (y, None, None, lambda: running_mean, lambda: running_var)
    y, mean, var = _batch_norm_train(c, input, weight, bias, running_mean, running_var, momentum, eps)
    return (y, None, None, mean, var)


@imports("_batch_norm_with_update_functional", name="batch_norm")
def _batch_norm_with_update(c, input, weight, bias, running_mean, running_var, momentum, eps):
    y, mean, var = _batch_norm_train(c, input, weight, bias, running_mean, running_var, momentum, eps)
    return (y, None, None, None, mean, var)


@imports("_native_batch_norm_legit.no_stats", name="batch_norm")
def _batch_norm_no_stats(c, input, weight, bias, training, momentum, eps):
    if not training:
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, "evaluation without running statistics")
    return (lambda: _norm(c, "batch_norm", [input], weight, bias, eps=c.number(eps)), None, None)


@imports("_native_batch_norm_legit_no_training", "_batch_norm_no_update", name="batch_norm")
def _batch_norm_no_training(c, input, weight, bias, running_mean, running_var, eps):
    return (lambda: _batch_norm_eval(c, input, weight, bias, running_mean, running_var, eps), None, None, None)


@imports("batch_norm")
def _batch_norm(c, input, weight, bias, running_mean, running_var, training, momentum, eps):
    if not training:
        return _batch_norm_eval(c, input, weight, bias, running_mean, running_var, eps)
    if running_mean is not None or running_var is not None:
        c.decline(reasons.MUTATION, "running statistics updated in place")
    return _norm(c, "batch_norm", [input], weight, bias, eps=c.number(eps))


@imports("instance_norm")
def _instance_norm(c, input, weight, bias, running_mean, running_var, use_input_stats, eps):
    if not use_input_stats:
        return _batch_norm_eval(c, input, weight, bias, running_mean, running_var, eps)
    if running_mean is not None or running_var is not None:
        c.decline(reasons.MUTATION, "running statistics updated in place")
    if not isinstance(input.sizes[1], int):
        c.decline(reasons.DYNAMIC_SHAPE, "the number of channels")
    return _norm(c, "group_norm", [input], weight, bias, groups=input.sizes[1], eps=c.number(eps))


# ---- windows ----------------------------------------------------------------------------------------------------


def _window(rank, value, default=None):
    value = [value] if isinstance(value, int) else list(value)
    if not value:
        return list(default)
    return value * rank if len(value) == 1 else value


def _max_pool(c, rank, self, kernel_size, stride, padding, dilation, ceil_mode):
    kernel = _window(rank, kernel_size)
    return c.op(
        "max_pool", [self], kernel=kernel, stride=_window(rank, stride, kernel), padding=_window(rank, padding),
        dilation=_window(rank, dilation), ceil_mode=int(ceil_mode),
    )  # fmt: skip


def _avg_pool(c, rank, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor=None):
    if not self.dtype.is_floating_point:
        c.decline(reasons.UNSUPPORTED_DTYPE, "average of integers")
    kernel = _window(rank, kernel_size)
    return c.op(
        "avg_pool", [self], kernel=kernel, stride=_window(rank, stride, kernel), padding=_window(rank, padding),
        ceil_mode=int(ceil_mode), count_include_pad=int(count_include_pad), divisor=int(divisor or 0),
    )  # fmt: skip


def _adaptive_avg_pool(c, rank, self, output_size):
    out = _window(rank, output_size)
    if all(size == 1 for size in out):
        return c.op("mean", [self], dims=list(range(self.rank - rank, self.rank)), keepdim=1)
    space = self.sizes[self.rank - rank :]
    if not all(isinstance(size, int) and size % o == 0 for size, o in zip(space, out, strict=True)):
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, "windows of unequal or unknown size")
    kernel = [size // o for size, o in zip(space, out, strict=True)]
    return _avg_pool(c, rank, self, kernel, kernel, 0, False, True)


def _first(build):
    # The twin with indices: the values are the same, the indices (in PyTorch's numbering) are declined.
    def both(c, self, kernel_size, stride, padding, dilation, ceil_mode):
        return (lambda: build(c, self, kernel_size, stride, padding, dilation, ceil_mode), None)

    return both


def _pools(rank):
    def max_pool(c, self, kernel_size, stride, padding, dilation, ceil_mode):
        return _max_pool(c, rank, self, kernel_size, stride, padding, dilation, ceil_mode)

    def avg_pool1(c, self, kernel_size, stride, padding, ceil_mode, count_include_pad):
        return _avg_pool(c, rank, self, kernel_size, stride, padding, ceil_mode, count_include_pad)

    def avg_pool(c, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
        return _avg_pool(c, rank, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)

    def adaptive(c, self, output_size):
        return _adaptive_avg_pool(c, rank, self, output_size)

    imports(f"max_pool{rank}d")(max_pool)
    imports(f"max_pool{rank}d_with_indices", name=f"max_pool{rank}d")(_first(max_pool))
    imports(f"avg_pool{rank}d")(avg_pool1 if rank == 1 else avg_pool)
    imports(f"adaptive_avg_pool{rank}d", f"_adaptive_avg_pool{rank}d")(adaptive)


for _rank in (1, 2, 3):
    _pools(_rank)


# ---- contractions -----------------------------------------------------------------------------------------------


def _one_dtype(c, *operands):
    # Eager refuses mixed dtypes here, so nothing is promoted; autocast has cast them already.
    dtype = operands[0].dtype
    if any(t is not None and t.dtype is not dtype for t in operands) or not dtype.is_floating_point:
        c.decline(reasons.UNSUPPORTED_DTYPE, "a product of " + ", ".join(str(t.dtype) for t in operands if t))


@imports("linear", role=HEAVY)
def _linear(c, input, weight, bias):
    _one_dtype(c, input, weight, bias)
    if weight.rank != 2 or (bias is not None and bias.rank != 1):
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, "a weight that is not a matrix")
    x = c.op("reshape", [input], sizes=[1, *c.sizes(input)]) if input.rank == 1 else input
    y = c.op("linear", [t for t in (x, weight, bias) if t is not None])
    return c.reshape_to_result(y) if input.rank == 1 else y


def _matmul(c, a, b):
    """Operands of any rank to the core's matmul: same rank, equal batch dimensions."""
    _one_dtype(c, a, b)
    if a.rank == 0 or b.rank == 0:
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, "a product with a number")
    vector = a.rank == 1 or b.rank == 1
    if a.rank == 1:
        a = c.op("reshape", [a], sizes=[1, *c.sizes(a)])
    if b.rank == 1:
        b = c.op("reshape", [b], sizes=[*c.sizes(b), 1])
    if a.rank > 2 and b.rank == 2:  # fold the batch into the rows: one large product
        rows = math.prod(a.sizes[:-1])
        y = c.op("matmul", [c.op("reshape", [a], sizes=[c.size(rows), c.size(a.sizes[-1])]), b])
        return c.reshape_to_result(y)
    if a.rank != b.rank or a.sizes[:-2] != b.sizes[:-2]:
        rank = max(a.rank, b.rank)
        batch = torch.broadcast_shapes(a.sizes[:-2], b.sizes[:-2])
        a, b = (c.op("expand", [t], sizes=[c.size(s) for s in (*batch, *t.sizes[-2:])]) for t in (a, b))
        assert a.rank == b.rank == rank
    y = c.op("matmul", [a, b])
    return c.reshape_to_result(y) if vector else y


@imports("matmul", role=HEAVY)
def _matmul_any(c, self, other):
    return _matmul(c, self, other)


@imports("mm", "bmm", name="matmul", role=HEAVY)
def _mm(c, self, mat2):
    return _matmul(c, self, mat2)


def _add_product(c, addend, product, beta, alpha):
    dtype = product.dtype
    if isinstance(beta, (int, float)) and beta == 0:  # eager ignores the addend then, NaN and all
        return _scaled(c, product, alpha, dtype)
    return c.op("add", [_scaled(c, product, alpha, dtype), _scaled(c, c.cast(addend, dtype), beta, dtype)])


@imports("addmm", role=HEAVY)
def _addmm(c, self, mat1, mat2, beta, alpha):
    return _add_product(c, self, _matmul(c, mat1, mat2), beta, alpha)


@imports("baddbmm", role=HEAVY)
def _baddbmm(c, self, batch1, batch2, beta, alpha):
    return _add_product(c, self, _matmul(c, batch1, batch2), beta, alpha)


def _convolve(c, rank, input, weight, bias, stride, padding, dilation, groups, transposed=False, output_padding=0):
    _one_dtype(c, input, weight, bias)
    stride, dilation = _window(rank, stride), _window(rank, dilation)
    if isinstance(padding, str):
        padding = _named_padding(c, padding, weight, dilation)
    unbatched = input.rank == rank + 1
    x = c.op("reshape", [input], sizes=[1, *c.sizes(input)]) if unbatched else input
    y = c.op(
        "convolution", [t for t in (x, weight, bias) if t is not None], stride=stride, padding=_window(rank, padding),
        dilation=dilation, groups=groups, transposed=int(transposed), output_padding=_window(rank, output_padding),
    )  # fmt: skip
    return c.reshape_to_result(y) if unbatched else y


def _named_padding(c, padding, weight, dilation):
    kernel = weight.sizes[2:]
    if padding == "valid":
        return [0] * len(kernel)
    total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    if any(t % 2 for t in total):
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, "padding='same' that differs between the two sides")
    return [t // 2 for t in total]


def _convolutions(rank):
    def conv(c, input, weight, bias, stride, padding, dilation, groups):
        return _convolve(c, rank, input, weight, bias, stride, padding, dilation, groups)

    def transposed(c, input, weight, bias, stride, padding, output_padding, groups, dilation):
        return _convolve(c, rank, input, weight, bias, stride, padding, dilation, groups, True, output_padding)

    imports(f"conv{rank}d", f"conv{rank}d.padding", role=HEAVY)(conv)
    spelling = "conv_transpose1d" if rank == 1 else f"conv_transpose{rank}d.input"
    imports(spelling, role=HEAVY)(transposed)


for _rank in (1, 2, 3):
    _convolutions(_rank)


@imports("convolution", "_convolution", role=HEAVY)
def _convolution(c, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    rank = weight.rank - 2
    return _convolve(c, rank, input, weight, bias, stride, padding, dilation, groups, transposed, output_padding)


# ---- movement and identities: passive -----------------------------------------------------------------------------


def _reshape(c, self):
    return c.reshape_to_result(self)


for _spelling in (
    "view", "_unsafe_view", "reshape", "flatten.using_ints", "unflatten.int", "squeeze", "squeeze.dim", "squeeze.dims",
    "unsqueeze", "view_as", "reshape_as", "_reshape_alias",
):  # fmt: skip
    imports(_spelling, name="reshape", role=PASSIVE)(_reshape)


@imports("permute", "movedim.intlist", "movedim.int", "transpose.int", "swapaxes", "t", "numpy_T", "mT", role=PASSIVE)
def _permute(c, self):
    return c.op("permute", [self], dims=c.permutation(self))


@imports("expand", "expand_as", "broadcast_to", name="expand", role=PASSIVE)
def _expand(c, self):
    return c.expand_to_result(self)


@imports("detach", name="detach", role=PASSIVE)
def _detach(c, self):
    return c.op("stop_gradient", [self])


def _identity(c, self):
    return self


for _spelling in ("alias", "contiguous", "clone", "lift_fresh", "lift_fresh_copy", "lift", "positive"):
    imports(_spelling, role=PASSIVE)(_identity)


@imports("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", name="dropout", role=PASSIVE)
def _dropout(c, input, p, train):
    if train and c.number(p) != 0:
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, "dropout in training")
    return input
