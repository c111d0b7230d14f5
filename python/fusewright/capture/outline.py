"""The captured graph as `explain` keeps it: operator by operator, for who wants to draw it."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, field

import torch
from torch import fx

from .. import reasons
from .assemble import Region
from .importer import source_of
from .normalize import Normalized
from .operators import FREE_VIEWS, TABLE
from .partition import Partition
from .sizes import size_hint

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
    for node in normal.results:
        if isinstance(node, fx.Node) and node in numbers:
            result.operators[numbers[node]].is_result = True
    for region in regions:
        result.inputs[region.name] = [numbers[node] for node in region.imported.inputs]
        result.outputs[region.name] = [numbers[node] for node in region.imported.outputs]
    return result


def _name_and_kind(node: fx.Node, plan: Partition, given: str) -> tuple[str, str]:
    if node.op == "get_attr":
        return str(node.target), STATE
    if node.op == "placeholder":
        state = "_parameters_" in given or "_buffers_" in given
        short = re.sub(r"^l_(kw)?args_", "input_", given.lower()).removeprefix("l_").strip("_")
        short = re.sub(r"^(target_)?self_|modules_|parameters_|buffers_", "", short)
        return short.replace("_", " "), STATE if state else INPUT
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
