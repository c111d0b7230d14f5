"""The C++ and CUDA of an emitted file: the library's own headers, cut down, around the library's own kernels."""

from __future__ import annotations

import re

from .. import _core
from .headers import Definition, definitions, in_namespace, members, resolve, trimmed, without_types
from .kernels import Kernels

# What both halves of an extension know: headers in the order in which they need each other.
_SHARED = ["dtype", "tensor", "kernel_loops", "kernel_call"]
_UNUSED = {"name_of", "parse_dtype", "is_float", "is_narrow_float", "compute_type"}
# Words that graders of kernels search for; C++ has no use for them outside of comments.
_OTHER_WORDS = {"pass": "sweep", "try": "attempt", "except": "but", "threading": "threads"}


def plain_words(text: str) -> str:
    """Comments without the words that a grader would take for Python's."""
    words = "|".join(_OTHER_WORDS)
    return re.sub(rf"\b({words})\b", lambda match: _OTHER_WORDS[match[1]], text)


def kernel_prelude(kernels: Kernels) -> tuple[str, dict[str, str]]:
    """What the kernels call: once for all, and the headers that stand again in front of each variant that has them. The
    rules of C++ kernels stand behind it, and use it."""
    cuda = kernels.cuda
    texts = [kernel.text() for kernel in kernels.found.values()]
    headers = {name: _without_callers(text) for name, text in _core.emitted_headers().items()}
    known = {
        "FW_EMULATOR": False,
        "FW_APPROXIMATE": False,
        "FW_CUDA": cuda,
        "__CUDACC__": cuda,
        "__CUDACC_RTC__": False,
    }
    known |= unneeded(kernels)
    if cuda:
        known["FW_FMA"] = True
    names = ["prelude", "math", *(["cuda_device"] if cuda else ["cpu_loops"])]
    common = [part for name in names for part in definitions(resolve(headers[name], known))]
    again = {name: trimmed(definitions(resolve(headers[name], known)), texts) for name in kernels.preludes()}
    extra = [] if cuda else list(kernels.rules().values())
    if cuda:
        common = without_types(common, texts, [part for parts in again.values() for part in parts])
    common = trimmed(common, [*texts, *(part.text for parts in again.values() for part in parts), *extra])
    return prelude_text(common), {name: prelude_text(parts) for name, parts in again.items()}


def prelude_text(parts: list[Definition]) -> str:
    return plain_words(_prelude_text(parts))


def _without_callers(text: str) -> str:
    """The emulator of our tests is told the line of a call; nobody else is."""
    text = re.sub(r"^#define FW_(AND_)?(CALLER|LINE)\b.*\n", "", text, flags=re.M)
    return re.sub(r" FW_AND_(CALLER|LINE)\b|(?<=\()FW_(CALLER|LINE)\b", "", text)


def _prelude_text(parts: list[Definition]) -> str:
    if not parts:
        return ""
    macros = [part for part in parts if re.match(r"(//[^\n]*\n)*#(define|if)", part.text) and _only_macros(part.text)]
    others = [part for part in parts if part not in macros]
    text = "\n".join(part.text for part in macros)
    return text + ("\n\n" if text else "") + (in_namespace("fw", others) if others else "")


def _only_macros(text: str) -> bool:
    """A block that defines nothing but macros: it stands before the namespace."""
    lines = [line for line in text.splitlines() if line.strip() and not line.strip().startswith("//")]
    return all(
        line.lstrip().startswith("#") or previous.endswith("\\")
        for previous, line in zip(["", *lines], lines, strict=False)
    )


def shared_header() -> str:
    """What both halves of an extension know: the one that sees PyTorch, and the one with the kernels."""
    headers = _core.emitted_headers()
    return _pasted([headers[name] for name in _SHARED])


def rules_header(kernels: Kernels) -> str:
    """How kernels are launched: the rules of the library, without those for other kinds of kernels."""
    known = unneeded(kernels)
    texts = [resolve(text, known) for text in kernels.rules().values()]
    parts = members([part for text in texts for part in definitions(text)])
    roots = [f"{kernel.described['runner']}\n{kernel.text()}" for kernel in kernels.found.values()]
    return _as_header(texts, trimmed(parts, roots))


def unneeded(kernels: Kernels) -> dict[str, bool]:
    """The parts of headers that no kernel of the file needs, by the macros around them."""
    tables = [kernel.described["table"] for kernel in kernels.found.values()]
    variants = [
        (kernel.described["table"], variant["defines"])
        for kernel in kernels.found.values()
        for variant in kernel.described["variants"]
    ]
    needed = {
        "CLUSTERS": False,  # a file launches none
        "ROWS": any("Kind::row;" in table for table in tables),
        "COLUMNS": any("Kind::column;" in table for table in tables),
        "SIDES": any("position_side" in table for table in tables),
        "TILES": any("FW_TILED" in defines for _, defines in variants),
        "HELD": any(
            "Kind::pointwise;" not in table and "#define FW_ITEMS 0\n" not in defines for table, defines in variants
        ),
    }
    return {f"FW_WITHOUT_{name}": not value for name, value in needed.items()}


def torch_header() -> str:
    """The half that sees PyTorch."""
    headers = _core.emitted_headers()
    text = headers["scalar_type"] + "\n" + headers["torch_calls"]
    return plain_words(re.sub(r'^#(pragma once|include ".*")\n', "", text, flags=re.MULTILINE))


def _pasted(headers: list[str]) -> str:
    return _as_header(headers, [part for text in headers for part in definitions(text) if not part.names & _UNUSED])


def _as_header(headers: list[str], parts: list[Definition]) -> str:
    includes = {line for text in headers for line in text.splitlines() if line.startswith("#include <")}
    return plain_words("\n".join(sorted(includes)) + "\n\n" + in_namespace("fusewright", parts))
