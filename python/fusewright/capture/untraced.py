"""What tracing would lose without a word. PyTorch runs such nodes as Dynamo gave them: `split.py` cuts the graph there.

A functional graph holds tensors and operators. It has no place for PyTorch's own state (inference mode, the levels of
functorch, which library serves attention), for a backward that the user wrote, or for writes that autograd is not to
see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .. import reasons
from ..errors import Decline
from . import autocast
from .sizes import memory_order

# Functions of Dynamo's graphs that return nothing and are no state: they check, or change their arguments.
_WITHOUT_RESULT = ("setitem", "_assert", "_check", "_foreach_", "_fused_")
# Functions of Dynamo's graphs that return nothing and mean nothing to a result: PyTorch counts who uses what, or loads
# what it will need.
_WITHOUT_MEANING = ("_log_api_usage_once", "_log_api_usage_metadata", "lazy_load_decompositions")
_WRITING = ("setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor")
_DETACHES = ("detach", "detach_", "data", "_get_data_attr")
_HIDING = (*_DETACHES, "_set_grad_enabled")


def check_states(gm: fx.GraphModule, known: set) -> None:
    """Declines a graph with functions that set anything of PyTorch's but what is `known`. Tracing would run them, and
    leave what they set as it is."""
    for node in nodes_of(gm):
        if node.target not in known and sets_state(node):
            raise Decline(reasons.STATE, f"a trace does not keep {name_of(node.target)}")


def sets_state(node: fx.Node) -> bool:
    """Whether the node calls a function for what it sets, and not for a result."""
    if node.op != "call_function" or node.meta.get("example_value") is not None:
        return False
    if isinstance(node.target, (OpOverload, OpOverloadPacket, HigherOrderOperator)):
        return False
    return not name_of(node.target).startswith(_WITHOUT_RESULT) and not means_nothing(node)


def means_nothing(node: fx.Node) -> bool:
    """Whether no result depends on the node, which returns none."""
    return node.op == "call_function" and name_of(node.target) in _WITHOUT_MEANING


def check_kept(gm: fx.GraphModule, traced: fx.GraphModule) -> None:
    """Declines where operators of a higher order (an `autograd.Function`, a hook) did not come through: what they mean
    for the backward is lost then."""
    lost = Counter(_higher_order(gm)) - Counter(_higher_order(traced))
    if lost:
        raise Decline(reasons.STATE, f"a trace does not keep {next(iter(lost))}")


def check_writes(gm: fx.GraphModule, examples: list) -> None:
    """Declines a graph that writes into a value behind autograd's back: without gradients, or through what was
    detached. Declines one whose writes PyTorch refuses, because elements of the tensor share memory.

    In eager the value keeps its history. In a functional graph it is another value, whose history is that of the write,
    and no two of its elements share memory.
    """
    if any(_hides(node) or _may_overlap(node) for node in nodes_of(gm)):
        Rehearsal(gm).on(examples)


def _hides(node: fx.Node) -> bool:
    """Whether the node may part tensors of one memory into those that autograd follows and others."""
    name = name_of(node.target).partition(".")[0]
    as_other_dtype = name == "view" and any(isinstance(x, torch.dtype) for x in (*node.args, *node.kwargs.values()))
    return name in _HIDING or as_other_dtype


def detaches(node: fx.Node) -> bool:
    """Whether the node gives a tensor's memory to one that autograd does not follow."""
    return node.op.startswith("call") and name_of(node.target) in _DETACHES


def _may_overlap(node: fx.Node) -> bool:
    """Whether the node may write into a tensor whose elements share memory with each other or with what it reads."""
    name = name_of(node.target)
    in_place = name in _WRITING or (name.endswith("_") and not name.endswith("__"))
    values = [x.meta.get("example_value") for x in node.all_input_nodes]
    tensors = [x for x in values if isinstance(x, torch.Tensor)]
    if not in_place or not tensors:
        return False
    target, *others = tensors
    return _overlaps_itself(target) or any(memory_of(x) == memory_of(target) for x in others)


def _overlaps_itself(x: torch.Tensor) -> bool:
    return any(stride == 0 and size != 1 for size, stride in zip(x.shape, x.stride(), strict=True))


def _overlaps_partly(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether the two have memory in common and are not element for element the same, as PyTorch judges it: it
    does not look at tensors with gaps."""
    if memory_of(x) != memory_of(y) or x.numel() == 0 or y.numel() == 0:
        return False
    if not all(t.permute(memory_order(t)).is_contiguous() for t in (x, y)):
        return False
    if x.storage_offset() == y.storage_offset() and x.shape == y.shape and x.stride() == y.stride():
        return False
    return y.storage_offset() < x.storage_offset() + x.numel() and x.storage_offset() < y.storage_offset() + y.numel()


class Rehearsal(fx.Interpreter):
    """The graph as eager runs it, autograd and all, on tensors without data."""

    def __init__(self, gm: fx.GraphModule):
        super().__init__(gm)
        self.inputs: list[torch.Tensor] = []

    def on(self, examples: list) -> None:
        """Run it, and leave the thread's state as it was."""
        enabled, state = torch.is_grad_enabled(), autocast.current()
        mode = next((x.fake_mode for x in examples if isinstance(x, torch._subclasses.FakeTensor)), None)
        try:
            with torch._guards.tracing(None), mode or torch._subclasses.FakeTensorMode():
                self.run(*map(own, examples))
        finally:
            torch._C._set_grad_enabled(enabled)
            autocast.enter(state)

    def refuse(self, node: fx.Node, detail: str) -> None:
        """Called with each node that writes in a way that a functional graph cannot say."""
        raise Decline(reasons.MUTATION, detail)

    def wrote(self, node: fx.Node, target: torch.Tensor) -> None:
        """Called with each tensor that a node has written into."""

    def placeholder(self, target, args, kwargs):
        value = super().placeholder(target, args, kwargs)
        self.inputs += tensors_in(value)
        return value

    def run_node(self, node):
        with _Writes() as writes:
            result = super().run_node(node)
        for func, target, enabled, read in writes.seen:
            self.wrote(node, target)
            if _overlaps_itself(target):
                self.refuse(node, f"{func} writes into elements that share memory")
            if any(_overlaps_partly(target, x) for x in read):
                self.refuse(node, f"{func} writes into memory that it reads elsewhere")
            # What is read later: values that are not are gone from the interpreter.
            living = [target, *self.inputs, *tensors_in(list(self.env.values())), *tensors_in(result)]
            followed = {_is_followed(x) for x in living if memory_of(x) == memory_of(target)}
            if True in followed and (not enabled or False in followed):
                self.refuse(node, f"{func} writes behind autograd's back into what has a gradient")
        if not torch.is_grad_enabled() and not detaches(node):
            self._check_views(node, tensors_in(result))
        return result

    def _check_views(self, node: fx.Node, results: list[torch.Tensor]) -> None:
        """A view of what was written into is made again where it is read: with a history there."""
        for x in tensors_in([self.env.get(source) for source in node.all_input_nodes]):
            if x._version > 0 and _is_followed(x):
                if any(memory_of(y) == memory_of(x) and not _is_followed(y) for y in results):
                    self.refuse(node, "a view without gradients of what was written into")


class _Writes(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen: list[tuple] = []  # operator, what it writes into, whether gradients are enabled, what it reads

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for i, parameter in enumerate(func._schema.arguments):
            if parameter.alias_info is not None and parameter.alias_info.is_write:
                for x in tensors_in(args[i] if i < len(args) else kwargs.get(parameter.name)):
                    read = [y for y in tensors_in([args, kwargs]) if y is not x]
                    self.seen.append((func, x, torch.is_grad_enabled(), read))
        return func(*args, **kwargs)


def _is_followed(x: torch.Tensor) -> bool:
    try:
        # A view learns that its base has a history when it is asked for its own.
        return x.grad_fn is not None or (x.requires_grad and not x._is_view())
    except RuntimeError:  # a view made without gradients, whose base was changed: eager hands it out, and no history
        return False


def memory_of(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata


def tensors_in(values: object) -> list[torch.Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]


def own(x: object) -> object:
    return x.detach().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x


def nodes_of(gm: fx.GraphModule) -> Iterator[fx.Node]:
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            yield from module.graph.nodes


def _higher_order(gm: fx.GraphModule) -> Iterator[str]:
    return (str(node.target) for node in nodes_of(gm) if isinstance(node.target, HigherOrderOperator))


def name_of(target: object) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))
