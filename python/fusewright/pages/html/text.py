"""Small things that all parts of a page need."""

from __future__ import annotations

import html

CHARACTER = 0.605  # width of a monospaced character over the size of the font, with some room


def escape(value: object) -> str:
    return html.escape(str(value), quote=True)


def breakable(name: str) -> str:
    """Escaped; a long name may go on in the next line behind an underscore."""
    return escape(name).replace("_", "_<wbr>")


def width_of(text: str, size: float) -> float:
    """In pixels, monospaced."""
    return len(text) * CHARACTER * size


def wrapped(name: str, most: int) -> list[str]:
    """A long name in lines of at most about `most` characters, broken behind underscores and spaces."""
    lines = [""]
    for part in name.replace("_", "_\0").replace(" ", " \0").split("\0"):
        if lines[-1] and len(lines[-1]) + len(part) > most:
            lines.append("")
        lines[-1] += part
    return [line.strip() for line in lines]


def number(value: float) -> str:
    """Three digits with the unit's prefix: 12.3 G."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}"
    return f"{value:.3g} "
