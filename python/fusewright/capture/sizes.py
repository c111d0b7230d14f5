"""Dynamo's sizes in the core's notation: integers stay integers, expressions become text over + - * and functions."""

from __future__ import annotations

import sympy
import torch

from .. import reasons
from ..errors import Decline

_FUNCTIONS = {
    "FloorDiv": "floordiv", "CleanDiv": "floordiv", "Mod": "mod", "PythonMod": "mod", "ModularIndexing": None,
    "Min": "min", "Max": "max",
}  # fmt: skip


def size_text(size: int | torch.SymInt, names: dict[sympy.Expr, sympy.Symbol] | None = None) -> int | str:
    """The size as the core reads it, with `names` for expressions that have one of their own."""
    if isinstance(size, int):
        return size
    expression = size.node.expr.subs(names) if names else size.node.expr
    return int(expression) if expression.is_Integer else _text(expression)


def names_for(tensors: list[torch.Tensor]) -> dict[sympy.Expr, sympy.Symbol]:
    """Symbols for the sizes of a region's inputs that are expressions over symbols which no input has as a size: at
    run time such a size is all that is known of them."""
    sizes = [size.node.expr for t in tensors for size in t.shape if isinstance(size, torch.SymInt)]
    bound = {size for size in sizes if size.is_Symbol}
    names: dict[sympy.Expr, sympy.Symbol] = {}
    for size in sizes:
        if size not in names and not size.free_symbols <= bound:
            names[size] = sympy.Symbol(f"size{len(names)}", integer=True, positive=True)
    return names


def size_hint(size: int | torch.SymInt) -> int:
    """The size's value in the example that was captured."""
    if isinstance(size, int):
        return size
    if not size.node.has_hint():
        raise Decline(reasons.DYNAMIC_SHAPE, f"size {size} depends on data")
    return int(size.node.hint)


def memory_order(tensor: torch.Tensor) -> list[int]:
    """Dimensions from the outermost in memory to the innermost; those of size 1 and equal strides in natural order."""
    strides, sizes = [size_hint(s) for s in tensor.stride()], [size_hint(s) for s in tensor.shape]
    # A dimension of size 1 may carry any stride: it takes the place that natural order gives it among the others.
    meaningful = sorted((d for d in range(len(sizes)) if sizes[d] != 1), key=lambda d: (-strides[d], d))
    order = list(meaningful)
    for d in range(len(sizes)):
        if sizes[d] == 1:
            place = next((i for i, other in enumerate(order) if other > d), len(order))
            order.insert(place, d)
    return order


def symbols_of(size: int | torch.SymInt, names: dict[sympy.Expr, sympy.Symbol] | None = None) -> set[str]:
    """Names of the symbols in a size."""
    if isinstance(size, int):
        return set()
    expression = size.node.expr.subs(names) if names else size.node.expr
    return {str(symbol) for symbol in expression.free_symbols}


def symbol_hints(size: torch.SymInt) -> dict[str, int]:
    """The symbols of a size with their values in the captured example."""
    environment = size.node.shape_env
    known = getattr(environment, "backed_var_to_val", None) or getattr(environment, "var_to_val", {})
    return {str(symbol): int(known[symbol]) for symbol in size.node.expr.free_symbols if symbol in known}


def size_text_of(e: sympy.Expr) -> str:
    """An expression over symbols, as the core reads it."""
    return _text(e)


def _text(e: sympy.Expr) -> str:
    if e.is_Symbol:
        return str(e)
    if e.is_Integer:
        return str(int(e))
    if e.is_Add:
        return "(" + " + ".join(_text(a) for a in e.args) + ")"
    if e.is_Mul:
        return "(" + " * ".join(_text(a) for a in e.args) + ")"
    if e.is_Pow and e.exp.is_Integer and int(e.exp) > 0:
        return "(" + " * ".join([_text(e.base)] * int(e.exp)) + ")"
    function = _FUNCTIONS.get(type(e).__name__)
    if function in ("min", "max") and len(e.args) > 2:
        text = _text(e.args[0])
        for argument in e.args[1:]:
            text = f"{function}({text}, {_text(argument)})"
        return text
    if function and len(e.args) == 2:
        return f"{function}({_text(e.args[0])}, {_text(e.args[1])})"
    raise Decline(reasons.DYNAMIC_SHAPE, f"size {e}")
