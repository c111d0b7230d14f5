"""Rows of pooling."""

from __future__ import annotations

from ... import reasons
from .table import imports


def each_dimension(rank, value, default=None):
    value = [value] if isinstance(value, int) else list(value)
    if not value:
        return list(default)
    return value * rank if len(value) == 1 else value


def _max_pool(c, rank, self, kernel_size, stride, padding, dilation, ceil_mode):
    kernel = each_dimension(rank, kernel_size)
    return c.op(
        "max_pool",
        [self],
        kernel=kernel,
        stride=each_dimension(rank, stride, kernel),
        padding=each_dimension(rank, padding),
        dilation=each_dimension(rank, dilation),
        ceil_mode=int(ceil_mode),
    )


def _avg_pool(c, rank, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor=None):
    if not self.dtype.is_floating_point:
        c.decline(reasons.UNSUPPORTED_DTYPE, "average of integers")
    kernel = each_dimension(rank, kernel_size)
    return c.op(
        "avg_pool",
        [self],
        kernel=kernel,
        stride=each_dimension(rank, stride, kernel),
        padding=each_dimension(rank, padding),
        ceil_mode=int(ceil_mode),
        count_include_pad=int(count_include_pad),
        divisor=int(divisor or 0),
    )


def _adaptive_avg_pool(c, rank, self, output_size):
    out = each_dimension(rank, output_size)
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
