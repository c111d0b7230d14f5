"""A graph of Dynamo's that no trace keeps whole -> pieces. What a trace would lose is left to PyTorch, where it is, and
what stands between is a graph of its own.

    region, write into a cache, region, hook, region  ->  graph, cache[...] = k, graph, register_hook, graph

Markers (`no_grad`, autocast) are left to PyTorch, too: they may begin in one piece and end in another. Each piece is
compiled for the state that is in force where it begins.

All that passes from piece to piece is a tensor of PyTorch's, with its aliases and its history. A piece may therefore
write into memory of its own alone, and into a buffer that nobody else looks at; every other write is PyTorch's.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import fx
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from .. import reasons
from ..errors import Decline
from . import autocast
from .checkpoints import is_checkpoint
from .normalize import CHANGES, is_buffer, is_marker, source_name
from .untraced import Rehearsal, detaches, means_nothing, memory_of, name_of, own, sets_state, tensors_in

_WRITTEN = "what it returns is written into"
_OPENING = ("enter", "increment", "push", "disable")
_CLOSING = ("exit", "decrement", "pop", "enable")
_CROSSES = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)


class State(NamedTuple):
    """What of the thread's state a capture depends on."""

    gradients: bool
    autocast: autocast.State

    @classmethod
    def current(cls) -> State:
        return cls(torch.is_grad_enabled(), autocast.current())

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        outside = State.current()
        try:
            self._enter()
            yield
        finally:
            outside._enter()

    def _enter(self) -> None:
        torch._C._set_grad_enabled(self.gradients)
        autocast.enter(self.autocast)


@dataclass(eq=False)
class Piece:
    """Nodes of the graph that follow each other."""

    nodes: list[fx.Node] = field(default_factory=list)
    left: bool = False  # to PyTorch
    inputs: list[fx.Node] = field(default_factory=list)
    outputs: list[fx.Node] = field(default_factory=list)
    state: State | None = None
    graph: fx.GraphModule | None = None
    changed: set[fx.Node] = field(default_factory=set)  # inputs and outputs that somebody writes into behind it


@dataclass
class Split:
    """The pieces in their order, and why nodes are left to PyTorch."""

    pieces: list[Piece]
    cuts: dict[fx.Node, Decline]
    same: dict[fx.Node, fx.Node]  # for each node the first one whose value is the very same tensor: `x.add_(1)` is `x`
    memories: dict[fx.Node, list[int]]  # that the value of a node is in


def split(gm: fx.GraphModule) -> Split | None:
    """The graph in pieces, or None where there is nothing to cut."""
    cuts = _states(gm.graph)
    examples = [node.meta["example_value"] for node in gm.graph.nodes if node.op == "placeholder"]
    seen = _Seen(gm, cuts)
    seen.on(examples)
    for node in gm.graph.nodes:
        for memory in seen.writes.get(node, ()):
            home = seen.home.get(memory)
            if node not in cuts and home is not None and home.op == "placeholder" and not is_buffer(home):
                cuts[node] = Decline(reasons.MUTATION, f"the graph writes into {source_name(home)}, which is no buffer")
    if not cuts:
        return None
    while True:  # ends: each round cuts at one more node
        pieces = _pieces(gm.graph, cuts)
        _connect(gm.graph, pieces, seen)
        more = [node for piece in pieces if not piece.left for node in _writes_of_others(piece, seen, gm.graph)]
        cuts |= {node: Decline(reasons.MUTATION, "writes into what another part of the graph holds") for node in more}
        written = {memory for node in cuts for memory in seen.writes.get(node, ())}
        # A trace takes x.data for x where x has no history yet.
        views = [n for n in gm.graph.nodes if n not in cuts and detaches(n) and written & {*seen.memories[n]}]
        cuts |= {node: Decline(reasons.MUTATION, _WRITTEN) for node in views}
        if not more and not views:
            break
    _mark_changes(pieces, seen)
    _Snapshots(gm, cuts, pieces, seen.same).on(examples)
    return Split(pieces, cuts, seen.same, seen.memories)


def _states(graph: fx.Graph) -> dict[fx.Node, Decline]:
    """Nodes that set what is no marker's, with all that stands between an opening one and its closing one; and
    operators of a higher order. The tensors of torch.func outlive their level: all is left up to its last function."""
    cuts: dict[fx.Node, Decline] = {}
    opened: list[Decline] = []
    transforms = [node for node in graph.nodes if _is_of_functorch(node)]
    for node in graph.nodes:
        if not node.op.startswith("call"):
            continue
        if transforms and transforms[0] <= node <= transforms[-1]:
            cuts[node] = _lost(transforms[0])
        elif sets_state(node) and not is_marker(node):
            if _is(node, _OPENING):
                opened.append(_lost(node))
            cuts[node] = opened[0] if opened else _lost(node)
            if opened and _is(node, _CLOSING):
                opened.pop()
        elif opened:
            cuts[node] = opened[0]
        elif isinstance(node.target, HigherOrderOperator):
            cuts[node] = _lost(node)
        elif is_checkpoint(node):
            cuts[node] = Decline(reasons.CHECKPOINT, "its activations are computed again")
    return cuts


def _is_of_functorch(node: fx.Node) -> bool:
    module = getattr(node.target, "__module__", None) or ""
    return node.op == "call_function" and "functorch" in module and not means_nothing(node)


def is_worth_a_line(node: fx.Node, parts: Split) -> bool:
    """Whether a user should hear of this cut. A state is named once, by the call that sets it: not by what runs under
    it, nor by what only makes its arguments."""
    cut = parts.cuts[node]
    if cut.reason != reasons.STATE or isinstance(node.target, HigherOrderOperator):
        return not detaches(node)
    makes_arguments = bool(node.users) and not _is(node, _OPENING) and all(map(sets_state, node.users))
    return cut.detail == _lost(node).detail and not _is(node, _CLOSING) and not makes_arguments


def _lost(node: fx.Node) -> Decline:
    return Decline(reasons.STATE, f"a trace does not keep {name_of(node.target)}")


def _is(node: fx.Node, words: tuple[str, ...]) -> bool:
    return not {*words}.isdisjoint(name_of(node.target).split("_"))


class _Skipping(Rehearsal):
    """A rehearsal that believes Dynamo where it cannot run a node."""

    def __init__(self, gm: fx.GraphModule, skipped: dict):
        super().__init__(gm)
        self._skipped = {node for node, cut in skipped.items() if cut.reason != reasons.MUTATION}

    def run_node(self, node):
        example = node.meta.get("example_value")
        depends_on_data = "unbacked_bindings" in node.meta or isinstance(example, (torch.SymFloat, torch.SymBool))
        if node.op.startswith("call") and (node in self._skipped or depends_on_data):
            return tree_map(_own_or_none, example)
        return super().run_node(node)

    def refuse(self, node, detail):
        pass


def _own_or_none(x: object) -> object:
    """Not what a transform of torch.func has wrapped."""
    return None if isinstance(x, torch.Tensor) and type(x) is not FakeTensor else own(x)


class _Seen(_Skipping):
    """What the nodes return and write into."""

    def __init__(self, gm: fx.GraphModule, cuts: dict[fx.Node, Decline]):
        super().__init__(gm, cuts)
        self._cuts = cuts
        self.home: dict[int, fx.Node] = {}  # the first node that returns a tensor of this memory
        self.memories: dict[fx.Node, list[int]] = {}
        self.writes: dict[fx.Node, list[int]] = {}
        self.same: dict[fx.Node, fx.Node] = {}
        self._first: dict[int, fx.Node] = {}
        self._kept: list = []  # so that no memory is another's later

    def refuse(self, node, detail):
        if not is_marker(node):
            self._cuts.setdefault(node, Decline(reasons.MUTATION, detail))

    def wrote(self, node, target):
        self.writes.setdefault(node, []).append(memory_of(target))

    def _check_views(self, node, results):
        pass  # markers are cut at, and a view is what it is in its piece

    def run_node(self, node):
        result = super().run_node(node)
        if node.op == "output":
            return result
        if isinstance(result, torch.Tensor):
            self.same[node] = self._first.setdefault(id(result), node)
        self.memories[node] = [memory_of(x) for x in tensors_in(result)]
        for memory in self.memories[node]:
            self.home.setdefault(memory, node)
        self._kept += [(x, x.untyped_storage()) for x in tensors_in(result)]
        return result


class _Snapshots(_Skipping):
    """The values that a piece reads, and the state it runs under, as they are where it begins."""

    def __init__(self, gm: fx.GraphModule, cuts: dict[fx.Node, Decline], pieces: list[Piece], same: dict):
        super().__init__(gm, cuts)
        self._gm, self._same = gm, same
        self.garbage_collect_values = False  # what stands for an equal later tensor is read after its own last use
        self._pieces = {piece.nodes[0]: piece for piece in pieces if not piece.left}

    def run_node(self, node):
        if piece := self._pieces.get(node):
            piece.state = State.current()
            piece.graph = self._graph(piece)
        return super().run_node(node)

    def _graph(self, piece: Piece) -> fx.GraphModule:
        graph = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}
        for node in piece.inputs:
            env[node] = graph.placeholder(node.name)
            env[node].meta = {**node.meta, "example_value": own(self.env[node]), CHANGES: node in piece.changed}
        _copy_nodes(graph, piece.nodes, env, self._same)
        graph.output(tuple(env[node] for node in piece.outputs))
        return fx.GraphModule(self._gm, graph)


def _copy_nodes(graph: fx.Graph, nodes: list[fx.Node], env: dict[fx.Node, fx.Node], same: dict) -> None:
    """Append the nodes, with the attributes that they read."""
    for node in nodes:
        for source in node.all_input_nodes:
            if source.op == "get_attr" and source not in env:
                env[source] = graph.node_copy(source)
        env[node] = graph.node_copy(node, lambda n: env[n] if n in env else env[same[n]])


def _pieces(graph: fx.Graph, cuts: dict[fx.Node, Decline]) -> list[Piece]:
    """Parts of several results go with the operator that returns them."""
    pieces: list[Piece] = []
    place: dict[fx.Node, Piece] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        source = node.args[0] if node.target is operator.getitem else None
        if isinstance(source, fx.Node) and source in place and _is_several(source):
            piece = place[source]
        else:
            left = node in cuts or is_marker(node)
            if not pieces or pieces[-1].left != left:
                pieces.append(Piece(left=left))
            piece = pieces[-1]
        piece.nodes.append(node)
        place[node] = piece
    for piece in pieces:
        piece.left = piece.left or not any(tensors_in(node.meta.get("example_value")) for node in piece.nodes)
    return pieces


def _is_several(node: fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), (tuple, list))


def _connect(graph: fx.Graph, pieces: list[Piece], seen: _Seen) -> None:
    """What each piece reads and returns. Sizes come first, and with a tensor come the symbols of its sizes."""
    place = {node: piece for piece in pieces for node in piece.nodes}
    symbols = {
        node.meta["example_value"].node.expr: node
        for node in graph.nodes
        if node.op == "placeholder" and isinstance(node.meta["example_value"], torch.SymInt)
    }
    wanted: dict[Piece, dict[fx.Node, None]] = {piece: {} for piece in pieces}
    output = next(node for node in graph.nodes if node.op == "output")
    for piece in (*pieces, Piece([output])):
        inputs: dict[fx.Node, None] = {}
        for node in piece.nodes:
            for source in node.all_input_nodes:
                if source.op == "get_attr" or place.get(source) is piece:
                    continue
                source = seen.same.get(source, source)  # what is the very tensor of an earlier one is that
                inputs[source] = None
                if source in place:
                    wanted[place[source]][source] = None
            for size in () if piece.left else _sizes_of(node):
                inputs |= {symbols[s]: None for s in sorted(size.node.expr.free_symbols, key=str) if s in symbols}
        piece.inputs = sorted(inputs, key=lambda node: isinstance(node.meta.get("example_value"), torch.Tensor))
    for piece in pieces:
        piece.outputs = list(wanted[piece])
        if not piece.left and not all(isinstance(n.meta.get("example_value"), _CROSSES) for n in piece.outputs):
            raise Decline(reasons.STATE, "the graph cannot be cut: a part returns what is no tensor")


def _sizes_of(node: fx.Node) -> list[torch.SymInt]:
    values = [node, *node.all_input_nodes]
    tensors = [x for value in values for x in tensors_in(value.meta.get("example_value"))]
    return [size for x in tensors for size in (*x.shape, *x.stride()) if isinstance(size, torch.SymInt)]


def _writes_of_others(piece: Piece, seen: _Seen, graph: fx.Graph) -> list[fx.Node]:
    """The nodes of a piece that write into memory which is not its own."""
    mine = set(piece.nodes)
    later = {m for node in graph.nodes if node not in mine for m in seen.writes.get(node, ())}
    found = []
    for node in piece.nodes:
        for memory in seen.writes.get(node, ()):
            home = seen.home.get(memory, node)
            inside = {n for n in piece.inputs if memory in seen.memories.get(n, ())}
            outside = {n for n in piece.outputs if memory in seen.memories[n]}
            if home in mine:
                # A trace makes two values of a tensor and a view of it that were written: for a later write, one.
                allowed = memory not in later or len(outside) < 2
            else:
                allowed = home.op == "placeholder" and is_buffer(home) and inside <= {home} and outside <= {home}
            if not allowed:
                found.append(node)
                break
    return found


def _mark_changes(pieces: list[Piece], seen: _Seen) -> None:
    """Say of the inputs and outputs of each piece which of them are written into behind it: what its backward needs of
    them it has to keep."""
    written: set[int] = set()
    for piece in reversed(pieces):
        for node in (*piece.inputs, *piece.outputs):
            if not written.isdisjoint(seen.memories.get(node, ())):
                piece.changed.add(node)
        written |= {memory for node in piece.nodes for memory in seen.writes.get(node, ())}


def join(gm: fx.GraphModule, parts: Split, callables: dict[Piece, Callable]) -> fx.GraphModule:
    """The graph with one call for each piece that is not left to PyTorch."""
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            env[node] = graph.node_copy(node)
    for piece in parts.pieces:
        if piece.left:
            _copy_nodes(graph, piece.nodes, env, parts.same)
            continue
        call = graph.call_function(_as_function(callables[piece]), tuple(env[node] for node in piece.inputs))
        for position, node in enumerate(piece.outputs):
            env[node] = graph.call_function(operator.getitem, (call, position))
            if node in piece.changed and _is_alone(node, piece, parts):
                env[node] = graph.call_function(_kept_apart, (env[node],))
    output = next(node for node in gm.graph.nodes if node.op == "output")
    _copy_nodes(graph, [output], env, parts.same)
    graph.lint()
    return fx.GraphModule(gm, graph)


def _as_function(run: Callable) -> Callable:
    """What fx can name in the text of a graph."""

    def piece(*args):
        return run(*args)

    return piece


def _is_alone(node: fx.Node, piece: Piece, parts: Split) -> bool:
    """Whether the piece made the memory of what it returns here, and returns no other tensor in it."""
    memories = parts.memories[node]
    others = [n for n in (*piece.inputs, *piece.outputs) if n is not node]
    return all(set(memories).isdisjoint(parts.memories.get(n, ())) for n in others)


def _kept_apart(x: torch.Tensor) -> torch.Tensor:
    """A copy where a region's backward may hold the tensor itself, which eager's would not."""
    return x.clone() if torch.is_grad_enabled() and x.requires_grad else x
