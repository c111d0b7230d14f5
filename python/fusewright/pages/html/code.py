"""Program text: generated kernels with some colour, and the user's lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .text import escape

_KEYWORDS = (
    "alignas auto bool break case char const constexpr continue default do double else extern float for if inline "
    "int int32_t int64_t long namespace return short signed sizeof static struct switch template typename uint32_t "
    "uint64_t uint8_t unsigned using void while __device__ __global__ __restrict__ __shared__"
).split()
_TOKENS = re.compile(
    rf"(?P<c>//[^\n]*|/\*.*?\*/)|(?P<k>\b(?:{'|'.join(_KEYWORDS)})\b|^[ \t]*#\w+)", re.DOTALL | re.MULTILINE
)
_SOURCE = re.compile(r"^(?P<file>.*?):(?P<line>\d+): (?P<text>.*)$", re.DOTALL)


def kernel_text(text: str) -> str:
    """C++ or CUDA as HTML."""
    result, at = [], 0
    for token in _TOKENS.finditer(text):
        result.append(escape(text[at : token.start()]))
        result.append(f'<span class="{token.lastgroup}">{escape(token.group())}</span>')
        at = token.end()
    return f"<pre><code>{''.join(result)}{escape(text[at:])}</code></pre>"


def users_lines(sources: Sequence[str]) -> str:
    """Lines as `explain` names them ("model.py:13: c = F.gelu(c)"), in the order of the file."""
    found = []
    for source in sources:
        match = _SOURCE.match(source)
        found.append((match["file"], int(match["line"]), match["text"]) if match else ("", 0, source))
    lines, file = [], None
    for name, line, text in sorted(set(found)):
        if name != file:
            file = name
            lines.append(f'<span class="c">{escape(name)}</span>')
        lines.append(f'<span class="ln">{line:>4}</span>  {escape(text)}')
    if not lines:
        return '<pre><code><span class="c">no line of the user\'s is known</span></code></pre>'
    newline = "\n"
    return f"<pre><code>{newline.join(lines)}</code></pre>"
