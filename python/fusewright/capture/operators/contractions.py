"""Rows of matrix products and convolutions."""

from __future__ import annotations

import math

import torch

from ... import reasons
from .pointwise import scaled
from .table import HEAVY, imports
from .windows import each_dimension


def _one_dtype(c, *operands):
    # Eager refuses mixed dtypes here, so nothing is promoted; autocast has cast them already.
    dtype = operands[0].dtype
    if any(t is not None and t.dtype is not dtype for t in operands) or not dtype.is_floating_point:
        c.decline(reasons.UNSUPPORTED_DTYPE, "a product of " + ", ".join(str(t.dtype) for t in operands if t))


# Rows of matrix products, each with the place of its first factor among the arguments.
PRODUCTS = {"linear": 0, "matmul": 0, "addmm": 1, "baddbmm": 1}


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
        return scaled(c, product, alpha, dtype)
    return c.op("add", [scaled(c, product, alpha, dtype), scaled(c, c.cast(addend, dtype), beta, dtype)])


@imports("addmm", role=HEAVY)
def _addmm(c, self, mat1, mat2, beta, alpha):
    if beta == 1 and alpha == 1 and tuple(self.sizes) == (mat2.sizes[1],):  # a bias: rounded once, as eager has it
        _one_dtype(c, self, mat1, mat2)
        return c.op("linear", [mat1, c.op("permute", [mat2], dims=[1, 0]), self])
    return _add_product(c, self, _matmul(c, mat1, mat2), beta, alpha)


@imports("baddbmm", role=HEAVY)
def _baddbmm(c, self, batch1, batch2, beta, alpha):
    return _add_product(c, self, _matmul(c, batch1, batch2), beta, alpha)


def _convolve(c, rank, input, weight, bias, stride, padding, dilation, groups, transposed=False, output_padding=0):
    _one_dtype(c, input, weight, bias)
    stride, dilation = each_dimension(rank, stride), each_dimension(rank, dilation)
    if isinstance(padding, str):
        padding = _named_padding(c, padding, weight, dilation)
    unbatched = input.rank == rank + 1
    x = c.op("reshape", [input], sizes=[1, *c.sizes(input)]) if unbatched else input
    y = c.op(
        "convolution",
        [t for t in (x, weight, bias) if t is not None],
        stride=stride,
        padding=each_dimension(rank, padding),
        dilation=dilation,
        groups=groups,
        transposed=int(transposed),
        output_padding=each_dimension(rank, output_padding),
    )
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
