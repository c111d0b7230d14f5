"""Which cases there are: operators, element types and kinds; their names, their samples, and what is held back.

A case is `operator/dtype/kind/number`. The name is stable as long as PyTorch's list of samples is.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32, torch.bfloat16, torch.float64, torch.float16,
        torch.int64, torch.int32, torch.uint8, torch.int8, torch.int16, torch.bool,
    )
}  # fmt: skip
# In the order in which they run. contexts.py says what they do with an operator.
KINDS = ("plain", "between", "sum", "mean", "softmax", "inplace", "written", "resized", "reference", "error")
HELD_BACK = 0.2  # the part of all cases that nobody looks at while the library is developed
HELD_BACK_SEED = "held back 1"


class Group(NamedTuple):
    """All cases of one operator, element type and kind: their samples are made together."""

    operator: str
    dtype: str
    kind: str

    @property
    def name(self) -> str:
        return "/".join(self)


class Sample(NamedTuple):
    """The arguments of an operator; `process` picks the results whose gradients are worth comparing."""

    input: object
    args: tuple
    kwargs: dict
    process: object = None
    broadcasts_input: bool = False


@cache
def operators() -> dict:
    """PyTorch's list, by name."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ModuleNotFoundError as error:
        raise SystemExit(f"judge: PyTorch's list of operators needs the package {error.name}: pip install it") from None
    found = {}
    for op in op_db:
        assert op.formatted_name not in found, op.formatted_name
        found[op.formatted_name] = op
    return found


def draw(seed: str, name: str) -> float:
    """A number of [0, 1) that depends on nothing but the seed and the name."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big") / 2**64


def is_held_back(case: str) -> bool:
    return draw(HELD_BACK_SEED, case) < HELD_BACK


def groups(names: Sequence[str], dtypes: Sequence[str], kinds: Sequence[str], device: str) -> list[Group]:
    """Every group that makes sense, by element type, then by kind: what matters most comes first."""
    device_type = torch.device(device).type
    found = []
    for dtype in dtypes:
        for kind in kinds:
            for name in names:
                op = operators()[name]
                if kind == "error":
                    # Errors come with element types of their own: once is enough.
                    if dtype == dtypes[0] and op.error_inputs_func is not None:
                        found.append(Group(name, "any", kind))
                elif DTYPES[dtype] in op.supported_dtypes(device_type) and _has(op, kind, DTYPES[dtype]):
                    found.append(Group(name, dtype, kind))
    return found


def _has(op, kind: str, dtype: torch.dtype) -> bool:
    if kind in ("inplace", "written"):
        return op.inplace_variant is not None
    if kind == "reference":
        return op.reference_inputs_func is not None
    return dtype.is_floating_point or kind not in ("mean", "softmax")


def wants_gradients(op, group: Group, device: str) -> bool:
    if group.kind in ("error", "written"):
        return False
    return op.supports_autograd and DTYPES[group.dtype] in op.supported_backward_dtypes(torch.device(device).type)


def samples(group: Group, device: str) -> list[Sample]:
    """All samples of a group. Operators draw them from the global generator, so they are made together."""
    op = operators()[group.operator]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(_samples(op, group, device))


def _samples(op, group: Group, device: str) -> Iterator[Sample]:
    if group.kind == "error":
        for error in op.error_inputs(device):
            yield _sample(error.sample_input)
        return
    make = op.reference_inputs if group.kind == "reference" else op.sample_inputs
    for sample in make(device, DTYPES[group.dtype], requires_grad=wants_gradients(op, group, device)):
        yield _sample(sample)


def _sample(sample) -> Sample:
    return Sample(
        sample.input, tuple(sample.args), sample.kwargs, sample.output_process_fn_grad, sample.broadcasts_input
    )
