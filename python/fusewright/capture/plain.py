"""A region in PyTorch's own operators: what runs where its kernels cannot, and what second derivatives are taken
through (docs/capture.md)."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from ..log import logger
from ..stats import count
from . import autocast
from .importer import Imported, bound_arguments
from .normalize import Normalized, is_functional_batch_norm
from .partition import Partition

_aten = torch.ops.aten


class Plain:
    """The region's nodes as PyTorch runs them. The core holds it as long as a backward may ask for it, so it must not
    hold the core's region in turn."""

    def __init__(
        self,
        name: str,
        imported: Imported,
        members: list[fx.Node],
        normal: Normalized,
        plan: Partition,
        say: Callable,
    ):
        """say: logs a line, once for each thing it is about."""
        self.name, self.imported, self.say = name, imported, say
        self._members, self._normal, self._plan = members, normal, plan
        self._state: autocast.State = plan.states[members[0]]  # of all: no region crosses a marker

    @property
    def passive(self) -> set[fx.Node]:
        return self._plan.passive

    @functools.cached_property
    def whole(self) -> fx.GraphModule:
        """All outputs of tensors and scalars, those that replace inputs last."""
        return fx.GraphModule(self._normal.owner, self._graph(self.imported.outputs, statistics=True))

    @functools.cached_property
    def _differentiable(self) -> fx.Graph:
        """The outputs that have a gradient, None for others. Batch norm computes with the statistics of its batch, and
        knows of no running ones."""
        imported = self.imported
        outputs = [node if has else None for node, has in zip(imported.outputs, imported.differentiable, strict=True)]
        return self._graph(outputs, statistics=False)

    @functools.cached_property
    def _differentiable_module(self) -> fx.GraphModule:
        return fx.GraphModule(self._normal.owner, self._differentiable)

    @functools.cached_property
    def reads(self) -> list[bool]:
        """Of each tensor of a call, whether an output with a gradient is computed from it. Empty where that is not
        known: a forward must not fail for it."""
        try:
            placeholders = [node for node in self._differentiable.nodes if node.op == "placeholder"]
        except Exception as error:  # noqa: BLE001
            logger.debug("%s: no second derivatives", self.name, exc_info=error)
            return []
        return [bool(node.users) for node in placeholders[: len(self.imported.inputs)]]

    def differentiable(self, tensors: list, scalars: list[float]) -> list:
        """Run it once more, for derivatives of its gradients, as the forward ran it."""
        count("second_derivatives")
        self.say(f"region {self.name} runs in PyTorch's operators for second derivatives")
        return self._run(tensors, scalars)

    def bytes_kept(self, tensors: list, scalars: list[float], held: list[bool]) -> int:
        """What PyTorch's operators would keep for the backward of this call, beside the tensors that are held in any
        case. They run on tensors without data; -1 where that fails."""
        kept: dict[int, torch.UntypedStorage] = {}

        def pack(x: torch.Tensor) -> None:
            storage = x.untyped_storage()
            kept[storage._cdata] = storage

        # Autocast knows devices, and so do fake tensors; without it, those of no device are cheaper.
        mode = FakeTensorMode(allow_non_fake_inputs=True) if self._state.enabled else contextlib.nullcontext()
        try:
            with _disable_current_modes(), mode, torch.enable_grad():
                examples = [_without_data(x, x.device if self._state.enabled else "meta") for x in tensors]
                with torch.autograd.graph.saved_tensors_hooks(pack, lambda _: None):
                    results = self._run(examples, scalars)
            for x, already in zip(examples, held, strict=True):
                if already:
                    kept.pop(x.untyped_storage()._cdata, None)
            del results
            return sum(storage.nbytes() for storage in kept.values())
        except Exception as error:  # noqa: BLE001  the forward goes on; second derivatives say what is to be done
            logger.debug("%s: what PyTorch keeps is not known", self.name, exc_info=error)
            return -1

    @torch._dynamo.disable
    def _run(self, tensors: list, scalars: list[float]) -> list:
        outside = autocast.current()
        try:
            autocast.enter(self._state)
            return self._differentiable_module(*tensors, *self._numbers(scalars))
        finally:
            autocast.enter(outside)

    def _numbers(self, scalars: list[float]) -> list:
        """As the captured graph has them: the core knows neither integers nor tensors on the CPU."""

        def number(value: float, node: fx.Node) -> int | float | torch.Tensor:
            example = node.meta["val"]
            if isinstance(example, torch.Tensor):
                return torch.tensor(value, dtype=example.dtype, device="cpu")
            return int(value) if isinstance(example, torch.SymInt) else value

        return list(map(number, scalars, self.imported.scalars))

    def _graph(self, outputs: list[fx.Node | None], statistics: bool) -> fx.Graph:
        graph = fx.Graph()
        imported, plan = self.imported, self._plan
        env = {node: graph.placeholder(node.name) for node in imported.inputs}
        for node in imported.scalars:  # one for each dtype it is read in: all the same number
            env[node] = graph.placeholder(node.name)
        inside = set(self._members)

        @functools.cache
        def symbols() -> dict:
            return {
                size.node.expr: graph.call_function(_aten.sym_size.int, (env[node], dim))
                for node in imported.inputs
                for dim, size in enumerate(node.meta["val"].shape)
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol
            }

        def emit(node: fx.Node) -> fx.Node:
            if node not in env and isinstance(node.meta.get("val"), torch.SymInt):
                free = sorted(node.meta["val"].node.expr.free_symbols, key=str)
                value = sympy.lambdify(free, node.meta["val"].node.expr)
                env[node] = graph.call_function(lambda *sizes: int(value(*sizes)), tuple(symbols()[s] for s in free))
            if node not in env and not statistics and _is_normalised_batch(node):
                arguments = bound_arguments(node.args[0])
                x, weight, bias = (arguments[name] for name in ("input", "weight", "bias"))
                given = [emit(x), *(None if t is None else emit(t) for t in (weight, bias))]
                numbers = (arguments["momentum"], arguments["eps"])
                env[node] = graph.call_function(_aten.batch_norm.default, (*given, None, None, True, *numbers, True))
            if node not in env:
                assert node in inside or node in plan.passive, f"{node} is not in region {self.name}"
                for source in node.all_input_nodes:
                    emit(source)
                env[node] = copy_node(graph, node, env)
            return env[node]

        graph.output([None if node is None else emit(node) for node in outputs])
        graph.eliminate_dead_code()
        return graph


def copy_node(graph: fx.Graph, node: fx.Node, env: dict) -> fx.Node:
    """The node as it was; a functional batch norm gets copies of the running statistics, because autograd saves them
    and the buffers are about to be updated."""
    copied = graph.node_copy(node, env.__getitem__)
    if is_functional_batch_norm(node):
        for position in (3, 4):
            with graph.inserting_before(copied):
                clone = graph.call_function(_aten.clone.default, (copied.args[position],))
            copied.update_arg(position, clone)
    return copied


def _is_normalised_batch(node: fx.Node) -> bool:
    """The first result of a batch norm in training."""
    if node.target is not operator.getitem or node.args[1] != 0 or not is_functional_batch_norm(node.args[0]):
        return False
    return bound_arguments(node.args[0]).get("training", True) is True


def _without_data(x: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    empty = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
    return empty.requires_grad_(x.requires_grad)
