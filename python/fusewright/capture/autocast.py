"""What autocast does to the operands of an operator, as explicit casts: regions run below autocast.

Each device has lists of its own, here restricted to operators that can be in a region: the CPU's cast no norm, softmax
or activation, CUDA's compute those in float32. `tests/python/test_capture_autocast.py` and `tests/gpu` hold them
against eager, in whatever version of PyTorch runs them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

_PRODUCTS = (
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d _convolution bmm mm addmm baddbmm addbmm "
    "matmul linear prelu linalg_vecdot"
)
LOWER = {"cpu": frozenset(_PRODUCTS.split()), "cuda": frozenset(f"{_PRODUCTS} convolution addmv addr mv".split())}
FLOAT32 = {
    "cpu": frozenset(
        "avg_pool3d max_pool3d adaptive_avg_pool3d prod mse_loss l1_loss smooth_l1_loss huber_loss nll_loss kl_div "
        "binary_cross_entropy binary_cross_entropy_with_logits cross_entropy_loss".split()
    ),
    # The last line: eager sets their result's dtype instead, which computes the same.
    "cuda": frozenset(
        "exp expm1 log log10 log2 log1p reciprocal rsqrt pow softplus layer_norm native_layer_norm rms_norm group_norm "
        "nll_loss nll_loss2d kl_div l1_loss smooth_l1_loss huber_loss mse_loss soft_margin_loss cosine_similarity "
        "binary_cross_entropy_with_logits logsumexp acos asin cosh sinh tan erfinv "
        "prod softmax log_softmax cumprod cumsum linalg_vector_norm sum norm".split()
    ),
}


class Mode(NamedTuple):
    """Whether autocast is on for a device, and the dtype it lowers to."""

    enabled: bool
    dtype: torch.dtype


class State(NamedTuple):
    """Autocast as one thread has it, device by device."""

    cpu: Mode
    cuda: Mode

    @property
    def enabled(self) -> bool:
        return self.cpu.enabled or self.cuda.enabled


def current() -> State:
    """The state of the calling thread."""
    return State(*(Mode(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in State._fields))


def enter(state: State) -> None:
    """Make it the state of the calling thread."""
    for device, mode in state._asdict().items():
        torch.set_autocast_enabled(device, mode.enabled)
        torch.set_autocast_dtype(device, mode.dtype)


def inside(outside: State, device: str, dtype: torch.dtype | None, enabled: bool) -> State:
    """The state within `torch.autocast(device, dtype, enabled)`."""
    if device not in State._fields:
        return outside
    return outside._replace(**{device: Mode(enabled, dtype or torch.get_autocast_dtype(device))})


def cast_of(state: State, overload: torch._ops.OpOverload, dtype: torch.dtype, device: str) -> torch.dtype:
    """The dtype in which the operator receives an operand of this dtype on this kind of device."""
    mode: Mode = getattr(state, device)
    if not mode.enabled or not dtype.is_floating_point or dtype is torch.float64:
        return dtype
    name = overload._schema.name.partition("::")[2]
    if name in LOWER[device]:
        return mode.dtype
    return torch.float32 if name in FLOAT32[device] else dtype
