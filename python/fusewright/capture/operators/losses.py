"""Rows of losses. A loss of classes takes the target's logit out of the row that the kernel reads: no probabilities are
written, and the backward is one pass over the logits."""

from __future__ import annotations

import functools

import torch

from ... import reasons
from .pointwise import floating_result
from .reductions import reduce_dims
from .table import imports

NONE, MEAN, SUM = 0, 1, 2


def _reduced(c, loss, reduction):
    if reduction == NONE:
        return loss
    return reduce_dims(c, {MEAN: "mean", SUM: "sum"}[reduction], loss, None, False)


# ---- losses of elements -------------------------------------------------------------------------------------------


def _pair(c, self, target):
    dtype = floating_result(c)
    return c.cast(self, dtype), c.cast(target, dtype)


def _distance(c, self, target):
    return c.op("sub", list(_pair(c, self, target)))


def _less_half(c, distance, limit):
    """|distance| - limit / 2"""
    return c.op("sub", [c.op("abs", [distance]), c.scalar(0.5 * limit, distance)])


@imports("mse_loss")
def _mse_loss(c, self, target, reduction):
    return _reduced(c, c.op("square", [_distance(c, self, target)]), reduction)


@imports("l1_loss")
def _l1_loss(c, self, target, reduction):
    return _reduced(c, c.op("abs", [_distance(c, self, target)]), reduction)


@imports("smooth_l1_loss")
def _smooth_l1_loss(c, self, target, reduction, beta):
    d, beta = _distance(c, self, target), c.number(beta)
    if beta == 0:
        return _reduced(c, c.op("abs", [d]), reduction)
    near = c.op("lt", [c.op("abs", [d]), c.scalar(beta, d)])
    parabola = c.op("mul", [c.op("square", [d]), c.scalar(0.5 / beta, d)])
    return _reduced(c, c.op("select", [near, parabola, _less_half(c, d, beta)]), reduction)


@imports("huber_loss")
def _huber_loss(c, self, target, reduction, delta):
    d, delta = _distance(c, self, target), c.number(delta)
    near = c.op("lt", [c.op("abs", [d]), c.scalar(delta, d)])
    parabola = c.op("mul", [c.op("square", [d]), c.scalar(0.5, d)])
    line = c.op("mul", [_less_half(c, d, delta), c.scalar(delta, d)])
    return _reduced(c, c.op("select", [near, parabola, line]), reduction)


@imports("binary_cross_entropy_with_logits")
def _binary_cross_entropy_with_logits(c, self, target, weight, pos_weight, reduction):
    x, t = _pair(c, self, target)
    positive = c.op("ge", [x, c.scalar(0.0, x, runtime=False)])
    # log(1 + e^-|x|), written so that the derivative at 0 is that of each branch.
    rest = c.op("log1p", [c.op("exp", [c.op("select", [positive, c.op("neg", [x]), x])])])
    misses = c.op("mul", [c.op("sub", [c.scalar(1.0, t, runtime=False), t]), x])
    hits = c.op("neg", [c.op("mul", [t, x])])
    if pos_weight is not None:
        p = c.cast(pos_weight, x.dtype)
        more = c.op("mul", [c.op("sub", [p, c.scalar(1.0, p, runtime=False)]), t])
        rest = c.op("mul", [rest, c.op("add", [more, c.scalar(1.0, t, runtime=False)])])
        hits = c.op("mul", [p, hits])
    loss = c.op("add", [c.op("select", [positive, misses, hits]), rest])
    if weight is not None:
        loss = c.op("mul", [loss, c.cast(weight, x.dtype)])
    return _reduced(c, loss, reduction)


@imports("kl_div")
def _kl_div(c, self, target, reduction, log_target):
    x, t = _pair(c, self, target)
    if log_target:
        return _reduced(c, c.op("mul", [c.op("exp", [t]), c.op("sub", [t, x])]), reduction)
    # t log t is 0 where t is 0. There the logarithm is taken of 1: its derivative must not be infinite.
    zero = c.op("eq", [t, c.scalar(0.0, t, runtime=False)])
    inside = c.op("select", [zero, c.scalar(1.0, t, runtime=False), t])
    entropy = c.op("mul", [inside, c.op("log", [inside])])
    return _reduced(c, c.op("sub", [entropy, c.op("mul", [t, x])]), reduction)


# ---- losses of classes --------------------------------------------------------------------------------------------


class _Classes:
    """Rows of logits, or of logarithms of probabilities, and the position of the right class in each."""

    def __init__(self, c, rows, target, weight, ignore_index):
        if target.dtype is not torch.int64:
            c.decline(reasons.UNSUPPORTED_DTYPE, f"classes of type {target.dtype}")
        self.c, self.target = c, target
        self.rows = c.cast(rows, c.accumulation(rows.dtype))
        self.dim = 0 if rows.rank == 1 else 1
        ignored = c.number(ignore_index)
        c.check_indices("target", rows.sizes[self.dim], ignored)
        sizes = c.sizes(target)
        position = c.op("reshape", [target], sizes=[*sizes[: self.dim], 1, *sizes[self.dim :]])
        self.counts = c.op("ne", [position, c.scalar(ignored, position)])
        # Rows that do not count read the first class.
        self.position = c.op("select", [self.counts, position, c.scalar(0, position, runtime=False)])
        self.weight = None
        if weight is not None:  # of each class; it has no gradient
            line = [1] * rows.rank
            line[self.dim] = c.sizes(weight)[0]
            fixed = c.op("stop_gradient", [c.cast(weight, self.rows.dtype)])
            self.weight = c.op("reshape", [fixed], sizes=line)

    def of_target(self, values):
        """Of each row the value at its class."""
        return self.c.op("pick", [values, self.position], dim=self.dim)

    @functools.cached_property
    def target_weight(self):
        """The weight of each row's class."""
        whole = self.c.op("expand", [self.weight], sizes=self.c.sizes(self.rows))
        return self.of_target(whole)

    def reduced(self, losses, reduction):
        """Of one loss for each row, weighted already."""
        c = self.c
        zero = c.scalar(0.0, losses, runtime=False)
        losses = c.op("select", [self.counts, losses, zero])
        if reduction == NONE:
            return c.op("reshape", [losses], sizes=c.sizes(self.target))
        total = reduce_dims(c, "sum", losses, None, False)
        if reduction == SUM:
            return total
        weights = c.scalar(1.0, losses, runtime=False) if self.weight is None else self.target_weight
        weights = c.op("select", [self.counts, weights, zero])
        return c.op("div", [total, reduce_dims(c, "sum", weights, None, False)])


@imports("nll_loss_nd", "nll_loss", "nll_loss2d", name="nll_loss")
def _nll_loss(c, self, target, weight, reduction, ignore_index):
    classes = _Classes(c, self, target, weight, ignore_index)
    losses = c.op("neg", [classes.of_target(classes.rows)])
    if weight is not None:
        losses = c.op("mul", [losses, classes.target_weight])
    return classes.reduced(losses, reduction)


@imports("cross_entropy_loss", name="cross_entropy")
def _cross_entropy(c, self, target, weight, reduction, ignore_index, label_smoothing):
    smoothing = c.number(label_smoothing)
    if target.dtype.is_floating_point:
        return _cross_entropy_of_probabilities(c, self, target, weight, reduction, ignore_index, smoothing)
    classes = _Classes(c, self, target, weight, ignore_index)

    def over_classes(name, values):
        return c.op(name, [values], dims=[classes.dim], keepdim=1)

    # As log_softmax: exact where the right class is far above all others. The maximum only shifts.
    top = c.op("stop_gradient", [c.op("amax", [classes.rows], dims=[classes.dim], keepdim=1, tie=0)])
    x = c.op("sub", [classes.rows, top])
    total = c.op("log", [over_classes("sum", c.op("exp", [x]))])
    losses = c.op("sub", [total, classes.of_target(x)])
    if weight is not None:
        losses = c.op("mul", [losses, classes.target_weight])
    if smoothing > 0:
        every = c.op("sub", [total, x])
        every = over_classes("mean", every if weight is None else c.op("mul", [every, classes.weight]))
        losses = c.op("mul", [losses, c.scalar(1 - smoothing, losses)])
        losses = c.op("add", [losses, c.op("mul", [every, c.scalar(smoothing, every)])])
    return classes.reduced(losses, reduction)


def _cross_entropy_of_probabilities(c, self, target, weight, reduction, ignore_index, smoothing):
    if ignore_index != -100:
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, f"ignore_index={ignore_index} beside probabilities")
    dim = 0 if self.rank == 1 else 1
    dtype = c.accumulation(self.dtype)
    logs = c.op("log_softmax", [c.cast(self, dtype)], dim=dim)
    if weight is not None:
        line = [1] * self.rank
        line[dim] = c.sizes(weight)[0]
        logs = c.op("mul", [logs, c.op("reshape", [c.cast(weight, dtype)], sizes=line)])
    t = c.cast(target, dtype)
    losses = c.op("sum", [c.op("mul", [logs, t])], dims=[dim], keepdim=0)
    if smoothing > 0:
        every = c.op("mean", [logs], dims=[dim], keepdim=0)
        losses = c.op("mul", [losses, c.scalar(1 - smoothing, losses)])
        losses = c.op("add", [losses, c.op("mul", [every, c.scalar(smoothing, every)])])
    return _reduced(c, c.op("neg", [losses]), reduction)
