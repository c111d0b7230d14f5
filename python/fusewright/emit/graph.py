"""A captured graph -> the body of a `forward`: calls of regions, and PyTorch's operators for what stays PyTorch's."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

import torch
from torch import fx

from ..capture.importer import source_of
from ..errors import InputError
from .texts import identifier, literal

_MOST_CONSTANTS = 4096  # elements of a tensor that is written into the file


class GraphWriter:
    """Writes the nodes of an assembled graph as Python.

    arguments: for each placeholder an expression over `self` and the parameters of `forward`.
    call: the function for a region of the core that is called with these expressions, and how much it returns.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        arguments: list[str | None],
        call: Callable[[object, list[str]], tuple[str, int]],
        what: str,
    ):
        self.module, self.what, self.call = module, what, call
        self.lines: list[str] = []
        self.results: list[str] = []
        self.names: dict[fx.Node, str] = {}
        self._taken: set[str] = {"self", "device"}
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.sizes: dict[object, str] = {}  # symbols of Dynamo's, by where they are found
        self._tensor = next(
            (text for node, text in zip(placeholders, arguments, strict=True) if text and _is_tensor(node)), None
        )
        self._uses_device = False
        sizes = self.sizes
        for node, text in zip(placeholders, arguments, strict=True):
            if text is not None:
                self.names[node] = text
                if isinstance(node.meta.get("val"), torch.SymInt):
                    sizes.setdefault(node.meta["val"].node.expr, text)
                for dim, size in enumerate(getattr(node.meta.get("val"), "shape", ())):
                    if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                        sizes.setdefault(size.node.expr, f"{text}.shape[{dim}]")
        for node in placeholders:
            value = node.meta.get("val")
            if node in self.names or not node.users:
                continue
            expression = value.node.expr if isinstance(value, torch.SymInt) else None
            if expression not in sizes:
                raise InputError(f"{what}: {node.name} is neither a tensor of the call nor a size of one")
            self.names[node] = sizes[expression]

    def write(self) -> list[str]:
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "output":
                self.results = [self.value(value) for value in node.args[0]]
            else:
                self._write_node(node)
        if self._uses_device:
            self.lines.insert(0, f"device = {self._tensor}.device")
        return self.lines

    def _write_node(self, node: fx.Node) -> None:
        if node.op == "get_attr":
            text = self._constant(node)
        elif node.op == "call_method":
            text = f"{self.value(node.args[0])}.{node.target}({self._arguments(node.args[1:], node.kwargs)})"
        elif hasattr(node.target, "region"):
            return self._write_region(node)
        elif node in self.names:
            return  # a result of a region
        elif node.target is operator.getitem:
            text = f"{self.value(node.args[0])}[{self.value(node.args[1])}]"
        else:
            text = self._operator(node)
        if not node.users:
            self.lines.append(text)
            return
        name = self._new_name(node)
        self.lines.append(f"{name} = {text}")

    def _write_region(self, node: fx.Node) -> None:
        numbers = [self._number(number) for number in node.args[1]]
        inputs = [*(self.value(value) for value in node.args[0]), *numbers]
        function, count = self.call(node.target.region, inputs)
        results = ["_"] * count
        for user in node.users:
            results[user.args[1]] = self._new_name(user)
        left = f"({', '.join(results)}{',' if count == 1 else ''}) = " if node.users else ""
        self.lines.append(f"{left}{function}({', '.join(inputs)})")

    def _number(self, node: fx.Node) -> str:
        if not _is_tensor(node):
            return self.value(node)
        if any("_parameters_" in str(source.target) for source in _upstream(node)):
            raise InputError(f"{self.what}: a parameter on the CPU is multiplied with tensors on a GPU, in {node.name}")
        return f"{self.value(node)}.item()"

    def _operator(self, node: fx.Node) -> str:
        target = node.target
        if isinstance(target, torch._ops.OpOverload):
            if target.namespace != "aten":
                raise InputError(f"{self.what}: {target} is no operator of PyTorch's own (at {source_of(node)})")
            return f"torch.ops.{target}({self._arguments(node.args, node.kwargs)})"
        module = getattr(target, "__module__", "") or ""
        if module == "_operator":
            symbols = {
                "add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "truediv": "/", "lt": "<", "le": "<=",
                "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "pow": "**",
            }  # fmt: skip
            if target.__name__ in symbols:
                a, b = node.args
                return f"({self.value(a)} {symbols[target.__name__]} {self.value(b)})"
        if target is torch._C._set_grad_enabled:
            return f"torch.set_grad_enabled({self.value(node.args[0])})"
        if module.startswith("torch") and getattr(torch, target.__name__, None) is target:
            return f"torch.{target.__name__}({self._arguments(node.args, node.kwargs)})"
        raise InputError(
            f"{self.what}: {getattr(target, '__name__', target)} cannot be written down (at {source_of(node)})"
        )

    def _constant(self, node: fx.Node) -> str:
        value = self.module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor) or value.numel() > _MOST_CONSTANTS:
            raise InputError(f"{self.what}: a constant {node.target} of the graph is too large to be written down")
        if value.dim() == 0 and value.device.type == "cpu":  # a number, wherever the other tensors are
            return f"torch.tensor({value.tolist()}, dtype={value.dtype})"
        self._uses_device = True
        return f"torch.tensor({value.tolist()}, dtype={value.dtype}, device=device)"

    def _arguments(self, args, kwargs: dict) -> str:
        parts = [self.value(arg) for arg in args]
        parts += [f"{key}={self.value(value)}" for key, value in kwargs.items()]
        return ", ".join(parts)

    def value(self, value: object) -> str:
        if isinstance(value, fx.Node):
            return self.names[value]
        if isinstance(value, (list, tuple)):
            items = [self.value(item) for item in value]
            if isinstance(value, list):
                return f"[{', '.join(items)}]"
            return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
        if isinstance(value, torch.device):
            self._uses_device = True
            return "device"
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        if isinstance(value, (float, int, bool, str, type(None))):
            return literal(value)
        raise InputError(f"{self.what}: a {type(value).__name__} cannot be written down")

    def _new_name(self, node: fx.Node) -> str:
        name = identifier(re.sub(r"_default(?=_|$)", "", node.name))
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        self.names[node] = name
        return name


def _upstream(node: fx.Node) -> set[fx.Node]:
    found, stack = set(), [node]
    while stack:
        source = stack.pop()
        if source not in found:
            found.add(source)
            stack += source.all_input_nodes
    return found


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)
