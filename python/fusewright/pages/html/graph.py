"""The graph before and after: what eager runs, with a box around what becomes one kernel; then what runs instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...capture.outline import INPUT, OPERATOR, STATE, VIEW, Operator, Outline
from ...explain import Explanation, Kernel, LibraryCall
from ...units import show_bytes
from .layers import Box, Drawing, place
from .text import escape, width_of, wrapped

LABEL, SMALL = 12.0, 10.5  # sizes of the font
LINE = 15.0
PADDING = 9.0
MOST = 26  # characters of a line in a box
TITLE = 22.0  # height of a group's title
WIDE = 640.0  # wants a row of its own
SMALLEST = 0.65  # a picture that is wider than its place is made smaller, down to this; then it scrolls


@dataclass
class Item:
    """A box with text; what is drawn inside it, if it is a group."""

    lines: list[str]
    kind: str  # a class of the style sheet: operator, view, library, kernel, torch, io, group
    badge: int | None = None  # the number of a step, under which the rest of the page knows it
    small: list[str] = field(default_factory=list)  # lines below, in smaller letters
    about: str = ""  # shown when the pointer rests on it
    inside: list[Item] = field(default_factory=list)
    inner_edges: list[tuple[int, int]] = field(default_factory=list)
    box: Box = field(default_factory=lambda: Box(0, 0))
    drawing: Drawing | None = None

    def measure(self) -> None:
        widths = [width_of(line, LABEL) for line in self.lines] + [width_of(line, SMALL) for line in self.small]
        if self.inside:
            for item in self.inside:
                item.measure()
            self.drawing = place([item.box for item in self.inside], self.inner_edges)
            width = max(self.drawing.width, *widths) + 4 * PADDING
            self.box = Box(width, self.drawing.height + TITLE + 2.5 * PADDING)
            return
        badge = 24.0 if self.badge is not None else 0.0
        height = len(self.lines) * LINE + len(self.small) * (LINE - 1) + 1.4 * PADDING
        self.box = Box(max(widths, default=0.0) + 2 * PADDING + badge, height)


# ---- the two pictures --------------------------------------------------------------------------------------


def before(explanation: Explanation, outline: Outline) -> str:
    """The operators of one captured graph, as SVG."""
    shown = [o for o in outline.operators if o.kind != STATE and not _is_counter(o, outline)]
    steps = explanation.steps
    kernels_of: dict[int, list[int]] = {}  # number of an operator: numbers of the kernels that compute some of it
    in_library: set[int] = set()
    for entry in shown:
        for number, step in enumerate(steps):
            if step.phase == "forward" and step.region == entry.region and entry.origin in step.origins:
                if isinstance(step, LibraryCall):
                    in_library.add(entry.number)
                else:
                    kernels_of.setdefault(entry.number, []).append(number)
    for entry in in_library:
        kernels_of.pop(entry, None)
    edges = [(source, o.number) for o in shown for source in o.reads]
    items, place_of = [], {}
    for unit in _units(shown, edges, kernels_of):
        drawn = [_operator_item(o, o.number in in_library) for o in unit]
        if not kernels_of.get(unit[0].number):
            items.append(drawn[0])
        else:
            kernel = kernels_of[unit[0].number][-1]
            numbers = {o.number: i for i, o in enumerate(unit)}
            inner = [(numbers[a], numbers[b]) for a, b in edges if a in numbers and b in numbers]
            title = f"{kernel + 1}  {steps[kernel].schedule} kernel"
            items.append(Item([title], "group", None, [], steps[kernel].name, drawn, inner))
        place_of |= {o.number: len(items) - 1 for o in unit}
    outer = [(place_of[a], place_of[b]) for a, b in edges if a in place_of and b in place_of]
    results = [place_of[o.number] for o in shown if o.is_result]
    return _svg(*_with_results(items, outer, results), "The operators that eager PyTorch runs")


def after_forward(explanation: Explanation, outline: Outline) -> str:
    """Kernels, library calls and what stays PyTorch's, as SVG."""
    items: list[Item] = []
    made: dict[int, int] = {}  # number of an operator: the item that has its result
    edges: list[tuple[int, int]] = []
    by_region: dict[str, list[tuple[int, Kernel | LibraryCall]]] = {}
    for number, step in enumerate(explanation.steps):
        if step.phase == "forward":
            by_region.setdefault(step.region, []).append((number, step))
    operators = {o.number: o for o in outline.operators}

    def source_of(number: int) -> int | None:
        """The item that has the result, through views, which cost nothing."""
        while number not in made and operators[number].kind == VIEW and operators[number].reads:
            number = operators[number].reads[0]
        return made.get(number)

    def connect(sources: Sequence[int], item: int) -> None:
        edges.extend((s, item) for s in map(source_of, sources) if s is not None and s != item)

    def add_region(region: str) -> None:
        tensors = explanation.tensors[region]
        from_outside = dict(zip(tensors.inputs, outline.inputs[region], strict=False))
        writer: dict[int, int] = {}  # number of a tensor: item
        for number, step in by_region.get(region, []):
            items.append(_step_item(number, step))
            here = len(items) - 1
            connect([from_outside[n] for n, _ in step.reads if n in from_outside], here)
            edges.extend((writer[n], here) for n, _ in step.reads if n in writer)
            writer |= {n: here for n, _ in step.writes}
        for tensor, number in zip(tensors.outputs, outline.outputs[region], strict=False):
            if tensor in writer:
                made.setdefault(number, writer[tensor])

    # A region runs where the last of its operators stands: all that it reads is there, and nobody has read it yet.
    last = {o.region: o.number for o in outline.operators if o.region}
    for entry in outline.operators:
        if entry.kind == INPUT or (entry.kind == OPERATOR and not entry.region):
            items.append(_operator_item(entry, False))
            connect(entry.reads, len(items) - 1)
            made[entry.number] = len(items) - 1
        elif entry.region and last[entry.region] == entry.number:
            add_region(entry.region)
    results = [source_of(o.number) for o in outline.operators if o.is_result and o.kind != STATE]
    drawn = _with_results(items, _forward_only(edges), [r for r in results if r is not None])
    return _svg(*drawn, "What runs in the forward")


def after_backward(explanation: Explanation) -> str:
    """The steps of the backward, as SVG; empty if there are none."""
    items: list[Item] = []
    edges: list[tuple[int, int]] = []
    for region, tensors in reversed(explanation.tensors.items()):
        steps = [(i, s) for i, s in enumerate(explanation.steps) if (s.region, s.phase) == (region, "backward")]
        if not steps:
            continue
        items.append(Item(["gradient"], "io"))
        saved, gradient, writer = {n for n, _ in tensors.saved}, len(items) - 1, {}
        for number, step in steps:
            items.append(_step_item(number, step))
            here = len(items) - 1
            for n, _ in step.reads:
                if n in writer or n not in saved:
                    edges.append((writer.get(n, gradient), here))
            writer |= {n: here for n, _ in step.writes}
    return _svg(items, edges, "What runs in the backward") if items else ""


# ---- items -------------------------------------------------------------------------------------------------


def _operator_item(entry: Operator, in_library: bool) -> Item:
    shape = " x ".join(map(str, entry.shape))
    if entry.kind == INPUT:
        return Item(wrapped(entry.name, MOST), "io", None, [shape] if shape else [])
    kind = "library" if in_library else "view" if entry.kind == VIEW else "operator" if entry.region else "torch"
    return Item(wrapped(entry.name, MOST), kind, None, [shape] if shape else [], entry.source)


def _step_item(number: int, step: Kernel | LibraryCall) -> Item:
    moved = [f"{show_bytes(step.bytes_read)} in", f"{show_bytes(step.bytes_written)} out"]
    if isinstance(step, LibraryCall):
        return Item(wrapped(step.name, MOST), "library", number + 1, moved, step.source)
    return Item(wrapped(step.name, MOST), "kernel", number + 1, [", ".join(moved)], " ".join(step.operators))


def _is_counter(entry: Operator, outline: Outline) -> bool:
    """The count of batches beside running statistics: eager has an operator for it, but nobody thinks of it."""
    of_state = entry.reads and all(outline.operators[n].kind == STATE for n in entry.reads)
    read = any(entry.number in other.reads for other in outline.operators)
    return entry.name == "add" and not entry.shape and bool(of_state) and not read and not entry.is_result


def _with_results(items: list[Item], edges: list, results: Sequence[int]) -> tuple[list[Item], list]:
    items = [*items]
    for number in dict.fromkeys(results):
        items.append(Item(["output"], "io"))
        edges = [*edges, (number, len(items) - 1)]
    return items, edges


def _forward_only(edges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(a, b) for a, b in edges if a < b]


def _units(
    shown: list[Operator], edges: list[tuple[int, int]], kernels_of: dict[int, list[int]]
) -> list[list[Operator]]:
    """Groups, and operators alone, in an order that can be run.

    An operator belongs to the last kernel that computes some of it: the one that is done with it. Where that group
    cannot stand anywhere (another kernel reads from its middle and writes into it), to the one before, or to none.
    """
    while True:
        members: dict[object, list[Operator]] = {}
        for o in shown:
            kernels = kernels_of.get(o.number)
            members.setdefault(kernels[-1] if kernels else f"alone {o.number}", []).append(o)
        unit_of = {o.number: key for key, unit in members.items() for o in unit}
        needs: dict[object, set] = {key: set() for key in members}
        for a, b in edges:
            if a in unit_of and b in unit_of and unit_of[a] != unit_of[b]:
                needs[unit_of[b]].add(unit_of[a])
        order: list = []
        done: set = set()
        while ready := [key for key in members if key not in done and needs[key] <= done]:
            order.append(ready[0])
            done.add(ready[0])
        if len(order) == len(members):
            return [members[key] for key in order]
        stuck = next(key for key in members if key not in done and len(members[key]) > 1)
        shared = [o for o in members[stuck] if len(kernels_of[o.number]) > 1]
        for o in shared or members[stuck]:
            kernels_of[o.number].pop()


# ---- SVG ---------------------------------------------------------------------------------------------------


def _svg(items: list[Item], edges: list[tuple[int, int]], title: str) -> str:
    for item in items:
        item.measure()
    drawing = place([item.box for item in items], edges)
    margin = 6.0
    width, height = drawing.width + 2 * margin, drawing.height + 2 * margin
    body = _edges(drawing) + "".join(_item(item) for item in items)
    kind = "graph wide" if width > WIDE else "graph"
    return (
        f'<svg class="{kind}" role="img" aria-label="{escape(title)}" width="{width:.0f}" height="{height:.0f}" '
        f'style="min-width:{SMALLEST * width:.0f}px" '
        f'viewBox="{-margin:.0f} {-margin:.0f} {width:.0f} {height:.0f}">{body}</svg>'
    )


def _edges(drawing: Drawing) -> str:
    parts = []
    for points in drawing.paths.values():
        x, y = points[0]
        path = f"M{x:.1f} {y:.1f}"
        for place_in_path, (to_x, to_y) in enumerate(points[1:], 1):
            last = place_in_path == len(points) - 1
            end = to_y - (5.0 if last else 0.0)
            if place_in_path % 2:  # from one layer to the next
                middle = (y + end) / 2
                path += f" C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {end:.1f}"
            else:  # past a layer
                path += f" L{to_x:.1f} {end:.1f}"
            x, y = to_x, to_y
        head = f"{x - 3.5:.1f},{y - 6:.1f} {x + 3.5:.1f},{y - 6:.1f} {x:.1f},{y:.1f}"
        parts.append(f'<path class="edge" d="{path}"/><polygon class="head" points="{head}"/>')
    return "".join(parts)


def _item(item: Item) -> str:
    box = item.box
    about = f"<title>{escape(item.about)}</title>" if item.about else ""
    shape = (
        f'<rect class="shape" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" '
        f'rx="{box.height / 2 if item.kind == "io" and len(item.small) == 0 else 7:.1f}"/>'
    )
    if item.inside:
        left = box.x + (box.width - item.drawing.width) / 2
        inner = _edges(item.drawing) + "".join(_item(i) for i in item.inside)
        title = (
            f'<text class="title" x="{box.x + 1.4 * PADDING:.1f}" y="{box.y + 17:.1f}">{escape(item.lines[0])}</text>'
        )
        moved = f'<g transform="translate({left:.1f} {box.y + TITLE + PADDING:.1f})">{inner}</g>'
        return f'<g class="item {item.kind}">{about}{shape}{title}{moved}</g>'
    text, badge, x = "", "", box.middle
    if item.badge is not None:
        at, middle, half = box.x + 17, box.y + box.height / 2, max(9.5, 3.6 * len(str(item.badge)) + 2)
        badge = (
            f'<rect class="badge" x="{at - half:.1f}" y="{middle - 9.5:.1f}" width="{2 * half:.1f}" height="19" '
            f'rx="9.5"/><text class="badge-text" x="{at:.1f}" y="{middle + 3.8:.1f}">{item.badge}</text>'
        )
        x += 12
    y = box.y + 0.7 * PADDING + LABEL - 0.5
    for line in item.lines:
        text += f'<text class="label" x="{x:.1f}" y="{y:.1f}">{escape(line)}</text>'
        y += LINE
    for line in item.small:
        text += f'<text class="small" x="{x:.1f}" y="{y - 1:.1f}">{escape(line)}</text>'
        y += LINE - 1
    return f'<g class="item {item.kind}">{about}{shape}{badge}{text}</g>'
