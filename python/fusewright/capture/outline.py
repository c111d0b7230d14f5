"""The captured graph as `explain` keeps it: operator by operator, for who wants to draw it."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from .. import reasons
from .assemble import Region
from .importer import source_of
from .normalize import Normalized
from .operators import FREE_VIEWS, TABLE
from .partition import Partition
from .sizes import size_hint
from .split import Piece, Split
from .untraced import detaches, name_of, tensors_in

INPUT, STATE, VIEW, OPERATOR, NUMBER = "input", "state", "view", "operator", "number"


@dataclass
class Operator:
    """One node: an input of the model, its state (parameters, buffers, constants), a view, a number (arithmetic on
    sizes), or an operator."""

    number: int
    name: str  # as the user knows it
    kind: str
    shape: list[int]  # of the first result
    source: str
    reads: list[int]  # numbers
    region: str = ""  # "" for what stays PyTorch's
    origin: int = -1  # its number in the region: Kernel.origins
    is_result: bool = False  # of the graph
    reason: str = ""  # why an operator stays PyTorch's: one of `reasons`
    detail: str = ""


@dataclass
class Outline:
    """One graph of Dynamo's. What a region reads and returns is in the order of `Tensors.inputs` and `.outputs`."""

    operators: list[Operator] = field(default_factory=list)
    inputs: dict[str, list[int]] = field(default_factory=dict)  # by name of the region
    outputs: dict[str, list[int]] = field(default_factory=dict)
    arguments: list[int] = field(default_factory=list)  # numbers of what the graph is called with
    results: list[int] = field(default_factory=list)  # of what it returns; -1 for what is not in the outline


def outline_of(gm: fx.GraphModule, normal: Normalized, plan: Partition, regions: list[Region]) -> Outline:
    """gm: what Dynamo captured, whose inputs bear the user's names."""
    result = Outline()
    numbers: dict[fx.Node, int] = {}  # several nodes may stand for one operator: elements of its results
    region_of = {node: region for region in regions for node in region.members}
    refused = {r.node: r for r in plan.refused}
    names = iter([node.name for node in gm.graph.nodes if node.op == "placeholder"])
    for node in normal.graph.nodes:
        if node.target is operator.getitem:
            numbers[node] = numbers[node.args[0]]
        elif node.op in ("placeholder", "get_attr") or isinstance(node.target, torch._ops.OpOverload):
            name, kind = _name_and_kind(node, plan, next(names, node.name) if node.op == "placeholder" else "")
            reads = [numbers[source] for source in node.all_input_nodes if source in numbers]
            region = region_of.get(node)
            entry = Operator(
                len(result.operators), name, kind, _shape(node), source_of(node), list(dict.fromkeys(reads))
            )
            if region:
                entry.region, entry.origin = region.name, region.imported.origins.get(node, -1)
            elif kind == OPERATOR:
                made_here = not any(_holds_tensors(source) for source in node.all_input_nodes)
                entry.reason = reasons.MADE_HERE if made_here else refused[node].reason
                entry.detail = "" if made_here else refused[node].detail
            numbers[node] = entry.number
            result.operators.append(entry)
    result.arguments = [numbers[node] for node in normal.graph.nodes if node.op == "placeholder"]
    result.results = [numbers.get(node, -1) for node in normal.results]
    for number in result.results:
        if number >= 0:
            result.operators[number].is_result = True
    for region in regions:
        result.inputs[region.name] = [numbers[node] for node in region.imported.inputs]
        result.outputs[region.name] = [numbers[node] for node in region.imported.outputs]
    return result


def outline_as_it_was(gm: fx.GraphModule, reason: str, detail: str) -> Outline:
    """The outline of a graph that runs as Dynamo gave it."""
    result, numbers = Outline(), {}
    for node in gm.graph.nodes:
        _add_as_it_was(result, numbers, node, reason, detail)
    result.arguments = [numbers[node] for node in gm.graph.nodes if node.op == "placeholder"]
    output = next(node for node in reversed(gm.graph.nodes) if node.op == "output")
    results = output.args[0] if isinstance(output.args[0], (tuple, list)) else output.args
    result.results = [numbers.get(node, -1) if isinstance(node, fx.Node) else -1 for node in results]
    for number in result.results:
        if number >= 0:
            result.operators[number].is_result = True
    return result


def outline_of_pieces(gm: fx.GraphModule, parts: Split, outlines: dict[Piece, Outline]) -> Outline:
    """The outline of a graph in pieces, put together from theirs. Each operator is in it once."""
    result, numbers = Outline(), {}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            _add_as_it_was(result, numbers, node, "", "")
    for piece in parts.pieces:
        if piece in outlines:
            _add_piece(result, numbers, piece, outlines[piece])
            continue
        for node in piece.nodes:
            cut = parts.cuts.get(node)
            if cut is not None and node.op.startswith("call"):
                _add_as_it_was(result, numbers, node, cut.reason, cut.detail)
    output = next(node for node in reversed(gm.graph.nodes) if node.op == "output")
    for node in output.all_input_nodes:
        if node in numbers:
            result.operators[numbers[node]].is_result = True
    return result


def _add_piece(result: Outline, numbers: dict[fx.Node, int], piece: Piece, mine: Outline) -> None:
    arguments = dict(zip(mine.arguments, piece.inputs, strict=False))
    new: dict[int, int] = {}  # its number of an operator -> ours
    for entry in mine.operators:
        given = arguments.get(entry.number)
        if given is not None and given in numbers:
            new[entry.number] = numbers[given]
            continue
        new[entry.number] = len(result.operators)
        reads = list(dict.fromkeys(new[number] for number in entry.reads))
        result.operators.append(replace(entry, number=new[entry.number], reads=reads, is_result=False))
        if given is not None:
            numbers[given] = new[entry.number]
    for name, inside in mine.inputs.items():
        result.inputs[name] = [new[number] for number in inside]
    for name, inside in mine.outputs.items():
        result.outputs[name] = [new[number] for number in inside]
    for node, number in zip(piece.outputs, mine.results, strict=True):
        if number >= 0:
            numbers[node] = new[number]


def _add_as_it_was(result: Outline, numbers: dict[fx.Node, int], node: fx.Node, reason: str, detail: str) -> None:
    """Append a node of Dynamo's graph, if it has to do with tensors."""
    value = node.meta.get("example_value")
    reads = [numbers[source] for source in node.all_input_nodes if source in numbers]
    if node.target is operator.getitem and isinstance(node.args[0].meta.get("example_value"), (tuple, list)):
        if reads:
            numbers[node] = reads[0]
        return
    if node.op == "output" or (node.op != "placeholder" and not (reads and (tensors_in(value) or value is None))):
        return
    given = node.op == "placeholder"
    name, kind = _given_name(node.name) if given else (name_of(node.target), VIEW if detaches(node) else OPERATOR)
    shape = [size_hint(size) for size in value.shape] if isinstance(value, torch.Tensor) else []
    numbers[node] = len(result.operators)
    reads = list(dict.fromkeys(reads))
    result.operators.append(
        Operator(numbers[node], name, kind, shape, source_of(node), reads, reason=reason, detail=detail)
    )


def _given_name(given: str) -> tuple[str, str]:
    """The user's name of what Dynamo found, and what it is."""
    state = "_parameters_" in given or "_buffers_" in given
    short = re.sub(r"^l_(kw)?args_", "input_", given.lower()).removeprefix("l_").strip("_")
    short = re.sub(r"^(target_)?self_|modules_|parameters_|buffers_", "", short)
    return short.replace("_", " "), STATE if state else INPUT


def _name_and_kind(node: fx.Node, plan: Partition, given: str) -> tuple[str, str]:
    if node.op == "get_attr":
        return str(node.target), STATE
    if node.op == "placeholder":
        return _given_name(given)
    row = TABLE.get(node.target)
    name = row.name if row else node.target._schema.name.split("::")[1]
    if node in plan.passive or node.target in FREE_VIEWS:
        return name, VIEW
    return name, OPERATOR if _holds_tensors(node) else NUMBER


def _holds_tensors(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return any(isinstance(v, torch.Tensor) for v in (value if isinstance(value, (tuple, list)) else [value]))


def _shape(node: fx.Node) -> list[int]:
    value = node.meta.get("val")
    first = value[0] if isinstance(value, (tuple, list)) and value else value
    return [size_hint(size) for size in first.shape] if isinstance(first, torch.Tensor) else []
