"""Bars and the roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...benchmark.floor import Machine
from .text import escape, number

WIDTH, HEIGHT = 720.0, 400.0
LEFT, RIGHT, TOP, BOTTOM = 78.0, 22.0, 34.0, 52.0
RADIUS = 10.0


@dataclass(frozen=True)
class Bar:
    label: str  # HTML
    value: float
    texts: list[str]  # right of it
    kind: str = ""  # a class of the style sheet


def bars(rows: Sequence[Bar]) -> str:
    """Horizontal bars, the longest of which takes the whole width."""
    most = max((row.value for row in rows), default=0.0) or 1.0
    lines = []
    for row in rows:
        length = f"width:{max(100 * row.value / most, 0.4):.2f}%"
        lines.append(
            f'<div class="bar-label">{row.label}</div>'
            f'<div class="bar-track"><div class="bar {row.kind}" style="{length}"></div></div>'
            f'<div class="bar-text">{"".join(f"<span>{escape(text)}</span>" for text in row.texts)}</div>'
        )
    return f'<div class="bars">{"".join(lines)}</div>'


@dataclass(frozen=True)
class Point:
    label: str  # empty: a small dot
    name: str
    intensity: float  # operations for each byte
    speed: float  # operations per second
    kind: str


def roofline(machine: Machine, points: Sequence[Point]) -> str:
    """Operations per second over operations for each byte, both logarithmic, under the roofs of the machine."""
    ridge = machine.arithmetic / machine.bandwidth
    xs = [ridge, *(p.intensity for p in points)]
    ys = [machine.arithmetic, *(p.speed for p in points)]
    low_x, high_x = 10 ** math.floor(math.log10(min(xs)) - 0.2), 10 ** math.ceil(math.log10(max(xs)) + 0.2)
    high_y = 10 ** math.ceil(math.log10(max(ys)) + 0.05)
    low_y = 10 ** math.floor(math.log10(min(*ys, machine.bandwidth * low_x)) - 0.05)

    def x_of(value: float) -> float:
        share = math.log10(value / low_x) / math.log10(high_x / low_x)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y_of(value: float) -> float:
        share = math.log10(value / low_y) / math.log10(high_y / low_y)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [_grid(low_x, high_x, low_y, high_y, x_of, y_of)]
    start = max(low_x, low_y / machine.bandwidth)
    roof = [(start, start * machine.bandwidth), (ridge, machine.arithmetic), (high_x, machine.arithmetic)]
    line = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in roof)
    parts.append(f'<polyline class="roof" points="{line}"/>')
    # Above the picture, where no point can be.
    key = f"copy {number(machine.bandwidth)}B/s, matrix product {number(machine.arithmetic)}op/s"
    parts.append(f'<line class="roof" x1="{LEFT}" y1="14" x2="{LEFT + 26}" y2="14"/>')
    parts.append(f'<text class="roof-text" x="{LEFT + 34}" y="18">{key}</text>')
    for point in points:
        if not point.label:
            x, y = x_of(point.intensity), y_of(point.speed)
            about = f"<title>{escape(point.name)}</title>"
            parts.append(f'<circle class="dot {point.kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">{about}</circle>')
    labelled = [point for point in points if point.label]
    markers = []  # above all lines
    for point, (x, y) in zip(labelled, _apart([(x_of(p.intensity), y_of(p.speed)) for p in labelled]), strict=True):
        true_x, true_y = x_of(point.intensity), y_of(point.speed)
        if math.hypot(x - true_x, y - true_y) > 1:
            parts.append(f'<line class="leader" x1="{true_x:.1f}" y1="{true_y:.1f}" x2="{x:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<circle class="dot {point.kind}" cx="{true_x:.1f}" cy="{true_y:.1f}" r="2.5"/>')
        about = f"{point.name}: {number(point.speed)}op/s, {number(point.intensity)}op/B"
        markers.append(
            f'<g class="point {point.kind}"><title>{escape(about)}</title>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}"/>'
            f'<text class="digits{len(point.label)}" x="{x:.1f}" y="{y + 3.8:.1f}">{escape(point.label)}</text></g>'
        )
    title = "Roofline: operations per second over operations for each byte"
    frame = f'viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}"'
    return f'<svg class="roofline" role="img" aria-label="{title}" {frame}>{"".join(parts + markers)}</svg>'


def _grid(low_x, high_x, low_y, high_y, x_of, y_of) -> str:
    parts = []
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for exponent in range(round(math.log10(low_x)), round(math.log10(high_x)) + 1):
        x = x_of(10.0**exponent)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{_power(exponent)}</text>')
    exponents = range(round(math.log10(low_y)), round(math.log10(high_y)) + 1)
    for exponent in exponents:
        y = y_of(10.0**exponent)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        label = number(10.0**exponent)
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}op/s</text>')
    middle = (LEFT + right) / 2
    parts.append(
        f'<text class="axis" x="{middle:.0f}" y="{HEIGHT - 10}" text-anchor="middle">operations per byte</text>'
    )
    return "".join(parts)


def _power(exponent: int) -> str:
    return f"{10.0**exponent:g}" if -3 <= exponent <= 4 else f"1e{exponent}"


def _apart(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The places, those moved that would lie on top of an earlier one: to the nearest free spot around."""
    taken: list[tuple[float, float]] = []
    for x, y in places:
        taken.append(min(_spots(x, y, taken), key=lambda spot: math.hypot(spot[0] - x, spot[1] - y)))
    return taken


def _spots(x: float, y: float, taken: list[tuple[float, float]]) -> list[tuple[float, float]]:
    apart = 2 * RADIUS + 3
    free = lambda spot: all(math.hypot(spot[0] - a, spot[1] - b) >= apart for a, b in taken)
    if free((x, y)):
        return [(x, y)]
    found: list[tuple[float, float]] = []
    distance = apart
    while not found:
        if distance > WIDTH:  # more points than there is room for
            return [(x, y)]
        around = [
            (x + distance * math.cos(t * math.pi / 8), y + distance * math.sin(t * math.pi / 8)) for t in range(16)
        ]
        inside = [(a, b) for a, b in around if LEFT < a < WIDTH - RIGHT and TOP < b < HEIGHT - BOTTOM]
        found = [spot for spot in inside if free(spot)]
        distance += RADIUS
    return found
