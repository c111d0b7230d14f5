"""The same sample with other sizes: every dimension of one size becomes longer, wherever it occurs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils import _pytree as pytree

from .cases import Sample
from .compare import call


def resized(sample: Sample, function: Callable) -> list[Sample]:
    """Two samples with other sizes that the function takes in eager, and one that it refuses, where there are any."""
    first = next((x for x in pytree.tree_leaves(sample.input) if isinstance(x, torch.Tensor)), None)
    if first is None or first.layout is not torch.strided:
        return []
    taken: list[Sample] = []
    refused: list[Sample] = []
    for size in dict.fromkeys(n for n in first.shape if n > 1):
        for step in (1, 2):
            other = _with_longer(sample, size, step)
            (refused if call(function, other).error else taken).append(other)
        if len(taken) == 2:
            break
    return taken[:2] + refused[:1] if taken else []


def _with_longer(sample: Sample, size: int, step: int) -> Sample:
    def longer(x):
        if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.is_quantized:
            return x
        y = x.detach()
        for dim, n in enumerate(x.shape):
            if n == size:
                y = y.index_select(dim, torch.arange(size + 2 * step - 1, device=x.device) % size)
        return y.requires_grad_(x.requires_grad)

    made = pytree.tree_map(longer, (sample.input, sample.args, sample.kwargs))
    return Sample(*made, sample.process, sample.broadcasts_input)
