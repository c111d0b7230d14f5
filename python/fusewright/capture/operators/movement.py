"""Rows of views and identities: all passive."""

from __future__ import annotations

from ... import reasons
from .table import HEAVY, PASSIVE, imports


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


def _part(c, self, dim: int, start: int, length: int):
    """`length` neighbours along a dimension."""
    dim %= self.rank
    c.position(self.sizes[dim])
    starts, sizes = [0] * self.rank, c.sizes(self)
    starts[dim], sizes[dim] = start, length
    return c.op("shift", [self], start=starts, sizes=sizes)


def _at(c, self, dim: int, index: int):
    dim %= self.rank
    one = _part(c, self, dim, index % max(c.position(self.sizes[dim]), 1), 1)
    return c.op("reshape", [one], sizes=[s for d, s in enumerate(c.sizes(one)) if d != dim])


@imports("slice.Tensor", role=PASSIVE)
def _slice(c, self, dim, start, end, step):
    size = c.position(self.sizes[dim])
    start, end, step = slice(*(None if n is None else c.position(n) for n in (start, end, step))).indices(size)
    if step != 1:
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, f"step={step}")
    return _part(c, self, dim, start, max(end - start, 0))


@imports("narrow", role=PASSIVE)
def _narrow(c, self, dim, start, length):
    return _part(c, self, dim, c.position(start) % max(c.position(self.sizes[dim]), 1), c.position(length))


@imports("select.int", role=PASSIVE)
def _select(c, self, dim, index):
    return _at(c, self, dim, c.position(index))


def _parts(c, self, dim: int, lengths: list[int]):
    starts = [sum(lengths[:n]) for n in range(len(lengths))]
    return [lambda start=s, length=n: _part(c, self, dim, start, length) for s, n in zip(starts, lengths, strict=True)]


@imports("split.Tensor", role=PASSIVE)
def _split(c, self, split_size, dim):
    size, each = c.position(self.sizes[dim]), c.position(split_size)
    return _parts(c, self, dim, [min(each, size - start) for start in range(0, size, max(each, 1))] or [0])


@imports("split_with_sizes", role=PASSIVE)
def _split_with_sizes(c, self, split_sizes, dim):
    return _parts(c, self, dim, [c.position(n) for n in split_sizes])


@imports("unbind.int", role=PASSIVE)
def _unbind(c, self, dim):
    return [lambda index=i: _at(c, self, dim, index) for i in range(c.position(self.sizes[dim]))]


def _joined(c, tensors: list, dim: int):
    if len(tensors) > 64:
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, f"{len(tensors)} tensors")
    rank = max(t.rank for t in tensors)
    # PyTorch leaves out tensors without elements and dimensions of their own.
    tensors = [t for t in tensors if not (t.sizes == (0,) and rank > 1)]
    for t in tensors:
        c.position(t.sizes[dim])
    return c.op("cat", [c.cast(t, c.result_dtype) for t in tensors], dim=dim % rank)


@imports("cat", "concat", "concatenate", name="cat", role=HEAVY)
def _cat(c, tensors, dim):
    return _joined(c, tensors, dim)


@imports("stack", role=HEAVY)
def _stack(c, tensors, dim):
    dim %= tensors[0].rank + 1
    return _joined(c, [c.op("reshape", [t], sizes=[*c.sizes(t)[:dim], 1, *c.sizes(t)[dim:]]) for t in tensors], dim)


@imports("constant_pad_nd", name="pad", role=HEAVY)
def _constant_pad(c, self, pad, value):
    return _pad(c, self, pad, "constant", value)


@imports("pad", role=HEAVY)
def _pad(c, self, pad, mode, value):
    if mode != "constant" or value not in (None, 0):
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, f"mode={mode}, value={value}")
    starts, sizes = [0] * self.rank, c.sizes(self)
    for n in range(len(pad) // 2):
        before, after = c.position(pad[2 * n]), c.position(pad[2 * n + 1])
        if before or after:
            dim = self.rank - 1 - n
            starts[dim], sizes[dim] = -before, c.position(self.sizes[dim]) + before + after
    return c.op("shift", [self], start=starts, sizes=sizes)


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
