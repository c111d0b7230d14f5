"""FX nodes of one region -> a Graph of the core, through the table of operators."""

from __future__ import annotations

import functools
import math
import operator
import os
import re
from typing import NamedTuple

import torch
from torch import fx

from .. import _core, devices, reasons
from ..errors import Decline
from . import autocast
from .operators import TABLE, Row
from .sizes import memory_order, size_hint, size_text, symbol_hints, symbols_of

DTYPES = {
    torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64", torch.bool: "b8",
    torch.int8: "i8", torch.uint8: "u8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip
_TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


class Operand(NamedTuple):
    """A tensor of the region: the core's value with the dtype and sizes that PyTorch gave it."""

    value: int
    dtype: torch.dtype
    sizes: tuple  # int or SymInt

    @property
    def rank(self) -> int:
        return len(self.sizes)


class Dynamic(NamedTuple):
    """A number that is known only at run time: handed to the region at each call."""

    node: fx.Node
    number: object  # SymInt, SymFloat, or a tensor without dimensions on the CPU


class Indices(NamedTuple):
    """A tensor of indices into a dimension, which eager checks on the CPU."""

    node: fx.Node
    size: int
    ignored: int  # an index that names nothing


class Imported(NamedTuple):
    """A region as the core has it, and what its call passes and returns."""

    graph: object
    inputs: list[fx.Node]
    scalars: list[fx.Node]
    outputs: list[fx.Node]
    device: torch.device
    updates: list[tuple[int, int]]  # (output, input): the last outputs, each of which replaces an input
    differentiable: list[bool]  # a flag for each output
    origins: dict[fx.Node, int]  # the number under which the core knows an operator
    indices: list[Indices]


def dtype_name(dtype: torch.dtype) -> str:
    """The core's name of an element type."""
    name = DTYPES.get(dtype)
    if name is None:
        raise Decline(reasons.UNSUPPORTED_DTYPE, str(dtype))
    return name


def check_tensor(value) -> None:
    """Declines a tensor that no kernel of ours can read."""
    if not isinstance(value, torch.Tensor):
        raise Decline(reasons.UNSUPPORTED_OPERATOR, f"a value of type {type(value).__name__}")
    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        raise Decline(reasons.UNSUPPORTED_LAYOUT, str(value.layout))
    devices.check(value.device)
    dtype_name(value.dtype)


@functools.cache
def _promoted(a: tuple, b: tuple) -> torch.dtype:
    # a, b: (dtype, has dimensions) of a tensor, or (Python type, None) of a number
    def sample(kind, dimensioned):
        if dimensioned is None:
            return kind(1)
        return torch.empty((1,) if dimensioned else (), dtype=kind, device="meta")

    return torch.result_type(sample(*a), sample(*b))


_FRAME = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\d+), in .*$')
_TORCH = os.path.dirname(torch.__file__) + os.sep
_OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep


def source_of(node: fx.Node) -> str:
    """The user's line that the node came from: `model.py:13: c = F.gelu(c)`; empty if unknown."""
    lines = (node.stack_trace or "").splitlines()
    found = ""
    for number, line in enumerate(lines):
        match = _FRAME.match(line)
        if not match:
            continue
        text = lines[number + 1].strip() if number + 1 < len(lines) and not _FRAME.match(lines[number + 1]) else ""
        if match["file"].startswith(_OWN):
            continue
        if not match["file"].startswith(_TORCH) or not found:
            found = f"{os.path.basename(match['file'])}:{match['line']}: {text}"
    return found


def bound_arguments(node: fx.Node) -> dict[str, object]:
    """The node's arguments by schema name, defaults filled in (export drops those)."""
    bound = {}
    for position, argument in enumerate(node.target._schema.arguments):
        if position < len(node.args):
            bound[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            bound[argument.name] = node.kwargs[argument.name]
        else:
            bound[argument.name] = argument.default_value
    return bound


class Context:
    """What a row of the table sees while its node is imported."""

    def __init__(self, importer: RegionImporter, node: fx.Node, row: Row, result):
        self._importer, self.node, self.row = importer, node, row
        self._builder = importer.builder
        self._result = result  # fake tensor of the result being built
        # One for each node of the user's: two equal operators on one line are two.
        self.origin = importer.builder.origin(row.name, source_of(node))

    @property
    def result_dtype(self) -> torch.dtype:
        """The dtype that eager gives the result."""
        return self._result.dtype

    @property
    def result_sizes(self) -> tuple:
        """The sizes that eager gives the result: int or SymInt."""
        return tuple(self._result.shape)

    @property
    def device(self) -> torch.device:
        return self._importer.device

    def decline(self, reason: str, detail: str = ""):
        raise Decline(reason, detail)

    def op(self, name: str, operands: list[Operand], **attributes) -> Operand:
        value = self._builder.op(name, [o.value for o in operands], attributes, self.origin)
        return self._operand(value, operands)

    def _operand(self, value: int, operands: list[Operand]) -> Operand:
        # Exact sizes are known for the node's own result; for intermediate values the core's hints serve.
        hints = self._builder.shape(value)
        dtype = _TORCH_DTYPES[self._builder.dtype(value)]
        own = () if self._result is None else (self._result.shape,)
        for known in (*own, *(o.sizes for o in operands)):
            if [size_hint(s) for s in known] == list(hints):
                return Operand(value, dtype, tuple(known))
        return Operand(value, dtype, tuple(hints))

    def number(self, value) -> float | int:
        """A number that must be known now, as an attribute: a changing one is fixed, and Dynamo guards its value."""
        if not isinstance(value, Dynamic):
            return value
        try:
            return int(value.number) if isinstance(value.number, torch.SymInt) else float(value.number)
        except Exception as error:  # Dynamo's word for "depends on data"
            raise Decline(reasons.DYNAMIC_SHAPE, "an attribute that depends on data") from error

    def position(self, value) -> int:
        """A size or an index that says where elements are read. A changing one stays PyTorch's: to fix it would make
        each of its values a capture of its own."""
        number = value.number if isinstance(value, Dynamic) else value
        known = number.node.maybe_as_int() if isinstance(number, torch.SymInt) else number
        if known is None:
            raise Decline(reasons.DYNAMIC_SHAPE, "positions that change with a size or a number")
        return known

    def scalar(self, value, like: Operand, runtime: bool = True) -> Operand:
        """A number as an operand of the dtype of `like`; the user's own numbers stay out of the kernel's text."""
        return self._constant(value, like.dtype, runtime)

    def converted(self, value, dtype: torch.dtype) -> Operand:
        """A tensor or number in the dtype; a number too is rounded to it or wraps around, as eager's comparisons see it
        (in arithmetic it keeps its precision)."""
        if isinstance(value, Operand):
            return self.cast(value, dtype)
        if isinstance(value, Dynamic):
            exact = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
            return self.cast(self._constant(value, exact), dtype)
        kind = torch.float64 if isinstance(value, float) else torch.int64
        return self._constant(torch.tensor(value, dtype=kind, device="cpu").to(dtype).item(), dtype)

    def _constant(self, value, dtype: torch.dtype, runtime: bool = True) -> Operand:
        if isinstance(value, Dynamic):
            return Operand(self._importer.scalar(value, dtype), dtype, ())
        if isinstance(value, int) and not dtype.is_floating_point and int(float(value)) != value:
            self.decline(reasons.UNSUPPORTED_ATTRIBUTE, f"{value}: numbers are kept as float64")
        return Operand(self._builder.constant(float(value), dtype_name(dtype), runtime), dtype, ())

    def cast(self, operand, dtype: torch.dtype) -> Operand:
        """A tensor or number in the dtype."""
        if not isinstance(operand, Operand):
            return self._constant(operand, dtype)
        if operand.dtype is dtype:
            return operand
        return self.op("cast", [operand], dtype=dtype_name(dtype))._replace(sizes=operand.sizes)

    def boolean(self, operand: Operand) -> Operand:
        """`operand != 0`"""
        if operand.dtype is torch.bool:
            return operand
        return self.op("ne", [operand, self.scalar(0, operand, runtime=False)])

    def promoted(self, a, b) -> torch.dtype:
        """The dtype in which PyTorch combines two tensors or numbers."""

        def kind(x):
            if isinstance(x, Operand):
                return x.dtype, x.rank > 0
            if isinstance(x, Dynamic):
                return (int if isinstance(x.number, torch.SymInt) else float), None
            return type(x), None

        a, b = kind(a), kind(b)
        if a[1] is None and b[1] is None:
            return self.result_dtype
        return _promoted(a, b)

    @staticmethod
    def accumulation(dtype: torch.dtype) -> torch.dtype:
        return torch.float64 if dtype is torch.float64 else torch.float32

    def size(self, size) -> int | str:
        return size_text(size, self._importer.names)

    def sizes(self, operand: Operand) -> list[int | str]:
        return [self.size(s) for s in operand.sizes]

    def reshape_to_result(self, operand: Operand) -> Operand:
        return self.op("reshape", [operand], sizes=[self.size(s) for s in self._result.shape])

    def expand_to_result(self, operand: Operand) -> Operand:
        return self.op("expand", [operand], sizes=[self.size(s) for s in self._result.shape])

    def permutation(self, operand: Operand) -> list[int]:
        """Where each dimension of the result comes from, asked of PyTorch itself: many operators permute."""
        marks = torch.empty(tuple(range(2, operand.rank + 2)), device="meta")
        arguments = {k: v for k, v in bound_arguments(self.node).items() if k != "self"}
        permuted = self.node.target(marks, **arguments)
        return [size - 2 for size in permuted.shape]

    def check_indices(self, argument: str, size, ignored: int) -> None:
        """Has the indices that the node is given under this name checked in each call, as eager does on the CPU. A
        size that changes is not checked."""
        number = size.node.maybe_as_int() if isinstance(size, torch.SymInt) else size
        if number is not None:
            self._importer.indices.append(Indices(bound_arguments(self.node)[argument], number, ignored))

    def mark_not_differentiable(self, operand: Operand) -> None:
        self._importer.not_differentiable.add(operand.value)


class RegionImporter:
    """Builds one Graph. Nodes must come in topological order; what is not a member becomes an input."""

    def __init__(self, state_of, names=None):
        self.builder = _core.Builder()
        self.names = names or {}  # of sizes: sizes.names_for
        self.inputs: list[fx.Node] = []
        self.scalars: list[fx.Node] = []
        self.not_differentiable: set[int] = set()
        self.origins: dict[fx.Node, int] = {}
        self.indices: list[Indices] = []
        self._values: dict[fx.Node, object] = {}
        self._scalar_values: dict[tuple[fx.Node, torch.dtype], int] = {}
        self._bound_symbols: set[str] = set()
        self._used_symbols: set[str] = set()
        self._state_of = state_of
        self.device: torch.device | None = None  # of all its tensors

    def input(self, node: fx.Node) -> Operand:
        """The node as an input of the region."""
        if node in self._values:
            return self._values[node]
        tensor = node.meta["val"]
        self._check(tensor)
        dims = [size_text(s, self.names) for s in tensor.shape]
        self._bound_symbols.update(dim for dim in dims if isinstance(dim, str) and dim.isidentifier())
        hints = [size_hint(s) for s in tensor.shape]
        value = self.builder.input(node.name, dtype_name(tensor.dtype), dims, hints, memory_order(tensor))
        self.inputs.append(node)
        self._values[node] = Operand(value, tensor.dtype, tuple(tensor.shape))
        return self._values[node]

    def _check(self, tensor) -> None:
        """A region is on one device, which keeps out copies between devices."""
        check_tensor(tensor)
        self.device = self.device or tensor.device
        if tensor.device != self.device:
            raise Decline(reasons.DEVICE, f"{tensor.device} beside {self.device}")

    def declare_symbols(self, node: fx.Node) -> None:
        """Give the core the values of all symbols that the node's operands have in their sizes."""
        sizes = [s for source in node.all_input_nodes for s in getattr(source.meta.get("val"), "shape", ())]
        for size in sizes:
            if isinstance(size, torch.SymInt):
                for symbol, hint in symbol_hints(size).items():
                    self.builder.set_hint(symbol, hint)

    def scalar(self, number: Dynamic, dtype: torch.dtype) -> int:
        """A run-time number as a rank-0 value. One entry of the call's list for each dtype it is read in."""
        key = (number.node, dtype)
        if key not in self._scalar_values:
            self._scalar_values[key] = self.builder.scalar_input(number.node.name, dtype_name(dtype))
            self.scalars.append(number.node)
        return self._scalar_values[key]

    def add(self, node: fx.Node) -> None:
        """Import a member. Its operands must be members or inputs already, or they become inputs."""
        if node.target is operator.getitem:
            self._values[node] = self._element(node)
            return
        row = TABLE.get(node.target)
        if row is None:
            raise Decline(reasons.UNSUPPORTED_OPERATOR)
        result = node.meta["val"]
        several = isinstance(result, (tuple, list))
        if not several:
            self._check(result)
        context = Context(self, node, row, None if several else result)
        self.origins[node] = context.origin
        bound = bound_arguments(node)
        self._check_ignored(node, row, bound)
        built = row.build(context, **{name: self._argument(node, context, bound[name]) for name in row.parameters})
        self._values[node] = (context, built) if several else self._finished(context, built)

    def _element(self, node: fx.Node) -> Operand:
        context, built = self._values[node.args[0]]
        thunk = built[node.args[1]]
        if thunk is None:
            raise Decline(reasons.UNSUPPORTED_ATTRIBUTE, f"result {node.args[1]} is read")
        context._result = node.meta["val"]
        self._check(context._result)
        return self._finished(context, thunk())

    def _finished(self, context: Context, operand: Operand) -> Operand:
        result = context._result
        cast = context.cast(operand, result.dtype)
        if operand.value in self.not_differentiable:
            self.not_differentiable.add(cast.value)
        hints = [size_hint(s) for s in result.shape]
        if list(self.builder.shape(cast.value)) != hints:
            raise Decline(reasons.REJECTED, f"shape {self.builder.shape(cast.value)} instead of {hints}")
        for size in result.shape:
            self._used_symbols |= symbols_of(size, self.names)
        return cast._replace(sizes=tuple(result.shape))

    def _argument(self, node: fx.Node, context: Context, value):
        if isinstance(value, fx.Node):
            example = value.meta.get("val")
            if isinstance(example, (torch.SymInt, torch.SymFloat)):
                return Dynamic(value, example)
            if isinstance(example, torch.Tensor):
                if _is_number_on_cpu(example) and device_of(node).type == "cuda":
                    return Operand(self.scalar(Dynamic(value, example), example.dtype), example.dtype, ())
                operand = self._values.get(value) or self.input(value)
                wanted = autocast.cast_of(self._state_of(node), node.target, operand.dtype, example.device.type)
                return context.cast(operand, wanted)
            raise Decline(reasons.UNSUPPORTED_ATTRIBUTE, f"an argument of type {type(example).__name__}")
        if isinstance(value, (list, tuple)):
            return [self._argument(node, context, item) for item in value]
        return value

    @staticmethod
    def _check_ignored(node: fx.Node, row: Row, bound: dict) -> None:
        """A row may ignore an argument only at its default, unless the argument cannot change values."""
        for argument in node.target._schema.arguments:
            name = argument.name
            if name in row.parameters or name in _HARMLESS or row.role in ("passive", "cast"):
                continue
            if bound[name] != argument.default_value:
                raise Decline(reasons.UNSUPPORTED_ATTRIBUTE, f"{name}={bound[name]}")

    def changes(self, node: fx.Node) -> None:
        """Something in the user's graph replaces this input: what the backward will need of it is kept."""
        self.builder.changes(self._values[node].value)

    def finish(self, outputs: list[fx.Node], updates: dict[fx.Node, fx.Node]) -> Imported:
        """Close the graph: these members are its outputs, then those that replace inputs (input -> member)."""
        differentiable = []
        into = dict.fromkeys(outputs) | {value: buffer for buffer, value in updates.items()}
        for node, buffer in into.items():
            operand, tensor = self._values[node], node.meta["val"]
            differentiable.append(tensor.is_floating_point() and operand.value not in self.not_differentiable)
            origin = self.origins.get(node, -1)
            if buffer is None:
                self.builder.output(operand.value, memory_order(tensor), differentiable[-1], origin=origin)
            else:
                order = memory_order(buffer.meta["val"])
                self.builder.output(operand.value, order, differentiable[-1], self._values[buffer].value, origin)
        unbound = self._used_symbols - self._bound_symbols
        if unbound:
            raise Decline(reasons.DYNAMIC_SHAPE, f"{', '.join(sorted(unbound))} is no size of an input")
        replaced = [(p, self.inputs.index(buffer)) for p, buffer in enumerate(into.values()) if buffer is not None]
        graph = self.builder.finish()
        return Imported(
            graph,
            self.inputs,
            self.scalars,
            list(into),
            self.device,
            replaced,
            differentiable,
            self.origins,
            self.indices,
        )

    def first_with_unbound_size(self, members: list[fx.Node]) -> fx.Node:
        """The member to leave out when `finish` has declined."""
        for node in members:
            value = node.meta["val"]
            sizes = value.shape if isinstance(value, torch.Tensor) else ()
            if any(symbols_of(size, self.names) - self._bound_symbols for size in sizes):
                return node
        return members[-1]


def _is_number_on_cpu(tensor: torch.Tensor) -> bool:
    """Whether eager takes the tensor's number from the CPU beside tensors on a GPU. Integers are left out: the core
    keeps numbers as float64."""
    return tensor.dim() == 0 and tensor.device.type == "cpu" and tensor.is_floating_point()


def device_of(node: fx.Node) -> torch.device | None:
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else [value]
    return next((v.device for v in values if isinstance(v, torch.Tensor)), None)


# Arguments that select a library or a layout, repeat what meta["val"] says, or tune what has no effect on values.
_HARMLESS = frozenset(
    "cudnn_enable cudnn_enabled memory_format layout device pin_memory non_blocking dtype half_to_float benchmark "
    "deterministic allow_tf32 N C HxW dim0 dim1 copy momentum exponential_average_factor".split()
)


def try_alone(node: fx.Node, elements: list[fx.Node], state) -> None:
    """Import the node by itself, its operands as inputs; raises Decline or the core's error if that fails."""
    importer = RegionImporter(lambda _: state)
    importer.declare_symbols(node)
    importer.add(node)
    for element in elements:
        importer.add(element)


def numel_hint(tensor: torch.Tensor) -> int:
    """Number of elements in the captured example."""
    return math.prod(size_hint(s) for s in tensor.shape)
