"""Rows of views and identities: all passive."""

from __future__ import annotations

import math

import torch

from ... import reasons
from .table import HEAVY, PASSIVE, imports

# As many as a tensor of the core has.
MOST_DIMENSIONS = 8


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
    count = len(range(start, end, step))
    part = _part(c, self, dim, start, count * step)
    return part if step == 1 else _every(c, part, dim, step)


def _every(c, self, dim: int, step: int):
    """The first of each `step` neighbours: a dimension of those is split off."""
    dim %= self.rank
    sizes = c.sizes(self)
    count = c.position(self.sizes[dim]) // step
    split = c.op("reshape", [self], sizes=[*sizes[:dim], count, step, *sizes[dim + 1 :]])
    first = _part(c, split, dim + 1, 0, 1)
    return c.op("reshape", [first], sizes=[*sizes[:dim], count, *sizes[dim + 1 :]])


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


@imports("roll", role=HEAVY)
def _roll(c, self, shifts, dims):
    shifts, dims = ([n] if isinstance(n, int) else n for n in (shifts, dims))
    whole = not dims
    x = c.op("reshape", [self], sizes=[c.size(math.prod(self.sizes))]) if whole else self
    for shift, dim in zip(shifts, dims or [0], strict=True):
        size = c.position(x.sizes[dim])
        first = c.position(shift) % size if size else 0
        if first:
            x = c.op(
                "cat", [_part(c, x, dim, size - first, first), _part(c, x, dim, 0, size - first)], dim=dim % x.rank
            )
    return c.reshape_to_result(x) if whole else x


def _repeated(c, self, outer: list[int], inner: list[int]):
    """Along each dimension: all elements `outer` times, each of them `inner` times in turn."""
    split, repeated = [], []
    for size, before, after in zip(c.sizes(self), outer, inner, strict=True):
        split += [1] * (before > 1) + [size] + [1] * (after > 1)
        repeated += [before] * (before > 1) + [size] + [after] * (after > 1)
    if split == repeated:
        return c.reshape_to_result(self)
    if any(count == 0 for count in outer + inner) or len(split) > MOST_DIMENSIONS:
        c.decline(reasons.UNSUPPORTED_ATTRIBUTE, f"repeated {outer} and {inner} times")
    x = c.op("reshape", [self], sizes=split)
    return c.reshape_to_result(c.op("expand", [x], sizes=repeated))


@imports("repeat", role=HEAVY)
def _repeat(c, self, repeats):
    return _repeat_all(c, self, repeats)


@imports("tile", role=HEAVY)
def _tile(c, self, dims):
    return _repeat_all(c, self, [*[1] * (self.rank - len(dims)), *dims])


def _repeat_all(c, self, repeats):
    more = len(repeats) - self.rank
    x = c.op("reshape", [self], sizes=[*[1] * more, *c.sizes(self)]) if more else self
    return _repeated(c, x, [c.position(n) for n in repeats], [1] * len(repeats))


@imports("repeat_interleave.self_int", name="repeat_interleave", role=HEAVY)
def _repeat_interleave(c, self, repeats, dim):
    x = c.op("reshape", [self], sizes=[c.size(math.prod(self.sizes))]) if dim is None else self
    inner = [1] * x.rank
    inner[dim or 0] = c.position(repeats)
    return _repeated(c, x, [1] * x.rank, inner)


@imports(
    "upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec", name="upsample_nearest", role=HEAVY
)
def _upsample_nearest(c, input, output_size, scale_factors):
    """By whole numbers: each element is repeated. Other factors, and those with which PyTorch's float32 takes another
    element, are PyTorch's."""
    inner = [1, 1]
    for place, size in enumerate(input.sizes[2:]):
        size, wanted = c.position(size), c.position(c.result_sizes[2 + place])
        factor = wanted // size if size else 0
        given = scale_factors is None or scale_factors[place] == factor
        if not factor or wanted != factor * size or not given or not _repeats_exactly(wanted, factor):
            c.decline(reasons.UNSUPPORTED_ATTRIBUTE, f"{size} elements become {wanted}")
        inner.append(factor)
    return _repeated(c, input, [1] * input.rank, inner)


def _repeats_exactly(size: int, factor: int) -> bool:
    positions = torch.arange(size, device="cpu")
    scale = torch.tensor(1.0 / factor, dtype=torch.float32, device="cpu")
    return torch.equal((positions.float() * scale).floor().long(), positions // factor)


@imports("pixel_shuffle", role=HEAVY)
def _pixel_shuffle(c, self, upscale_factor):
    *batch, channels, height, width = c.sizes(self)
    r, n = upscale_factor, len(batch)
    x = c.op("reshape", [self], sizes=[*batch, c.position(self.sizes[-3]) // (r * r), r, r, height, width])
    return c.reshape_to_result(c.op("permute", [x], dims=[*range(n), n, n + 3, n + 1, n + 4, n + 2]))


@imports("pixel_unshuffle", role=HEAVY)
def _pixel_unshuffle(c, self, downscale_factor):
    *batch, channels, _, _ = c.sizes(self)
    r, n = downscale_factor, len(batch)
    height, width = (c.position(size) // r for size in self.sizes[-2:])
    x = c.op("reshape", [self], sizes=[*batch, channels, height, r, width, r])
    return c.reshape_to_result(c.op("permute", [x], dims=[*range(n), n, n + 2, n + 4, n + 1, n + 3]))


@imports("channel_shuffle", "native_channel_shuffle", name="channel_shuffle", role=HEAVY)
def _channel_shuffle(c, self, groups):
    batch, channels, *space = c.sizes(self)
    x = c.op("reshape", [self], sizes=[batch, groups, c.position(self.sizes[1]) // groups, *space])
    return c.reshape_to_result(c.op("permute", [x], dims=[0, 2, 1, *range(3, 3 + len(space))]))


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
