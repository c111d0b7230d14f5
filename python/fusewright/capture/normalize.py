"""Dynamo's graph -> one schema: a functional ATen graph with explicit updates of buffers (why: docs/capture.md)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_export_module
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .. import reasons
from ..errors import Decline
from ..log import logger
from . import autocast
from .operators import FREE_VIEWS, PASSIVE, TABLE
from .trace import DECOMPOSITIONS, is_plain, trace
from .untraced import check_kept, check_states, check_writes

_enter_autocast = torch.amp.autocast_mode._enter_autocast
_exit_autocast = torch.amp.autocast_mode._exit_autocast
_aten = torch.ops.aten
_STATE_CHANGES = {torch._C._set_grad_enabled, _enter_autocast, _exit_autocast}
_HIDDEN_UPDATES = ("batch_norm", "cudnn_batch_norm", "instance_norm", "miopen_batch_norm", "native_batch_norm")
CHANGES = "fusewright_changes"  # in the meta of a placeholder: somebody writes into it behind the graph
_BATCH_NORMS = ("_native_batch_norm_legit_functional", "_batch_norm_with_update_functional")


class Normalized(NamedTuple):
    """A functional graph: `updates` maps a placeholder to the node whose value is copied into it at the end."""

    graph: fx.Graph
    owner: torch.nn.Module  # holds the constants that get_attr nodes name
    updates: dict[fx.Node, fx.Node]
    results: list  # the user's outputs: nodes or constants
    owned: set[fx.Node]  # placeholders of parameters and buffers
    changed: set[fx.Node]  # placeholders that somebody writes into behind the graph


def is_marker(node: fx.Node) -> bool:
    """Nodes that change the state under which later nodes run; nothing may move across one."""
    return node.op == "call_function" and node.target in _STATE_CHANGES


def normalize(gm: fx.GraphModule) -> Normalized:
    """Trace the graph; declines with export_failed or mutation, and then Dynamo's own graph must be run."""
    gm, numbers = _numbers_as_inputs(gm)
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    check_states(gm, _STATE_CHANGES)
    try:
        examples = [node.meta["example_value"] for node in placeholders]
        check_writes(gm, examples)
        traced, written = _functional(gm, examples)
    except Decline:
        raise
    except Exception as error:  # export has many ways to refuse; every one of them leaves the graph to PyTorch
        text = str(error).strip().splitlines()
        raise Decline(reasons.EXPORT_FAILED, f"{type(error).__name__}: {text[0] if text else ''}") from error
    check_kept(gm, traced)
    graph = traced.graph
    _numbers_as_items(graph, numbers)
    _drop_assertions(graph)
    _drop_identities(graph)
    _make_masks_dense(graph)
    hidden = {node for node in graph.nodes if _statistics_behind(node)}
    graph.eliminate_dead_code(lambda node: node.is_impure() or is_marker(node))
    if not hidden <= set(graph.nodes):
        raise Decline(reasons.MUTATION, "a norm is there for its running statistics alone")
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    values, results = output.args[0][: len(written)], list(output.args[0][len(written) :])
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    sources = list(zip(arguments, placeholders, strict=not numbers))
    updates = {}
    for value, position in zip(values, written, strict=True):
        placeholder, source = sources[position]
        if not is_buffer(source):
            raise Decline(reasons.MUTATION, f"the graph writes into {source_name(source)}, which is no buffer")
        updates[placeholder] = value
    _reveal_statistics(graph, updates, {node for node, source in sources if is_buffer(source)})
    _check_hidden_updates(graph, updates)
    # An updated buffer among the outputs (`self.steps += 1` makes it one) is the buffer itself.
    buffer_of = {value: placeholder for placeholder, value in updates.items()}
    results = [buffer_of.get(result, result) if isinstance(result, fx.Node) else result for result in results]
    _check_aliases(updates, results)
    owned = {node for node, source in sources if is_buffer(source) or _is_parameter(source)}
    changed = {node for node, source in sources if source.meta.get(CHANGES)} | set(updates)
    return Normalized(graph, traced, updates, results, owned, changed)


def _functional(gm: fx.GraphModule, examples: list) -> tuple[fx.GraphModule, list[int]]:
    """The graph in functional ATen, in front of its results the new values of inputs, and those inputs' positions."""
    # Dynamo's context holds a fake mode for backends that start from real tensors; the examples bring their own.
    with torch._guards.tracing(None):
        if is_plain(gm, examples):
            try:
                return trace(_run(gm), examples)
            except Decline:
                raise
            except Exception as error:
                logger.debug("not traced, but exported: %s: %s", type(error).__name__, error)
        return _export(gm, examples)


def _export(gm: fx.GraphModule, examples: list) -> tuple[fx.GraphModule, list[int]]:
    """The same by PyTorch's export, which takes twice as long and knows when to refuse."""
    has_autocast = any(node.target is _enter_autocast for node in gm.graph.nodes)
    module = _WithAutocast(gm) if has_autocast else gm
    exported, signature = aot_export_module(
        module, examples, trace_joint=False, pre_dispatch=True, decompositions=DECOMPOSITIONS
    )
    if signature.buffers_to_mutate or getattr(signature, "parameters_to_mutate", None):
        raise Decline(reasons.MUTATION, "state of the graph's own module")
    arguments = [node.name for node in exported.graph.nodes if node.op == "placeholder"]
    return exported, [arguments.index(name) for name in signature.user_inputs_to_mutate.values()]


def _reveal_statistics(graph: fx.Graph, updates: dict[fx.Node, fx.Node], buffers: set[fx.Node]) -> None:
    """cuDNN's batch norm updates running statistics behind its schema's back: the functional operator says so.

    Where anything else looks at the statistics it stays what it was: export does not know when they change.
    """
    for call in [node for node in graph.nodes if node.target is _aten.cudnn_batch_norm.default]:
        x, weight, bias, mean, var, training, momentum, eps = call.args
        # Export may list them as mutated: into themselves, since it sees no new value.
        known = all(b in buffers and updates.get(b, b) is b and _read_once(b) for b in (mean, var))
        result_alone = all(user.target is operator.getitem and user.args[1] == 0 for user in call.users)
        if not training or not known or mean is var or not result_alone:
            continue
        with graph.inserting_before(call):
            functional = _aten._native_batch_norm_legit_functional.default
            revealed = graph.call_function(functional, (x, weight, bias, mean, var, True, momentum, eps))
            revealed.meta = dict(call.meta)
            revealed.meta["val"] = (*call.meta["val"][:3], mean.meta["val"], var.meta["val"])
            for buffer, position in ((mean, 3), (var, 4)):
                updates[buffer] = graph.call_function(operator.getitem, (revealed, position))
                updates[buffer].meta = {**call.meta, "val": buffer.meta["val"]}
        call.replace_all_uses_with(revealed)
        graph.erase_node(call)


def _statistics_behind(node: fx.Node) -> list[fx.Node]:
    """The running statistics that a norm updates without its schema saying so."""
    packet = getattr(node.target, "overloadpacket", None)
    if getattr(packet, "__name__", "") not in _HIDDEN_UPDATES or node.args[5] is not True:  # not in training
        return []
    return [statistic for statistic in node.args[3:5] if statistic is not None]


def _check_hidden_updates(graph: fx.Graph, updates: dict[fx.Node, fx.Node]) -> None:
    """Nobody else may look at what such a norm updates: nothing says when."""
    for node in graph.nodes:
        for statistic in _statistics_behind(node):
            own = statistic.op == "placeholder" and updates.get(statistic, statistic) is statistic
            if not own or not _read_once(statistic):
                raise Decline(reasons.MUTATION, "running statistics that a norm updates are read elsewhere, too")


def _read_once(node: fx.Node) -> bool:
    """By one operator; to hand the node out is not to read it."""
    return sum(user.op != "output" for user in node.users) == 1


def _numbers_as_inputs(gm: fx.GraphModule) -> tuple[fx.GraphModule, list[int]]:
    """Python floats arrive as 0-d tensors and `item()`, which export cannot trace: each becomes an input of its own.

    Returns the graph and, for each added input, the position of the tensor it is read from.
    """
    arguments = [node for node in gm.graph.nodes if node.op == "placeholder"]
    items = [node for node in gm.graph.nodes if _is_number(node) and node.args[0] in arguments]
    if not items:
        return gm, []
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    output = graph.graph_copy(gm.graph, env)
    graph.output(output)
    added = []
    for node in items:
        with graph.inserting_after(env[arguments[-1]]):
            number = graph.placeholder(node.name)
        number.meta["example_value"] = node.meta["example_value"]
        env[node].replace_all_uses_with(number)
        graph.erase_node(env[node])
        added.append(arguments.index(node.args[0]))
    # Each was inserted right after the last tensor: the one added last comes first.
    return fx.GraphModule(gm, graph), added[::-1]


def _is_number(node: fx.Node) -> bool:
    return node.op == "call_method" and node.target == "item" and isinstance(node.meta["example_value"], torch.SymFloat)


def _numbers_as_items(graph: fx.Graph, added: list[int]) -> None:
    """Undo it in the exported graph: the numbers are read from their tensors again."""
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    for number, position in zip(arguments[len(arguments) - len(added) :], added, strict=True):
        with graph.inserting_after(arguments[-1]):
            item = graph.call_method("item", (arguments[position],))
        item.meta = dict(number.meta)
        number.replace_all_uses_with(item)
        graph.erase_node(number)


def _drop_assertions(graph: fx.Graph) -> None:
    assertion = getattr(_aten, "_assert_tensor_metadata", None)
    for node in reversed(list(graph.nodes)):
        # Dynamo's guards have checked the same facts already.
        if assertion is not None and node.target is assertion.default and not node.users:
            graph.erase_node(node)


def _drop_identities(graph: fx.Graph) -> None:
    """broadcast_tensors of equal shapes, as the losses write it, is one alias for each operand; type_as of the same
    dtype is its operand, and would wait for a tensor of which it takes nothing."""
    for node in list(graph.nodes):
        if node.target is _aten.broadcast_tensors.default:
            for user in list(node.users):
                operand = node.args[0][user.args[1]]
                if operand.meta["val"].shape == user.meta["val"].shape:
                    with graph.inserting_before(node):
                        alias = graph.call_function(_aten.alias.default, (operand,))
                    alias.meta = dict(user.meta)
                    user.replace_all_uses_with(alias)
        elif node.target is _aten.type_as.default:
            before, after = node.args[0].meta["val"], node.meta["val"]
            if (before.dtype, before.device) == (after.dtype, after.device):
                node.replace_all_uses_with(node.args[0])


def _make_masks_dense(graph: fx.Graph) -> None:
    """Copy masks of attention on a GPU that are expanded or transposed: PyTorch's fused attention kernels read only
    masks whose last dimension is dense, and without them the whole matrix of scores is written to memory."""
    copies: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is not _aten.scaled_dot_product_attention.default or len(node.args) < 4:
            continue
        mask = node.args[3]
        value = mask.meta["val"] if isinstance(mask, fx.Node) else None
        if value is None or not value.is_cuda or statically_known_true(value.stride(-1) == 1):
            continue
        if mask not in copies:
            with graph.inserting_before(node):
                copy = graph.call_function(_aten.clone.default, (mask,), {"memory_format": torch.contiguous_format})
            with value.fake_mode:
                dense = torch.empty(value.shape, dtype=value.dtype, device=value.device)
            copy.meta = {**mask.meta, "val": dense}
            copies[mask] = copy
        node.replace_input_with(mask, copies[mask])


def source_name(placeholder: fx.Node) -> str:
    """Where Dynamo found the input: `L['self']._buffers['steps']`."""
    argument = placeholder.meta.get("grapharg")
    source = getattr(argument, "source", None)
    name = getattr(source, "name", None)
    name = name() if callable(name) else name
    return name or str(placeholder.target)


def is_buffer(placeholder: fx.Node) -> bool:
    return "._buffers[" in source_name(placeholder) or "_buffers_" in str(placeholder.target)


def _is_parameter(placeholder: fx.Node) -> bool:
    return "._parameters[" in source_name(placeholder)


def _check_aliases(updates: dict, results: list) -> None:
    """A view of an updated buffer among the outputs would be a copy where eager gives a view."""
    updated = set(updates) | set(updates.values())
    for result in results:
        node = result
        while isinstance(node, fx.Node) and node.op == "call_function":
            row = TABLE.get(node.target)
            passive = row is not None and row.role == PASSIVE
            node = node.args[0] if passive or node.target in FREE_VIEWS else None
            if node in updated:
                raise Decline(reasons.MUTATION, "a view of an updated buffer is an output")


def _run(gm: fx.GraphModule) -> Callable:
    """The graph as a function, with its autocast markers in force. They are recorded without being run, so every dtype
    after one, and every cast that seemed to change nothing, would be wrong."""
    interpreter = _AutocastInterpreter(gm)

    def run(*args):
        state = autocast.current()
        try:
            with fx.traceback.preserve_node_meta():
                return interpreter.run(*args)
        finally:
            autocast.enter(state)

    return run


class _WithAutocast(torch.nn.Module):
    """`_run` as the module that export asks for."""

    def __init__(self, gm: fx.GraphModule):
        super().__init__()
        self.run = _run(gm)

    def forward(self, *args):
        return self.run(*args)


class _AutocastInterpreter(fx.Interpreter):
    def run(self, *args):
        self.stack = []
        return super().run(*args)

    def run_node(self, node):
        result = super().run_node(node)
        if node.target is _enter_autocast:
            self.stack.append(autocast.current())
            autocast.enter(_state_inside(node, self.stack[-1]))
        elif node.target is _exit_autocast:
            autocast.enter(self.stack.pop())
        return result


def _state_inside(marker: fx.Node, outside: autocast.State) -> autocast.State:
    device, dtype, enabled = marker.args[:3]
    return autocast.inside(outside, device, dtype, bool(enabled))


def autocast_states(graph: fx.Graph) -> dict[fx.Node, autocast.State]:
    """The autocast state under which each node runs: the ambient one, changed by the markers on the way."""
    state, stack, states = autocast.current(), [], {}
    for node in graph.nodes:
        if node.target is _enter_autocast:
            stack.append(state)
            state = _state_inside(node, state)
        elif node.target is _exit_autocast:
            state = stack.pop()
        states[node] = state
    return states


def is_functional_batch_norm(node: object) -> bool:
    """Batch norm in training, which returns the next running statistics (eager updates them outside autograd)."""
    target = getattr(node, "target", None)
    return isinstance(target, torch._ops.OpOverload) and target.overloadpacket.__name__ in _BATCH_NORMS


def is_statistic(node: fx.Node) -> bool:
    """A result of such a batch norm beside the first: autograd does not follow it."""
    return node.target is operator.getitem and node.args[1] > 0 and is_functional_batch_norm(node.args[0])
