"""The kernels of an emitted file; equal ones stand there once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_OPERAND = re.compile(r'\{"([^"]*)", DType')  # in a table of loops: an operand's name


@dataclass
class Kernel:
    """A kernel of the file, under a name of its own."""

    name: str
    described: dict
    formulas: list[str]
    phase: str
    key: tuple = ()

    def share(self, names: list[str]) -> None:
        """Another call hands it these operands: messages name what has the same name in all."""
        own = iter(_OPERAND.findall(self.described["table"]))
        places = iter(range(len(names)))

        def common(match: re.Match) -> str:
            place = next(places)
            return match[0] if next(own) == names[place] else f'{{"operand {place}", DType'

        self.described["table"] = _OPERAND.sub(common, self.described["table"])


@dataclass
class Kernels:
    """All kernels of a file; equal ones stand there once."""

    cuda: bool
    found: dict[str, Kernel] = field(default_factory=dict)

    def rules(self) -> dict[str, str]:
        """The headers that run the kernels, by name, in the order in which they need each other."""
        return {name: text for kernel in self.found.values() for name, text in kernel.described["headers"]}

    def preludes(self) -> list[str]:
        """The headers that stand in front of variants, by name."""
        variants = [variant for kernel in self.found.values() for variant in kernel.described["variants"]]
        return list(dict.fromkeys(name for variant in variants for name in variant["preludes"]))

    def add(self, described: dict, phase: str, readable) -> str:
        """The name under which the kernel stands in the file."""
        names = _OPERAND.findall(described["table"])
        key = (described["texts"], _OPERAND.sub("", described["table"]), [v["defines"] for v in described["variants"]])
        base = described["name"]
        for number in range(len(self.found) + 1):
            name = base if number == 0 else f"{base}_{number + 1}"
            known = self.found.get(name)
            if known is None:
                formulas = [readable(line) for line in described["formulas"]]
                self.found[name] = Kernel(name, _renamed(described, name, readable), formulas, phase, key)
                return name
            if known.key == key:
                known.share(list(map(readable, names)))
                return name
        raise AssertionError("unreachable")


def _renamed(described: dict, name: str, readable) -> dict:
    """The kernel under another name: the symbol is part of its texts."""
    old = described["name"]
    pattern = re.compile(rf"\b{re.escape(old)}(?=(_\w+)?\b)")  # the kernel, and its other entries
    result = dict(described)
    result["texts"] = [pattern.sub(name, text) for text in described["texts"]]
    result["table"] = readable(pattern.sub(name, described["table"]))
    result["variants"] = [
        {**variant, "entries": [pattern.sub(name, entry) for entry in variant["entries"]]}
        for variant in described["variants"]
    ]
    return result
