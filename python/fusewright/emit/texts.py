"""Python as text: names, numbers, sizes, and lines that are not too long."""

from __future__ import annotations

import ast
import keyword
import re


class _Sizes(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        operators = {"floordiv": ast.FloorDiv(), "mod": ast.Mod()}
        if node.func.id in operators:
            return ast.BinOp(node.args[0], operators[node.func.id], node.args[1])
        return node


def size_code(text: str) -> str:
    """A size of the core as Python."""
    return ast.unparse(_Sizes().visit(ast.parse(text, mode="eval")))


def literal(value: object) -> str:
    """A number, a text or a tuple of them as Python writes it down."""
    if isinstance(value, tuple):
        items = [literal(item) for item in value]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if isinstance(value, float) and value - value != 0:
        return f'float("{value}")'
    return repr(value)


def as_tuple(items: list[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def identifier(text: str) -> str:
    """A name of Python that looks like the text."""
    name = re.sub(r"\W+", "_", text).strip("_") or "value"
    name = f"v_{name}" if name[0].isdigit() else name
    return f"{name}_" if keyword.iskeyword(name) else name


def wrapped(line: str, width: int = 116) -> str:
    """A long line, broken behind commas inside of its parentheses."""
    if len(line) <= width:
        return line
    indent = len(line) - len(line.lstrip())
    rows, row = [], ""
    for part in _parts(line, width):
        if row and len(row) + len(part) > width:
            rows.append(row.rstrip())
            row = " " * (indent + 4)
        row += part
    return "\n".join([*rows, row])


def _parts(line: str, width: int, deepest: int = 1) -> list[str]:
    """The line cut behind commas: between the arguments of a call; within one only where it is too long itself."""
    parts, begin, depth, quote = [], 0, 0, ""
    for i, c in enumerate(line):
        if quote:
            quote = "" if c == quote and line[i - 1] != "\\" else quote
        elif c in "'\"":
            quote = c
        elif c == "," and depth <= deepest and line[i + 1 : i + 2] == " ":
            parts.append(line[begin : i + 2])
            begin = i + 2
        else:
            depth += (c in "([{") - (c in ")]}")
    parts.append(line[begin:])
    if deepest > 1:
        return parts
    return [piece for part in parts for piece in ([part] if len(part) < width - 8 else _parts(part, width, 9))]


def indented(lines: list[str], levels: int = 1) -> list[str]:
    return ["    " * levels + line if line else "" for line in lines]
