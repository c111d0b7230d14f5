"""Layered drawing of a graph, top to bottom: boxes never overlap, and edges that skip layers go between them.

The steps are the usual ones: each box gets a layer below all that it reads, edges that skip layers get a bend in each
of them, boxes of a layer are sorted by where their neighbours are, and then moved towards them as far as there is room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

GAP_X, GAP_Y = 18.0, 30.0
BEND = 10.0  # the width that an edge takes where it passes a layer
SWEEPS = 8


@dataclass
class Box:
    """Something with a size; `x` and `y` are its left upper corner once it is placed."""

    width: float
    height: float
    x: float = 0.0
    y: float = 0.0

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


@dataclass
class Drawing:
    width: float
    height: float
    paths: dict[tuple[int, int], list[tuple[float, float]]] = field(default_factory=dict)  # points of each edge


def place(boxes: Sequence[Box], edges: Sequence[tuple[int, int]]) -> Drawing:
    """Places the boxes. Edges lead from a box to one that stands later in the sequence."""
    edges = [edge for edge in dict.fromkeys(edges) if edge[0] != edge[1]]
    layer_of = _layers(len(boxes), edges)
    everything = list(boxes)
    chains = {edge: _with_bends(edge, layer_of, everything) for edge in edges}
    segments = [pair for chain in chains.values() for pair in zip(chain, chain[1:], strict=False)]
    above: dict[int, list[int]] = {i: [] for i in range(len(everything))}
    below: dict[int, list[int]] = {i: [] for i in range(len(everything))}
    for upper, lower in segments:
        above[lower].append(upper)
        below[upper].append(lower)
    layers: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
    for i, layer in enumerate(layer_of):
        layers[layer].append(i)
    _sort(layers, above, below)
    _spread(layers, everything, above, below)
    height = _stack(layers, everything)
    left = min((box.x for box in everything), default=0.0)
    for box in everything:
        box.x -= left
    width = max((box.x + box.width for box in everything), default=0.0)
    return Drawing(width, height, {edge: _points(chain, everything) for edge, chain in chains.items()})


def _layers(count: int, edges: list[tuple[int, int]]) -> list[int]:
    layer_of = [0] * count
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        layer_of[target] = max(layer_of[target], layer_of[source] + 1)
    # What nobody reads before the last layer stands right above its first reader: inputs that come late are drawn late.
    for i in range(count - 1, -1, -1):
        readers = [layer_of[t] for s, t in edges if s == i]
        if readers and not any(t == i for _, t in edges):
            layer_of[i] = min(readers) - 1
    return layer_of


def _with_bends(edge: tuple[int, int], layer_of: list[int], everything: list[Box]) -> list[int]:
    """The edge as a chain over all layers between; the bends are new boxes of no height."""
    source, target = edge
    chain = [source]
    for layer in range(layer_of[source] + 1, layer_of[target]):
        chain.append(len(everything))
        everything.append(Box(BEND, 0.0))
        layer_of.append(layer)
    return [*chain, target]


def _sort(layers: list[list[int]], above: dict[int, list[int]], below: dict[int, list[int]]) -> None:
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        neighbours = above if down else below
        for number in range(1, len(layers)) if down else range(len(layers) - 2, -1, -1):
            other = {i: place for place, i in enumerate(layers[number - 1 if down else number + 1])}

            def wish(i: int, other=other, layer=layers[number], neighbours=neighbours) -> float:
                places = [other[n] for n in neighbours[i] if n in other]
                return sum(places) / len(places) if places else layer.index(i)

            layers[number] = sorted(layers[number], key=wish)


def _spread(layers: list[list[int]], everything: list[Box], above: dict, below: dict) -> None:
    for layer in layers:
        at = 0.0
        for i in layer:
            everything[i].x = at
            at += everything[i].width + GAP_X
        for i in layer:
            everything[i].x -= (at - GAP_X) / 2
    for sweep in range(2 * SWEEPS):
        down = sweep % 2 == 0
        neighbours = above if down else below
        for layer in layers if down else reversed(layers):
            wishes = []
            for i in layer:
                middles = [everything[n].middle for n in neighbours[i]]
                target = sum(middles) / len(middles) if middles else everything[i].middle
                wishes.append(target - everything[i].width / 2)
            for i, x in zip(layer, _without_overlap(wishes, [everything[i].width for i in layer]), strict=True):
                everything[i].x = x


def _without_overlap(wishes: list[float], widths: list[float]) -> list[float]:
    """The positions nearest to the wishes, in the same order: neighbours that push each other move as one block."""
    blocks: list[tuple[float, float, int]] = []  # sum of wishes relative to the block's left end, width, members
    for wish, width in zip(wishes, widths, strict=True):
        total, extent, members = wish, width + GAP_X, 1
        while blocks and blocks[-1][0] / blocks[-1][2] + blocks[-1][1] > total / members:
            left_total, left_extent, left_members = blocks.pop()
            total = left_total + total - left_extent * members
            extent, members = left_extent + extent, left_members + members
        blocks.append((total, extent, members))
    result: list[float] = []
    remaining = iter(widths)
    for total, _, members in blocks:
        at = total / members
        for _ in range(members):
            result.append(at)
            at += next(remaining) + GAP_X
    return result


def _stack(layers: list[list[int]], everything: list[Box]) -> float:
    y = 0.0
    for layer in layers:
        tallest = max(everything[i].height for i in layer)
        for i in layer:
            box = everything[i]
            box.y = y + (tallest - box.height) / 2
            if box.height == 0:  # a bend passes the whole layer in a straight line
                box.y, box.height = y, tallest
        y += tallest + GAP_Y
    return max(y - GAP_Y, 0.0)


def _points(chain: list[int], everything: list[Box]) -> list[tuple[float, float]]:
    points = []
    for place, i in enumerate(chain):
        box = everything[i]
        if place > 0:
            points.append((box.middle, box.y))
        if place < len(chain) - 1:
            points.append((box.middle, box.y + box.height))
    return points
