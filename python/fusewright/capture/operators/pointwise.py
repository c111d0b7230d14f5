"""Rows of pointwise operators: functions of one number, activations, arithmetic, comparisons, casts."""

from __future__ import annotations

import torch

from ... import reasons
from .table import CAST, imports

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
    return c.op("leaky_relu", [self, c.scalar(negative_slope, self)])


@imports("softplus")
def _softplus(c, self, beta, threshold):
    return c.op("softplus", [self], beta=c.number(beta), threshold=c.number(threshold))


@imports("hardtanh")
def _hardtanh(c, self, min_val, max_val):
    return c.op("hardtanh", [self, c.scalar(min_val, self), c.scalar(max_val, self)])


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
    x = c.cast(self, c.result_dtype)
    limits = [c.scalar(limit, x) for limit in (low, high) if limit is not None]
    if not limits:
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, "no limit")
    return c.op("clamp", [x, *limits], has_min=int(low is not None), has_max=int(high is not None))


@imports("threshold")
def _threshold(c, self, threshold, value):
    # PyTorch rounds the number to the tensor's dtype on a GPU, and does not on a processor.
    limit = c.scalar(threshold, self) if c.device.type == "cpu" else c.converted(threshold, self.dtype)
    return c.op("select", [c.op("le", [self, limit]), c.scalar(value, self), self])


@imports("hardshrink")
def _hardshrink(c, self, lambd):
    limit = c.number(lambd)
    inside = [c.op("ge", [self, c.converted(-limit, self.dtype)]), c.op("le", [self, c.converted(limit, self.dtype)])]
    return c.op("select", [c.op("logical_and", inside), c.scalar(0.0, self), self])


@imports("prelu", "_prelu_kernel", name="prelu")
def _prelu(c, self, weight):
    if self.rank > 2 and weight.rank == 1 and weight.sizes[0] != 1:
        weight = c.op("reshape", [weight], sizes=[*c.sizes(weight), *[1] * (self.rank - 2)])
    if weight.rank and self.rank == 0:
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, "a number with a weight of rank 1")
    positive = c.op("gt", [self, c.scalar(0.0, self)])
    # Not of positive ones: the weight's gradient has nothing of an infinite one.
    rest = c.op("select", [positive, c.scalar(0.0, self), self])
    return c.op("select", [positive, self, c.op("mul", [c.cast(weight, self.dtype), rest])])


# ---- pointwise, two and three operands ------------------------------------------------------------------------------


def _arithmetic(c, name, a, b):
    dtype = c.promoted(a, b)
    if dtype is torch.bool:
        c.decline(reasons.UNSUPPORTED_DTYPE, "arithmetic of booleans")
    return c.op(name, [c.cast(a, dtype), c.cast(b, dtype)])


def scaled(c, operand, alpha, dtype):
    if isinstance(alpha, (int, float)) and alpha == 1:
        return operand
    return c.op("mul", [c.cast(operand, dtype), c.cast(alpha, dtype)])


@imports("add.Tensor", "add.Scalar")
def _add(c, self, other, alpha):
    return _arithmetic(c, "add", self, scaled(c, other, alpha, c.promoted(self, other)))


@imports("sub.Tensor", "sub.Scalar", "subtract.Tensor", "subtract.Scalar", name="sub")
def _sub(c, self, other, alpha):
    return _arithmetic(c, "sub", self, scaled(c, other, alpha, c.promoted(self, other)))


@imports("rsub.Tensor", "rsub.Scalar", name="sub")
def _rsub(c, self, other, alpha):
    return _arithmetic(c, "sub", other, scaled(c, self, alpha, c.promoted(self, other)))


@imports("mul.Tensor", "mul.Scalar", "multiply.Tensor", "multiply.Scalar", name="mul")
def _mul(c, self, other):
    return _arithmetic(c, "mul", self, other)


@imports(
    "div.Tensor", "div.Scalar", "divide.Tensor", "divide.Scalar", "true_divide.Tensor", "true_divide.Scalar", name="div"
)
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
        return c.op(core, [c.converted(self, dtype), c.converted(other, dtype)])

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
    dtype = floating_result(c)
    product = c.op("mul", [c.cast(tensor1, dtype), c.cast(tensor2, dtype)])
    return c.op("add", [c.cast(self, dtype), scaled(c, product, value, dtype)])


@imports("addcdiv")
def _addcdiv(c, self, tensor1, tensor2, value):
    dtype = floating_result(c)
    quotient = c.op("div", [c.cast(tensor1, dtype), c.cast(tensor2, dtype)])
    return c.op("add", [c.cast(self, dtype), scaled(c, quotient, value, dtype)])


@imports("lerp.Scalar", name="lerp")
def _lerp(c, self, end, weight):
    dtype, w = floating_result(c), c.number(weight)
    start, end = c.cast(self, dtype), c.cast(end, dtype)
    difference = c.op("sub", [end, start])
    if abs(w) < 0.5:
        return c.op("add", [start, c.op("mul", [difference, c.scalar(w, start)])])
    return c.op("sub", [end, c.op("mul", [difference, c.scalar(1.0 - w, start)])])


def floating_result(c):
    if not c.result_dtype.is_floating_point:
        c.decline(reasons.UNSUPPORTED_DTYPE, "integers")
    return c.result_dtype


# ---- casts ------------------------------------------------------------------------------------------------------


def _cast(c, self):
    return c.cast(self, c.result_dtype)


for _spelling in ("_to_copy", "to.dtype", "to.dtype_layout", "to.device", "to.other", "type_as"):
    imports(_spelling, name="to", role=CAST)(_cast)
