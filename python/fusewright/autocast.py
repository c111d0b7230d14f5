"""What autocast does to the operands of an operator, as explicit casts: regions run below autocast.

The lists are those of CPU autocast, restricted to operators that can be in a region; it casts no norm, softmax or
activation. `tests/python/test_capture_autocast.py` holds them against eager, in whatever version of PyTorch runs it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

LOWER = frozenset(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d _convolution bmm mm addmm baddbmm addbmm "
    "matmul linear prelu linalg_vecdot".split()
)
FLOAT32 = frozenset(
    "avg_pool3d max_pool3d adaptive_avg_pool3d prod mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits cross_entropy_loss nll_loss kl_div".split()
)


class State(NamedTuple):
    """Whether autocast is on for the CPU, and the dtype it lowers to."""

    enabled: bool
    dtype: torch.dtype


def current() -> State:
    """The state of the calling thread."""
    return State(torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))


def enter(state: State) -> None:
    """Make it the state of the calling thread."""
    torch.set_autocast_enabled("cpu", state.enabled)
    torch.set_autocast_dtype("cpu", state.dtype)


def cast_of(state: State, overload: torch._ops.OpOverload, dtype: torch.dtype) -> torch.dtype:
    """The dtype in which the operator receives an operand of this dtype."""
    if not state.enabled or not dtype.is_floating_point or dtype is torch.float64:
        return dtype
    name = overload._schema.name.partition("::")[2]
    if name in LOWER:
        return state.dtype
    return torch.float32 if name in FLOAT32 else dtype
