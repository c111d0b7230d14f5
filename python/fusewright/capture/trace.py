"""Dynamo's graph -> a functional ATen graph, traced once.

`aot_export_module` runs a graph twice, first to learn what it writes into. Here one run learns and records: PyTorch's
functional tensors replace what is done in place, and its tracer records what they run.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.utils import _disable_saved_tensors_hooks_during_tracing
from torch._functorch._aot_autograd.functional_utils import has_data_mutation, has_metadata_mutation
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from .. import reasons
from ..errors import Decline
from .sizes import memory_order


class NotTraced(Exception):
    """The graph has something that only an export in full can judge."""


def _copy(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """What `copy_` becomes, out of operators that have a derivative: its own functional form has none."""
    order = memory_order(self)
    value = source.to(self.device, self.dtype).expand(self.shape).permute(order)
    value = value.clone(memory_format=torch.contiguous_format).permute([order.index(d) for d in range(self.dim())])
    if torch.is_grad_enabled() and self.requires_grad and not source.requires_grad:
        # In eager it still requires a gradient, which is zero from here on.
        value = torch.where(torch.ones((), dtype=torch.bool, device=self.device), value, self)
    return value


def _write_as_strided(
    self: torch.Tensor, src: torch.Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> torch.Tensor:
    """What a write through `as_strided` becomes: a scatter into the elements in the order of memory. The derivative of
    PyTorch's own functional form is wrong where strides do not cover the tensor."""
    order = memory_order(self)
    lying = self.permute(order)
    numel = math.prod(size)
    last = (storage_offset or 0) + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    whole = lying.is_contiguous() and self.storage_offset() == 0
    if numel and (not whole or last >= self.numel() or _repeats(size, stride)):
        raise Decline(reasons.MUTATION, "a write through as_strided outside of the tensor, or twice into an element")
    places = torch.arange(self.numel(), device=self.device).as_strided(size, stride, storage_offset or 0)
    written = lying.reshape(-1).scatter(0, places.reshape(-1), src.reshape(-1))
    return written.view(lying.shape).permute([order.index(d) for d in range(self.dim())])


def _repeats(size: list[int], stride: list[int]) -> bool:
    """Whether two elements may share memory: no stride may fall short of what lies within."""
    within = 1
    for n, step in sorted(zip(size, stride, strict=True), key=lambda x: x[1]):
        if n == 1:
            continue
        if step < within:
            return True
        within = step * (n - 1) + within
    return False


DECOMPOSITIONS = {torch.ops.aten.copy.default: _copy, torch.ops.aten.as_strided_scatter.default: _write_as_strided}


def is_plain(gm: fx.GraphModule, examples: list) -> bool:
    """Whether the graph is traced here: it has nothing of its own (constants, graphs within it), no sizes that depend
    on data, and fake tensors of one mode for inputs."""
    tensors = [x for x in examples if isinstance(x, torch.Tensor)]
    if not tensors or any(type(x) is not FakeTensor or x.fake_mode is not tensors[0].fake_mode for x in tensors):
        return False
    return not any(n.op in ("get_attr", "call_module") or "unbacked_bindings" in n.meta for n in gm.graph.nodes)


def trace(run: Callable, examples: list) -> tuple[fx.GraphModule, list[int]]:
    """The graph of `run`, which has in front of its results the new value of each input that it writes into; and the
    positions of those inputs."""
    written: list[int] = []

    def functional(*inputs):
        # Only Python's functional tensors are to be functional: not what they hold.
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)):
            wrapped = [FunctionalTensor.to_functional(x) if isinstance(x, torch.Tensor) else x for x in inputs]
            results = run(*wrapped)
            values = []
            for position, (x, after) in enumerate(zip(inputs, wrapped, strict=True)):
                if not isinstance(x, torch.Tensor):
                    continue
                if has_metadata_mutation(after, x, check_only_storage_mutation=False):
                    raise NotTraced("an input gets other sizes")
                if has_data_mutation(after):
                    written.append(position)
                    values.append(_unwrapped(after))
            return (*values, *(_unwrapped(result) for result in results))

    mode = next(x.fake_mode for x in examples if isinstance(x, torch.Tensor))
    with (
        _same_grad_mode(),
        _disable_saved_tensors_hooks_during_tracing(),
        mode,
        enable_python_dispatcher(),
        FunctionalTensorMode(pre_dispatch=True, export=True),
    ):
        traced = make_fx(functional, decomposition_table=DECOMPOSITIONS, pre_dispatch=True)(*examples)
    if written:
        _check_written(examples, written)
    for node in traced.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            raise NotTraced(f"{node.target} is left in the graph")
    return traced, written


def _unwrapped(x):
    if not isinstance(x, FunctionalTensor):
        return x
    torch._sync(x)
    return torch._from_functional_tensor(x.elem)


def _check_written(examples: list, written: list[int]) -> None:
    """What is written must be no other input's memory too: functional tensors know of aliases among each other only
    where one was made from the other."""
    storages = [x.untyped_storage()._cdata if isinstance(x, torch.Tensor) else None for x in examples]
    for position in written:
        if storages.count(storages[position]) > 1:
            raise NotTraced("two inputs share memory that is written")


@contextlib.contextmanager
def _same_grad_mode():
    enabled = torch.is_grad_enabled()
    try:
        yield
    finally:
        torch._C._set_grad_enabled(enabled)
