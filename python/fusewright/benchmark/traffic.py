"""What a model runs: operators that touch memory, and the bytes that they read and write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .. import reasons
from ..capture.importer import numel_hint
from ..explain import OUTSIDE, Explanation, Kernel
from .measure import tensors_in

# Operators that stay with the library: counted apart, before and after.
LIBRARY_OPERATORS = (
    "convolution",
    "convolution_backward",
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "mv",
    "addmv",
    "linear",
    "matmul",
)
_TOUCH_NOTHING = ("detach", "empty", "empty_like", "empty_strided")


@dataclass(frozen=True)
class Traffic:
    operators: int  # of PyTorch's, and kernels of ours
    library: int  # calls; the gradients of a product are one call each
    bytes: int  # outside the library's operators


def traffic_of(call: Callable[[], object], regions: Explanation | None = None) -> Traffic:
    """Of what the call runs, with a backward if it asks for one. `regions` says what calls of regions consist of."""
    with _CountOperators() as count:
        call()
    steps = regions.steps if regions else []
    left = {f.operator for f in regions.fallbacks if f.reason == reasons.SLOWER} if regions else set()
    steps = [step for step in steps if f"region {step.region}" not in left]  # those run as PyTorch's operators
    if steps and not count.regions:
        # Dynamo runs all of it in eager under a mode (older versions of PyTorch). Nothing is claimed for what is partly
        # fused; what is fused whole has nothing else to count.
        if any(fate.what == OUTSIDE for fate in regions.fates):
            steps = []
        else:
            count.operators = count.library = count.bytes = 0
    kernels = [step for step in steps if isinstance(step, Kernel)]
    moved = sum(kernel.bytes_read + kernel.bytes_written for kernel in kernels)
    library = count.library + len(steps) - len(kernels)
    return Traffic(count.operators + len(kernels), library, count.bytes + moved)


class _CountOperators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators = self.library = self.bytes = 0
        self.regions = 0  # calls of them that were seen

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Dynamo's word for a mode under which optimised models stay optimised."""
        return True

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        namespace, name = function._schema.name.split("::")
        returns = function._schema.returns
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        self.regions += namespace == "fusewright"
        # prim asks fake tensors for their device.
        if is_view or name in _TOUCH_NOTHING or namespace in ("prim", "fusewright"):
            return result
        if name == "convolution_backward":
            self.library += sum(wanted for wanted in arguments[-1][:2])  # of input and weight
        elif name in LIBRARY_OPERATORS:
            self.library += 1
        else:
            self.operators += 1
            self.bytes += sum(_bytes(tensor) for tensor in tensors_in([*arguments, result]))
        return result


def _bytes(tensor: torch.Tensor) -> int:
    return numel_hint(tensor) * tensor.element_size()
