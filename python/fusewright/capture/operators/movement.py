"""Rows of views and identities: all passive."""

from __future__ import annotations

from ... import reasons
from .table import PASSIVE, imports


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
