"""The Dynamo backend: one captured graph through normalize -> partition -> import -> assemble."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from .. import devices, reasons
from ..errors import Decline, UnsupportedError, describe
from ..log import logger
from ..stats import count, count_fallback
from . import autocast
from .assemble import Blamed, Region, assemble, import_regions
from .checkpoints import checkpoints_in, run_as_in_eager
from .importer import source_of
from .normalize import Normalized, normalize
from .outline import Outline, outline_as_it_was, outline_of, outline_of_pieces
from .partition import partition
from .split import Piece, Split, is_worth_a_line, join, split
from .untraced import name_of


@dataclass(frozen=True)
class Fallback:
    """Something that stayed PyTorch's: operator, shapes, dtype, reason (a stable name), the user's line."""

    operator: str
    shapes: str
    dtype: str
    reason: str
    source: str
    detail: str = ""

    def __str__(self) -> str:
        return describe(self.reason, self.operator, self.shapes, self.dtype, self.source, self.detail)


@dataclass
class Captured:
    """What became of one graph of Dynamo's."""

    regions: list[Region] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    wanted: list[list[bool]] = field(default_factory=list)  # for each region, which inputs' gradients a call prepares
    module: fx.GraphModule | None = None  # the graph with its calls of regions, if it is in one piece
    outline: Outline | None = None  # while explaining


class Stop(BaseException):
    """Internal to `explain`: the graph is known, so it need not run."""


class Session:
    """What one optimised model remembers over its captures: its options, and what it has said already."""

    def __init__(
        self,
        name: str = "graph",
        *,
        strict: bool = False,
        tune: bool | None = None,
        second_derivatives: bool = False,
        record: bool = False,
    ):
        self.name, self.strict, self.tune, self.record = name, strict, tune, record
        self.second_derivatives = second_derivatives
        self.only_gains = not strict  # who asks for `strict` wants everything fused, faster or not
        self.captured: list[Captured] = []
        self.failures: list[Fallback] = []  # while explaining: frames that Dynamo could not trace
        self.breaks: list[Fallback] = []  # what the frame being captured has been broken for
        self.complete = False  # while explaining: the entry frame was one graph
        self.run = False  # while explaining: graphs run, so that those behind a graph break are seen
        self.settings: dict = {}  # of Dynamo, beside those of every capture
        self.guards: list | None = None  # where a list is: what Dynamo's captures depend on
        self.restored = False  # the model is plain again
        self.entry = self.frame = None  # code objects: the model's entry function, the frame being captured
        self._said: set = set()
        self._count = 0

    def next_name(self) -> str:
        """A name for the regions of the next graph."""
        self._count += 1
        return f"{self.name}_{self._count}"

    def instead_of(self, gm: fx.GraphModule, fused: Callable) -> Callable:
        """While explaining: nothing is run once the entry frame has been captured whole."""
        reason = getattr(gm, "compile_subgraph_reason", None)
        self.complete = self.frame is self.entry and reason is not None and not reason.graph_break

        def stop(*args):
            raise Stop

        return stop if self.complete or not self.run else gm.forward

    def report(self, fallback: Fallback) -> None:
        """One log line for each distinct thing; under `strict`, an exception."""
        if self.strict:
            raise UnsupportedError(
                fallback.reason, operator=fallback.operator, shapes=fallback.shapes, dtype=fallback.dtype,
                source=fallback.source, detail=fallback.detail,
            )  # fmt: skip
        self.say(str(fallback), (fallback.operator, fallback.dtype, fallback.reason, fallback.source))

    def say(self, line: str, about: object = None) -> None:
        """Log the line, once for each thing it is about (the line itself, if nothing else)."""
        about = about or line
        if about not in self._said and not self.record:
            self._said.add(about)
            logger.warning("%s: %s", self.name, line)


def compile_graph(gm: fx.GraphModule, session: Session) -> Callable:
    """The callable that replaces Dynamo's graph."""
    captured = Captured()
    if session.record:
        session.captured.append(captured)
    else:
        count("captures")
    try:
        fused = _fused(gm, session, captured)
        return session.instead_of(gm, fused) if session.record else fused
    except UnsupportedError:
        raise
    except Exception as error:
        reason = _left(gm, error, "", session, captured)
        return session.instead_of(gm, gm.forward) if session.record else _as_it_was(gm, reason)


def _left(gm: fx.GraphModule, error: Exception, what: str, session: Session, captured: Captured) -> str:
    """Say that the graph runs as Dynamo gave it, and why: a fault of ours must not become the user's."""
    if isinstance(error, Decline):
        fallback = Fallback(what, "", "", error.reason, "", error.detail)
    else:
        fallback = Fallback(what, "", "", reasons.INTERNAL, "", f"{type(error).__name__}: {error}")
        logger.debug("internal error", exc_info=error)
    captured.fallbacks.append(fallback)
    session.report(fallback)
    if session.record:
        captured.outline = outline_as_it_was(gm, fallback.reason, fallback.detail)
    return fallback.reason


def _fused(gm: fx.GraphModule, session: Session, captured: Captured) -> Callable:
    _check_devices(gm)
    checkpoints = checkpoints_in(gm)
    run_as_in_eager(checkpoints)
    try:
        if checkpoints:
            raise Decline(reasons.CHECKPOINT, "the graph checkpoints activations")
        return _fused_whole(gm, normalize(gm), session, captured)
    except Decline as error:
        parts = _split(gm)
        if parts is None:
            raise error
        return _fused_in_pieces(gm, parts, session, captured)


def _split(gm: fx.GraphModule) -> Split | None:
    try:
        return split(gm)
    except Exception as error:  # the graph runs as Dynamo gave it, for the reason that it was to be cut for
        logger.debug("not cut into pieces: %s: %s", type(error).__name__, error)
        return None


def _fused_in_pieces(gm: fx.GraphModule, parts: Split, session: Session, captured: Captured) -> Callable:
    """PyTorch runs the nodes that a trace would lose; each piece between them is a graph by itself."""
    for node, cut in parts.cuts.items():
        fallback = describe_dynamo_node(node, cut)
        if is_worth_a_line(node, parts) and fallback not in captured.fallbacks:
            captured.fallbacks.append(fallback)
            session.report(fallback)
    callables: dict[Piece, Callable] = {}
    outlines: dict[Piece, Outline] = {}
    for piece in parts.pieces:
        if piece.left:
            continue
        part = Captured()
        with piece.state.in_force():
            try:
                fused = _fused_whole(piece.graph, normalize(piece.graph), session, part)
                callables[piece] = fused if part.regions else piece.graph.forward
            except UnsupportedError:
                raise
            except Exception as error:
                _left(piece.graph, error, "a part of the graph", session, part)
                callables[piece] = piece.graph.forward
        captured.regions += part.regions
        captured.wanted += part.wanted
        captured.fallbacks += part.fallbacks
        if part.outline:
            outlines[piece] = part.outline
    if session.record:
        captured.outline = outline_of_pieces(gm, parts, outlines)
    module = join(gm, parts, callables)
    if captured.regions:
        return module.forward
    return _as_it_was(gm, captured.fallbacks[0].reason) if captured.fallbacks else gm.forward


def _fused_whole(gm: fx.GraphModule, normal: Normalized, session: Session, captured: Captured) -> Callable:
    name = session.next_name()
    refused_before: dict[fx.Node, Decline] = {}
    while True:  # ends: each round refuses one node more
        plan = partition(normal.graph, refused_before, session.only_gains)
        try:
            regions = import_regions(
                normal,
                plan,
                name,
                say=session.say,
                tune=session.tune,
                second_derivatives=session.second_derivatives,
            )
            break
        except Blamed as blamed:
            refused_before[blamed.node] = blamed.error
    for refused in plan.refused:
        if not refused.is_news:
            continue
        fallback = describe_node(refused.node, refused.reason, refused.detail)
        captured.fallbacks.append(fallback)
        session.report(fallback)
    if session.record:
        captured.outline = outline_of(gm, normal, plan, regions)
    if not regions:
        return _as_it_was(gm, captured.fallbacks[0].reason) if captured.fallbacks else gm.forward
    captured.regions = regions
    captured.wanted = _wanted_gradients(gm, normal.graph, regions)
    if not session.record:
        count("regions", len(regions))
        for region, wanted in zip(regions, captured.wanted, strict=True):
            region.compiled.prepare(wanted)  # while Dynamo builds its guards

    def on_unavailable(region: Region, reason: str, detail: str) -> None:
        session.report(Fallback(f"region {region.name}", "", "", reason, "", detail))

    contest = session.only_gains and not session.record
    captured.module = assemble(normal, plan, regions, on_unavailable, contest=contest)
    fused, state = captured.module.forward, autocast.current()
    return _for_autocast(state, fused, _as_it_was(gm, reasons.STATE)) if state.enabled else fused


def _check_devices(gm: fx.GraphModule) -> None:
    """Without what a GPU needs, one line says so for the whole graph, and not one for each operator."""
    for node in gm.graph.nodes:
        example = node.meta.get("example_value")
        if isinstance(example, torch.Tensor) and example.device.type == "cuda":
            devices.check(example.device)


def _wanted_gradients(gm: fx.GraphModule, graph: fx.Graph, regions: list[Region]) -> list[list[bool]]:
    """What autograd will ask of each region: inputs that require a gradient, where gradients are enabled."""
    examples = iter([node.meta["example_value"] for node in gm.graph.nodes if node.op == "placeholder"])
    enabled = torch.is_grad_enabled()
    requires: dict[fx.Node, bool] = {}
    tracked: dict[fx.Node, bool] = {}  # whether a node runs with gradients enabled
    for node in graph.nodes:
        if node.target is torch._C._set_grad_enabled:
            enabled = bool(node.args[0])
        tracked[node] = enabled
        if node.op == "placeholder":
            requires[node] = bool(getattr(next(examples), "requires_grad", False))
            continue
        value = node.meta.get("val")
        values = value if isinstance(value, (tuple, list)) else [value]
        floating = any(isinstance(v, torch.Tensor) and v.is_floating_point() for v in values)
        detached = node.target is torch.ops.aten.detach.default
        sources = any(requires.get(source, False) for source in node.all_input_nodes)
        requires[node] = enabled and floating and not detached and sources
    return [[tracked[r.members[0]] and requires[node] for node in r.imported.inputs] for r in regions]


def _for_autocast(state: autocast.State, fused: Callable, unfused: Callable) -> Callable:
    """Older versions of Dynamo do not guard the dtype of autocast, which is in the casts of the regions."""

    def checked(*args):
        return (fused if autocast.current() == state else unfused)(*args)

    return checked


def _as_it_was(gm: fx.GraphModule, reason: str) -> Callable:
    forward = gm.forward

    def unfused(*args):
        count_fallback(reason)
        return forward(*args)

    return unfused


def describe_node(node: fx.Node, reason: str, detail: str) -> Fallback:
    """The node as the user knows it."""
    return _described(node, str(node.target), "val", reason, detail)


def describe_dynamo_node(node: fx.Node, cut: Decline) -> Fallback:
    """The same of a node of Dynamo's graph."""
    found = _described(node, name_of(node.target), "example_value", cut.reason, cut.detail)
    return replace(found, shapes="") if not found.dtype else found


def _described(node: fx.Node, name: str, value: str, reason: str, detail: str) -> Fallback:
    values = [source.meta.get(value) for source in node.all_input_nodes]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    shapes = ", ".join("x".join(str(size) for size in t.shape) or "()" for t in tensors)
    dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
    return Fallback(name, f"[{shapes}]", dtype, reason, source_of(node), detail)


def fusewright_backend(gm: fx.GraphModule, example_inputs: list, *, options: dict | None = None) -> Callable:
    """Dynamo's way in: `torch.compile(model, backend="fusewright", options={"strict": ..., "tune": ...})`."""
    options = dict(options or {})
    session = Session(
        "graph",
        strict=bool(options.pop("strict", False)),
        tune=options.pop("tune", None),
        second_derivatives=bool(options.pop("second_derivatives", False)),
    )
    if options:
        known = "strict, tune, second_derivatives"
        raise TypeError(f"backend fusewright: unknown options {sorted(options)}; known: {known}")
    return compile_graph(gm, session)
