"""Rows of normalisations."""

from __future__ import annotations

import torch

from ... import reasons
from .table import imports

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


@imports("cudnn_batch_norm", name="batch_norm")
def _cudnn_batch_norm(c, input, weight, bias, running_mean, running_var, training, epsilon):
    if not training:
        y = lambda: _batch_norm_eval(c, input, weight, bias, running_mean, running_var, epsilon)  # noqa: E731
    else:
        if running_mean is not None or running_var is not None:
            c.decline(reasons.MUTATION, "running statistics updated in place")
        y = lambda: _norm(c, "batch_norm", [input], weight, bias, eps=c.number(epsilon))  # noqa: E731
    return (y, None, None, None)  # statistics and the reserve are for cuDNN's own backward


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
    if input.rank < 3:
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, "an instance of one element")
    return _norm(c, "instance_norm", [input], weight, bias, eps=c.number(eps))
