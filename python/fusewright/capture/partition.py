"""A normalised graph -> its fused regions: maximal, convex, and never across a marker.

Only nodes that compute are members. Views and identities (PASSIVE) belong to nobody: a region repeats the ones it needs
for itself, PyTorch runs them for everybody else, and so whatever aliases in eager aliases here.

Regions grow along data dependences only. Joining independent chains would save a call, but would also tie their
backward passes together, and eager lets a user run those apart.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field

import torch
from torch import fx
from torch.utils import _pytree as pytree

from .. import _core, reasons
from ..errors import Decline
from .importer import device_of, numel_hint, try_alone
from .normalize import autocast_states, is_marker
from .operators import CAST, COMPUTE, FREE_VIEWS, PASSIVE, PRODUCTS, TABLE
from .sizes import size_hint

# Operations: a smaller product alone takes the library less time than two calls.
LEAST_PRODUCT = 1 << 30
# Bytes: one processor moves fewer in less time than one call of an operator takes (5 us).
LEAST_TRAFFIC = 1 << 16


@dataclass
class Refused:
    """A node that stays PyTorch's, and why."""

    node: fx.Node
    reason: str
    detail: str
    is_news: bool = True  # whether the log says it


@dataclass
class Partition:
    """Regions as lists of members in topological order, and what stayed outside."""

    regions: list[list[fx.Node]]
    refused: list[Refused]
    passive: set[fx.Node]
    states: dict[fx.Node, object]  # the autocast state of each node
    segments: dict[fx.Node, int]  # number of markers before each node


@dataclass(eq=False)
class _Group:
    """A node, or a region in the making, with the groups it reads from (through views, which anybody can repeat)."""

    segment: int  # number of markers before it
    device: torch.device | None
    first: int  # positions of its first and last node
    last: int
    sources: set[_Group] = field(default_factory=set)
    members: list[fx.Node] = field(default_factory=list)  # empty: not fused
    joined: _Group | None = None  # where it went when it was merged

    def root(self) -> _Group:
        group = self
        while group.joined is not None:
            group = group.joined
        return group


def partition(graph: fx.Graph, refused_before: dict[fx.Node, Decline], only_gains: bool = True) -> Partition:
    """Find the regions. `refused_before`: nodes that a later stage refused in an earlier attempt. `only_gains`: leave
    a region to PyTorch where fusing it saves nothing."""
    states = autocast_states(graph)
    refused: list[Refused] = []
    passive: set[fx.Node] = set()
    groups: dict[fx.Node, _Group] = {}
    segments: dict[fx.Node, int] = {}
    segment = 0
    for position, node in enumerate(graph.nodes):
        segment += is_marker(node)
        segments[node] = segment
        if node.target is operator.getitem and (producer := groups[node.args[0]].root()).members:
            groups[node] = producer
            producer.members.append(node)
            producer.last = position
            continue
        if node.target is operator.getitem and node.args[0] in passive:
            role = PASSIVE
        else:
            role = _role(node, states[node], refused_before, refused)
        if role == PASSIVE:
            passive.add(node)
        bases = _bases(node, passive, segments)
        groups[node] = group = _Group(
            segment, device_of(node), position, position, {groups[base].root() for base in bases}
        )
        if role not in (None, PASSIVE):
            group.members.append(node)
            for base in bases:
                _merge(groups[base].root(), group.root())
    order = {node: position for position, node in enumerate(graph.nodes)}
    found = dict.fromkeys(group.root() for group in groups.values())
    regions = []
    for group in found:
        if not group.members:
            continue
        if reason := _not_worth_a_call(group.members, only_gains):
            refused += [Refused(node, reason, "", is_news=False) for node in group.members]
        else:
            regions.append(sorted(group.members, key=order.__getitem__))
    return Partition(regions, refused, passive, states, segments)


def _bases(node: fx.Node, passive: set[fx.Node], segments: dict[fx.Node, int]) -> list[fx.Node]:
    """What the node reads, looking through views; not through those behind another marker, which may have been made
    under `no_grad`."""
    found: dict[fx.Node, None] = {}
    stack = list(reversed(node.all_input_nodes))
    while stack:
        source = stack.pop()
        if source in passive and segments[source] == segments[node]:
            stack.extend(reversed(source.all_input_nodes))
        else:
            found[source] = None
    return list(found)


def _merge(a: _Group, b: _Group) -> None:
    """Join two groups, unless one is not fused, they are on two devices, a marker lies between them, or something
    outside does."""
    if a is b or not a.members or not b.members or (a.segment, a.device) != (b.segment, b.device):
        return
    if _reads_around(a, b) or _reads_around(b, a):
        return
    b.sources = {source.root() for source in a.sources | b.sources} - {a, b}
    b.members = a.members + b.members
    b.first, b.last = min(a.first, b.first), max(a.last, b.last)
    a.joined = b


def _reads_around(reader: _Group, goal: _Group) -> bool:
    """Whether `reader` depends on `goal` through a third group."""
    stack = [source.root() for source in reader.sources if source.root() is not goal]
    seen = set(stack)
    while stack:
        group = stack.pop()
        for source in (s.root() for s in group.sources):
            if source is goal:
                return True
            if source not in seen and source.last >= goal.first:  # older nodes cannot depend on goal
                seen.add(source)
                stack.append(source)
    return False


def _role(node: fx.Node, state, refused_before: dict, refused: list[Refused]) -> str | None:
    """The node's role in a region, or None if it cannot be in one (reported, if anybody should know)."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None  # inputs, markers, arithmetic on sizes
    row = TABLE.get(node.target)
    try:
        if node in refused_before:
            raise refused_before[node]
        if row is not None and row.role == CAST and _keeps_dtype_and_device(node):
            return PASSIVE
        try_alone(node, [user for user in node.users if user.target is operator.getitem], state)
        return row.role
    except Decline as error:
        refused.append(Refused(node, error.reason, error.detail, _is_news(node, error)))
    except _core.Error as error:
        is_news = row is None or row.role != PASSIVE or _hangs_on_work(node)
        refused.append(Refused(node, reasons.REJECTED, str(error), is_news))
    return None


def _keeps_dtype_and_device(node: fx.Node) -> bool:
    source, result = node.args[0].meta.get("val"), node.meta["val"]
    return isinstance(source, torch.Tensor) and source.dtype is result.dtype and source.device == result.device


def _is_news(node: fx.Node, error: Decline) -> bool:
    """Numbers, sizes, fresh constants, copies to another device and free views of inputs are PyTorch's by nature:
    nobody waits for a report."""
    if error.reason == reasons.DEVICE and node.target in TABLE and TABLE[node.target].role == CAST:
        return False
    if node.target in FREE_VIEWS:
        return _hangs_on_work(node)
    if error.reason != reasons.UNSUPPORTED_OPERATOR:
        return True
    reads_tensor = any(isinstance(source.meta.get("val"), torch.Tensor) for source in node.all_input_nodes)
    return reads_tensor and isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))


def _hangs_on_work(view: fx.Node) -> bool:
    source = view.args[0]
    return source.op == "call_function" and source.target in TABLE and TABLE[source.target].role != PASSIVE


def _not_worth_a_call(members: list[fx.Node], only_gains: bool) -> str | None:
    """Products and casts alone are PyTorch's already, unless our own kernels may compute them; single numbers (a
    counter) cost less than a kernel's launch. One operator by itself saves no call, and so few bytes save no time:
    a region of its own gains nothing. Sizes that may change count as large."""
    operators = [node for node in members if node.target in TABLE]
    if not any(TABLE[node.target].role == COMPUTE for node in operators) and not any(map(_is_product_of_ours, members)):
        return reasons.ALONE
    if not any(_largest(node) > 1 for node in members):
        return reasons.TOO_SMALL
    small = only_gains and len(operators) == 1 and _traffic(members) < LEAST_TRAFFIC
    return reasons.TOO_SMALL if small else None


def _is_product_of_ours(node: fx.Node) -> bool:
    """Whether kernels of our own may compute it (docs/contractions.md)."""
    place = PRODUCTS.get(TABLE[node.target].name) if node.target in TABLE else None
    device, result = device_of(node), node.meta["val"]
    if place is None or device is None or device.type != "cuda" or result.dtype is not torch.float32:
        return False
    operations = 2 * numel_hint(result) * size_hint(node.args[place].meta["val"].shape[-1])
    return operations >= LEAST_PRODUCT and _core.multiplies_float32(device.index or 0)


def _largest(node: fx.Node) -> int:
    values = [other.meta.get("val") for other in (node, *node.all_input_nodes)]
    return max((numel_hint(v) for v in values if isinstance(v, torch.Tensor)), default=0)


def _traffic(members: list[fx.Node]) -> float:
    """Bytes that the members read and write when each runs by itself; infinite if their sizes may change."""
    total = 0
    for node in members:
        values, _ = pytree.tree_flatten([other.meta.get("val") for other in (node, *node.all_input_nodes)])
        for value in values:
            if isinstance(value, torch.SymInt):
                return math.inf
            if isinstance(value, torch.Tensor):
                if not all(isinstance(size, int) for size in value.shape):
                    return math.inf
                total += value.numel() * value.element_size()
    return total
