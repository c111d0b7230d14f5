"""Regions back into a graph: each becomes one call, everything else stays the node it was."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import fx
from torch._C import _len_torch_dispatch_stack
from torch._C._functorch import is_functorch_wrapped_tensor

from .. import _core, devices, reasons
from ..errors import Decline
from ..stats import count_fallback
from .importer import Imported, Indices, RegionImporter
from .normalize import Normalized, is_marker, is_statistic
from .operators import TABLE
from .partition import Partition
from .plain import Plain, copy_node
from .sizes import names_for

_aten = torch.ops.aten


class Region(NamedTuple):
    """One fused region of a captured graph."""

    name: str
    imported: Imported
    compiled: object  # _core.Region
    members: list[fx.Node]
    plain: Plain


class Blamed(Exception):
    """Internal: this node cannot be in the region that was planned for it."""

    def __init__(self, node: fx.Node, error: Decline):
        super().__init__(str(error))
        self.node, self.error = node, error


def import_regions(
    normal: Normalized,
    plan: Partition,
    name: str,
    *,
    say: Callable,
    tune: bool | None = None,
    second_derivatives: bool = False,
) -> list[Region]:
    """Hand every region to the core. Raises Blamed, and the caller plans again without that node."""
    _give_counters(normal, plan)
    importers = [_import_members(members, plan) for members in plan.regions]
    needed = _needed_outside(normal, plan, importers)
    regions = []
    for number, (members, importer) in enumerate(zip(plan.regions, importers, strict=True)):
        updates = _own_updates(normal, plan, members, importer)
        outputs = [node for node in members if node in needed and node not in updates.values()]
        for node in importer.inputs:
            if _viewed(node, plan) in normal.changed:
                importer.changes(node)
        try:
            imported = importer.finish(outputs, updates)
            region_name = f"{name}_{number}"
            plain = Plain(region_name, imported, members, normal, plan, say)
            owned = [_viewed(node, plan) in normal.owned for node in imported.inputs]
            gpu = devices.gpu_index(imported.device)
            compiled = _core.Region(imported.graph, region_name, gpu, tune, plain, second_derivatives, owned)
            regions.append(Region(region_name, imported, compiled, members, plain))
        except Decline as error:
            raise Blamed(importer.first_with_unbound_size(members), error) from None
        except _core.Error as error:
            raise Blamed(members[-1], Decline(reasons.REJECTED, str(error))) from None
    return regions


def _give_counters(normal: Normalized, plan: Partition) -> None:
    """Counters of batches go to a region that updates running statistics: its kernel counts on the way, and a launch
    (in eager they have one each) is saved."""
    for buffer, value in normal.updates.items():
        if buffer.meta["val"].dtype is not torch.int64 or not _counts(buffer, value) or len(buffer.users) > 1:
            continue
        for members in plan.regions:
            statistics = [node for node in members if is_statistic(node) and node in normal.updates.values()]
            if statistics and statistics[0].meta["val"].device == buffer.meta["val"].device:
                members.append(value)
                break


def _import_members(members: list[fx.Node], plan: Partition) -> RegionImporter:
    nodes, inputs = _with_views(members, plan)
    importer = RegionImporter(plan.states.__getitem__, names_for([node.meta["val"] for node in inputs]))
    for node in nodes:
        try:
            importer.add(node)
        except Decline as error:
            raise Blamed(node, error) from None
        except _core.Error as error:
            raise Blamed(node, Decline(reasons.REJECTED, str(error))) from None
    return importer


def _with_views(members: list[fx.Node], plan: Partition) -> tuple[list[fx.Node], list[fx.Node]]:
    """The members together with the views that the region repeats: those that hang on a member, and expansions (whose
    gradient is a sum worth fusing), none from across a marker. And the tensors that it reads from outside."""
    inside: dict[fx.Node, None] = {}
    inputs: dict[fx.Node, None] = {}

    def take(node: fx.Node) -> bool:
        if node in inside or node in membership:
            return True
        if node not in plan.passive or plan.segments[node] != segment:
            return False
        if not (take(node.args[0]) or (node.target in TABLE and TABLE[node.target].name == "expand")):
            return False
        if node.args[0] not in inside and node.args[0] not in membership:
            inputs[node.args[0]] = None
        inside[node] = None
        return True

    membership, segment = set(members), plan.segments[members[0]]
    for node in members:
        for source in node.all_input_nodes:
            if not take(source) and isinstance(source.meta.get("val"), torch.Tensor):
                inputs[source] = None
        inside[node] = None
    return list(inside), list(inputs)


def _own_updates(
    normal: Normalized, plan: Partition, members: list[fx.Node], importer: RegionImporter
) -> dict[fx.Node, fx.Node]:
    """The updates of buffers that the region may do itself: it alone reads the buffer, and nobody the new value but
    through the buffer."""
    inside = set(members)
    found: dict[fx.Node, fx.Node] = {}
    for buffer, value in normal.updates.items():
        if value not in inside or buffer not in importer.inputs or value in found.values():
            continue
        same_type = buffer.meta["val"].dtype is value.meta["val"].dtype
        if same_type and _readers(buffer, plan) <= inside and _readers(value, plan) <= inside:
            found[buffer] = value
    return found


def _viewed(node: fx.Node, plan: Partition) -> fx.Node:
    """What the node is a view of, if it is one."""
    while node in plan.passive:
        node = node.args[0]
    return node


def _readers(node: fx.Node, plan: Partition) -> set[fx.Node]:
    """Who reads the node or a view of it; the graph's results count only for the view."""
    found: set[fx.Node] = set()
    stack = [user for user in node.users if user.op != "output"]
    while stack:
        reader = stack.pop()
        if reader in plan.passive:
            stack += reader.users
        else:
            found.add(reader)
    return found


def _needed_outside(normal: Normalized, plan: Partition, importers: list[RegionImporter | Imported]) -> set[fx.Node]:
    """Every node whose value something outside its region reads."""
    members = {node for region in plan.regions for node in region}
    stack = [r for r in (*normal.results, *normal.updates.values()) if isinstance(r, fx.Node)]
    for importer in importers:
        stack += [*importer.inputs, *importer.scalars]
    for node in normal.graph.nodes:
        if node.op == "call_function" and node not in members and node not in plan.passive:
            stack += node.all_input_nodes
    needed = set()
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            if node in plan.passive:
                stack += node.all_input_nodes
    return needed


def assemble(
    normal: Normalized, plan: Partition, regions: list[Region], on_unavailable: Callable, contest: bool = False
) -> fx.GraphModule:
    """The graph with its calls of regions. Nodes keep their order; views are run where somebody outside reads them, at
    the latest before the next marker: what they are under `no_grad` is another tensor.

    contest: regions on a GPU compete with PyTorch's own operators.
    """
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    region_of = {node: region for region in regions for node in region.members}
    emitted: set[str] = set()
    counters = _counters(normal, region_of)
    needed = _needed_outside(normal, plan, [region.imported for region in regions])

    def emit(node: fx.Node) -> fx.Node:
        if node in env:
            return env[node]
        if node in region_of:
            emit_region(region_of[node])
        else:
            for source in node.all_input_nodes:
                emit(source)
            env[node] = copy_node(graph, node, env)
        return env[node]

    def emit_region(region: Region) -> None:
        if region.name in emitted:
            return
        emitted.add(region.name)
        tensors = [emit(node) for node in region.imported.inputs]
        scalars = [emit(node) for node in region.imported.scalars]
        call = graph.call_function(_runner(region, on_unavailable, contest), (tensors, scalars))
        imported = region.imported
        for position, node in enumerate(imported.outputs[: len(imported.outputs) - len(imported.updates)]):
            env[node] = graph.call_function(operator.getitem, (call, position))

    on_demand = plan.passive | counters.keys()  # emitted where somebody reads them, like arithmetic on sizes
    pending: list[Region] = []
    views: list[fx.Node] = []  # of this segment
    for node in normal.graph.nodes:
        if is_marker(node):
            for region in pending:
                emit_region(region)
            for view in views:
                emit(view)
            pending, views = [], []
            emit(node)
        elif node in plan.passive and node in needed:
            views.append(node)
        elif node in region_of:
            pending.append(region_of[node])
        elif node.op == "placeholder" or (isinstance(node.target, torch._ops.OpOverload) and node not in on_demand):
            emit(node)
    results = [emit(r) if isinstance(r, fx.Node) else r for r in normal.results]
    done = {region.imported.inputs[i]: region for region in regions for _, i in region.imported.updates}
    for region in done.values():
        emit_region(region)
    new_values = {p: emit(v) for p, v in normal.updates.items() if v not in counters and p not in done}
    for placeholder, value in normal.updates.items():
        if placeholder in done:
            continue
        if value in counters:
            graph.call_function(_aten.add_.Tensor, (env[placeholder], counters[value]))
            continue
        source = new_values[placeholder]
        if is_statistic(value) and value not in region_of:
            source = graph.call_function(_aten.detach.default, (source,))
        graph.call_function(_aten.copy_.default, (env[placeholder], source))
    graph.output(tuple(results))
    graph.eliminate_dead_code(lambda node: node.is_impure() or is_marker(node) or _writes(node))
    graph.lint()
    return fx.GraphModule(normal.owner, graph)


def _writes(node: fx.Node) -> bool:
    return node.target in (_aten.add_.Tensor, _aten.copy_.default) or getattr(node.target, "updates", False)


def _counters(normal: Normalized, region_of: dict) -> dict[fx.Node, int]:
    """Updates of the form `buffer = buffer + constant` (num_batches_tracked): done in place, as eager does."""
    return {
        value: value.args[1]
        for placeholder, value in normal.updates.items()
        if value not in region_of and _counts(placeholder, value)
    }


def _counts(buffer: fx.Node, value: fx.Node) -> bool:
    plain = value.op == "call_function" and value.target is _aten.add.Tensor and not value.kwargs
    if not plain or value.args[0] is not buffer or not isinstance(value.args[1], int):
        return False
    # Nothing may read the buffer after the update: the update comes last.
    return all(user.op == "output" for user in value.users)


def _runner(region: Region, on_unavailable: Callable, contest: bool) -> Callable:
    """The function that the graph calls: the core's, or the region's own nodes where the core says that it cannot, or
    that they are faster."""
    handle, keep_alive = region.compiled.handle, region.compiled
    given_up = None  # the reason
    plain, updates = region.plain, region.imported.updates

    def eager(tensors, scalars):
        results = plain.whole(*tensors, *scalars)
        for output, buffer in updates:
            value = results[output]
            tensors[buffer].copy_(value.detach() if is_statistic(region.imported.outputs[output]) else value)
        return results[: len(results) - len(updates)]

    def as_pytorch(tensors, scalars, reason):
        count_fallback(reason)
        return eager(tensors, scalars)

    run_region, run_contested = _core.run_region, _core.run_contested
    numbers_on_cpu = any(isinstance(node.meta["val"], torch.Tensor) for node in region.imported.scalars)
    if numbers_on_cpu:
        run_region, run_contested = _with_numbers(run_region), _with_numbers(run_contested)
    run = run_contested if contest and region.compiled.contested else run_region

    def fused(tensors, scalars):
        reason = reasons.SLOWER
        results = run(handle, tensors, scalars)
        if type(results) is list:
            return results
        if results == _core.Verdict.transformed:
            plain.say(f"region {region.name} runs in PyTorch's operators under torch.func and forward-mode derivatives")
            reason = reasons.TRANSFORM
        if results == _core.Verdict.unknown:
            # Buffers are updated once, by whoever wins.
            spared = _with_copies(tensors, updates)
            results = run_region(handle, spared, scalars)
            if not _eager_is_faster(region, run_region, eager, tensors, scalars):
                for _, buffer in updates:
                    tensors[buffer].copy_(spared[buffer])
                return results
            shapes = ", ".join("x".join(map(str, x.shape)) or "()" for x in tensors)
            on_unavailable(region, reasons.SLOWER, f"inputs of about [{shapes}]")
        return as_pytorch(tensors, scalars, reason)

    indices = _indices_of_inputs(region)

    def fused_region(tensors, scalars):
        nonlocal given_up
        if indices and not _all_exist(indices, tensors):
            return as_pytorch(tensors, scalars, reasons.REJECTED)  # which raises eager's exception
        if numbers_on_cpu and _want_gradients(scalars):
            on_unavailable(region, reasons.DEVICE, "a number on the CPU whose gradient is wanted")
            return as_pytorch(tensors, scalars, reasons.DEVICE)
        if given_up is None:
            try:
                return fused(tensors, scalars)
            except _core.SizeError as error:
                # Sizes that eager refuses, in its own words; calls with others are fused as before.
                results = as_pytorch(tensors, scalars, reasons.REJECTED)
                on_unavailable(region, reasons.REJECTED, str(error))  # it did not refuse them
                return results
            except _core.Interrupted as error:  # a second try would update buffers twice
                given_up = reasons.REJECTED
                on_unavailable(region, given_up, str(error))
                raise
            except _core.Unavailable as error:
                given_up = reasons.UNAVAILABLE
                on_unavailable(region, given_up, str(error))
            except _core.Error as error:  # something that import did not foresee: too many dimensions
                given_up = reasons.REJECTED
                on_unavailable(region, given_up, str(error))
        return as_pytorch(tensors, scalars, given_up)

    fused_region.__name__ = fused_region.__qualname__ = region.name
    fused_region.region = keep_alive
    fused_region.updates = bool(updates)
    return fused_region


def _indices_of_inputs(region: Region) -> list[tuple[int, Indices]]:
    """The region's inputs on the CPU that hold indices, or that indices are views of. Kernels give NaN for an index
    that does not exist; eager raises an exception there, and stops the device on a GPU."""
    imported = region.imported
    if imported.device.type != "cpu":
        return []
    places = {node: place for place, node in enumerate(imported.inputs)}
    found = []
    for indices in imported.indices:
        node = indices.node
        while node not in places and node in region.plain.passive:
            node = node.args[0]
        if node in places:
            found.append((places[node], indices))
    return found


def _all_exist(indices: list[tuple[int, Indices]], tensors: list) -> bool:
    """Not asked of tensors that have no elements to look at."""
    for place, (_, size, ignored) in indices:
        x = tensors[place]
        traced = type(x) is not torch.Tensor or is_functorch_wrapped_tensor(x) or _len_torch_dispatch_stack()
        if traced or not x.numel():
            continue
        low, high = torch.aminmax(x)
        if low < 0 or high >= size:
            missing = ((x < 0) | (x >= size)) & (x != ignored)
            if missing.any():
                return False
    return True


def _with_numbers(run: Callable) -> Callable:
    """`run` for scalars some of which are tensors on the CPU."""

    def converted(handle, tensors, scalars):
        return run(handle, tensors, [s.item() if isinstance(s, torch.Tensor) else s for s in scalars])

    return converted


def _want_gradients(scalars: list) -> bool:
    return torch.is_grad_enabled() and any(isinstance(s, torch.Tensor) and s.requires_grad for s in scalars)


def _with_copies(tensors: list, updates: list[tuple[int, int]]) -> list:
    """The inputs of a region with copies of those that it updates."""
    replaced = {buffer for _, buffer in updates}
    return [x.clone() if i in replaced else x for i, x in enumerate(tensors)]


def _eager_is_faster(region: Region, run_region: Callable, eager: Callable, tensors: list, scalars: list) -> bool:
    """Time both on the inputs of a call, with the backward if its gradients are wanted.

    Nothing of the caller's moves: gradients go nowhere, buffers that are updated are copies, and nothing in a region
    draws numbers.
    """
    enabled = torch.is_grad_enabled()
    tensors = _with_copies(tensors, region.imported.updates)
    leaves = [x.detach().requires_grad_(enabled and x.requires_grad) for x in tensors]
    wanted = [x for x in leaves if x.requires_grad]

    def call(run: Callable) -> None:
        results = [y for y in run() if y.requires_grad]
        if results:
            torch.autograd.grad(results, wanted, [y.detach() for y in results], allow_unused=True)

    return region.compiled.contest(
        leaves,
        lambda: call(lambda: run_region(region.compiled.handle, leaves, scalars)),
        lambda: call(lambda: eager(leaves, scalars)),
    )
