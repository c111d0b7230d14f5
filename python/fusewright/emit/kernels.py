"""The kernels of an emitted file; equal ones stand there once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .tidy import merged, tidy

_OPERAND = re.compile(r'\{"([^"]*)", DType')  # in a table of loops: an operand's name


@dataclass
class Kernel:
    """A kernel of the file, under a name of its own."""

    name: str
    described: dict
    formulas: list[str]
    phase: str
    key: tuple = ()

    def text(self) -> str:
        """Its text as the file has it: one for all variants, with conditions where these differ."""
        variants, texts = self.described["variants"], self.described["texts"]
        if not any(variant["preludes"] for variant in variants):
            return texts[0].replace('extern "C" ', "")
        texts = list(map(tidy, texts))
        if len(texts) == 1:
            return texts[0]
        general = variants[-1]["text"]  # for all sizes: by single elements, whose rows are walked over
        tiled = any(variant["label"] == "tiled" for variant in variants)
        return merged("FW_TILED" if tiled else "FW_ITEMS > 0", [texts[1 - general], texts[general]])

    def share(self, described: dict, names: list[str]) -> None:
        """Another call hands it these operands: messages name what has the same name in all. Variants for the sizes of
        that call join the others."""
        places = {}
        for place, text in enumerate(described["texts"]):
            if text not in self.described["texts"]:
                self.described["texts"].append(text)
            places[place] = self.described["texts"].index(text)
        known = [(variant["fields"], variant["defines"]) for variant in self.described["variants"]]
        for variant in described["variants"]:
            if (variant["fields"], variant["defines"]) not in known:
                self.described["variants"].insert(0, {**variant, "text": places[variant["text"]]})
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
        # The texts of all variants follow from the kernel, as the last one does, which serves all sizes.
        general = described["texts"][described["variants"][-1]["text"]]
        key = (general, _OPERAND.sub("", described["table"]))
        base = described["name"]
        for number in range(len(self.found) + 1):
            name = base if number == 0 else f"{base}_{number + 1}"
            known = self.found.get(name)
            if known is None:
                formulas = [readable(line) for line in described["formulas"]]
                self.found[name] = Kernel(name, _renamed(described, name, readable), formulas, phase, key)
                return name
            if known.key == key:
                known.share(_renamed(described, name, readable), list(map(readable, names)))
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
