"""One region of a captured graph -> the Python that runs it: a function for inference, an autograd function for
training, straight down the steps of the library's plans."""

from __future__ import annotations

import ast
import keyword
import re
from dataclasses import dataclass, field

from .. import _core

_DTYPES = {
    "f16": "torch.float16", "bf16": "torch.bfloat16", "f32": "torch.float32", "f64": "torch.float64",
    "b8": "torch.bool", "i8": "torch.int8", "u8": "torch.uint8", "i16": "torch.int16", "i32": "torch.int32",
    "i64": "torch.int64",
}  # fmt: skip
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
        own = iter(_OPERAND.findall(self.described["loops"]))
        places = iter(range(len(names)))

        def common(match: re.Match) -> str:
            place = next(places)
            return match[0] if next(own) == names[place] else f'{{"operand {place}", DType'

        self.described["loops"] = _OPERAND.sub(common, self.described["loops"])


@dataclass
class Kernels:
    """All kernels of a file; equal ones stand there once."""

    cuda: bool
    found: dict[str, Kernel] = field(default_factory=dict)

    def add(self, described: dict, phase: str, readable) -> str:
        """The name under which the kernel stands in the file."""
        names = _OPERAND.findall(described["loops"])
        key = (described["texts"], _OPERAND.sub("", described["loops"]), [v["defines"] for v in described["variants"]])
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
    pattern = re.compile(rf"\b{re.escape(old)}(?=(_phase\d+|_merge\d+|_sides)?\b)")
    result = dict(described)
    result["texts"] = [pattern.sub(name, text) for text in described["texts"]]
    result["loops"] = readable(pattern.sub(name, described["loops"]))
    result["variants"] = [
        {**variant, "entries": [pattern.sub(name, entry) for entry in variant["entries"]]}
        for variant in described["variants"]
    ]
    return result


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


def _tuple(items: list[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def identifier(text: str) -> str:
    """A name of Python that looks like the text."""
    name = re.sub(r"\W+", "_", text).strip("_") or "value"
    name = f"v_{name}" if name[0].isdigit() else name
    return f"{name}_" if keyword.iskeyword(name) else name


class PlanWriter:
    """The lines that run one plan. Values are local variables; views of them come as they are needed."""

    def __init__(self, plan: dict, names: list[str], kernels: Kernels, phase: str, readable):
        self.plan, self.kernels, self.phase, self.readable = plan, kernels, phase, readable
        self.values = plan["values"]
        self.names: dict[int, str] = dict(zip(plan["inputs"], names, strict=True))
        self.inputs = set(plan["inputs"])
        self.scalars = [v for v in plan["inputs"] if self.values[v]["op"] == "scalar_input"]
        self.lines: list[str] = []
        for position in plan["in_place"]:
            output = plan["outputs"][position]
            self.names[output["value"]] = self.names[plan["inputs"][output["into"]]]
        self._taken = set(self.names.values())
        self._views: set[int] = set()  # made by name()

    def size(self, text: str) -> str:
        return size_code(text)

    def sizes(self, texts: list[str]) -> str:
        return _tuple([self.size(text) for text in texts]) if texts else "()"

    def write_symbols(self) -> None:
        for name, position, dim, coefficient, offset in self.plan["symbols"]:
            source = f"{self.names[self.plan['inputs'][position]]}.shape[{dim}]"
            if offset != "0":
                source = f"({source} - ({self.size(offset)}))"
            self.lines.append(f"{name} = {source}" + (f" // {coefficient}" if coefficient != 1 else ""))
        self.write_positive(self.plan["positive"])

    def write_positive(self, texts: list[str]) -> None:
        places = {
            name: f"{self.names[self.plan['inputs'][position]]}.shape[{dim}]"
            for name, position, dim, coefficient, offset in self.plan["symbols"]
            if coefficient == 1 and offset == "0"
        }
        for text in dict.fromkeys(texts):
            if not text.isdigit():
                shown = re.sub(r"\b[a-z]+\d+\b", lambda match: places.get(match[0], match[0]), self.size(text))
                self.lines.append(f"_positive({self.size(text)}, {shown!r})")

    def finished(self) -> list[str]:
        """The lines, without symbols that none of them uses."""
        for name, *_ in reversed(self.plan["symbols"]):
            word = re.compile(rf"\b{name}\b")
            using = [line for line in self.lines if word.search(line)]
            if len(using) == 1:
                self.lines.remove(using[0])
        return self.lines

    def name(self, value: int) -> str:
        """The variable of a value that is there, or of a view, which is made now."""
        if value in self.names:
            return self.names[value]
        node = self.values[value]
        name = self.new_name(value)
        self._views.add(value)
        if node["op"] == "constant":
            self.lines.append(f"{name} = torch.zeros((), dtype={_DTYPES[node['dtype']]}, device=device)")
            return name
        assert node["kind"] == "movement", f"{node['op']} is read before it is computed"
        source = self.name(node["operands"][0])
        if node["op"] == "permute":
            view = f"{source}.permute({', '.join(map(str, node['attributes']['dims']))})"
        else:
            view = f"{source}.{node['op']}({self.sizes(node['shape'])})"
        self.lines.append(f"{name} = {view}")
        return name

    def forget_views(self, known: set[int]) -> None:
        """Those that were made since, in lines that may not be run."""
        for value in (self._views & set(self.names)) - known:
            self._taken.discard(self.names.pop(value))

    def new_name(self, value: int) -> str:
        name = next((o["name"] for o in self.plan["outputs"] if o["value"] == value and o["name"]), None)
        name = identifier(self.readable(name)) if name else f"{self.values[value]['op']}_{value}"
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        self.names[value] = name
        return name

    def allocate(self, value: int) -> None:
        if value in self.names:
            return
        node = self.values[value]
        order, shape = node["order"], node["shape"]
        arguments = f"dtype={_DTYPES[node['dtype']]}, device=device"
        name = self.new_name(value)
        if list(order) in ([], list(range(len(shape)))):
            self.lines.append(f"{name} = torch.empty({self.sizes(shape)}, {arguments})")
        else:
            back = ", ".join(str(list(order).index(d)) for d in range(len(shape)))
            lying = self.sizes([shape[d] for d in order])
            self.lines.append(f"{name} = torch.empty({lying}, {arguments}).permute({back})")

    def write_step(self, step: tuple) -> None:
        call, kernel, release = step
        if call >= 0:
            self._library(call)
        else:
            self._kernel(self.plan["kernels"][kernel])
        outputs = {o["value"] for o in self.plan["outputs"]}
        gone = [self.names[v] for v in release if v in self.names and v not in self.inputs and v not in outputs]
        if gone:
            self.lines.append("del " + ", ".join(dict.fromkeys(gone)))

    def _kernel(self, kernel: dict) -> None:
        for value, store in kernel["operands"]:
            if store:
                self.allocate(value)
        operands = [self.name(value) for value, _ in kernel["operands"]]
        numbers = []
        for source, value in kernel["numbers"]:
            if source == "constant":
                numbers.append(literal(value))
            else:
                numbers.append(self.size(value) if source == "size" else self.names[self.scalars[value]])
        name = self.kernels.add(kernel, self.phase, self.readable)
        sizes = [self.size(text) for text in kernel["sizes"]]
        self.lines.append(f"_kernels().{name}([{', '.join(operands)}], [{', '.join(sizes)}], [{', '.join(numbers)}])")

    def _library(self, value: int) -> None:
        node = self.values[value]
        operands = [self.name(v) for v in node["operands"]]
        attributes = node["attributes"]
        if node["op"] == "matmul":
            function = (
                "torch.addmm" if len(operands) == 3 else "torch.mm" if len(node["shape"]) == 2 else "torch.matmul"
            )
            arguments = [operands[2], *operands[:2]] if len(operands) == 3 else operands
            call = f"{function}({', '.join(arguments)})"
        else:
            settings = [
                str(list(attributes["stride"])), str(list(attributes["padding"])), str(list(attributes["dilation"])),
                str(bool(attributes["transposed"])), str(list(attributes["output_padding"])),
                str(attributes["groups"]),
            ]  # fmt: skip
            if node["op"] == "conv":
                bias = operands[2] if len(operands) == 3 else "None"
                call = f"torch.ops.aten.convolution({operands[0]}, {operands[1]}, {bias}, {', '.join(settings)})"
            else:
                like = f"_shaped({operands[0]}, {self.sizes(node['shape'])}, {attributes['groups']})"
                of_input = node["op"] == "conv_input_grad"
                x, w = (like, operands[1]) if of_input else (operands[1], like)
                mask = "[True, False, False]" if of_input else "[False, True, False]"
                call = (
                    f"torch.ops.aten.convolution_backward({operands[0]}, {x}, {w}, None, {', '.join(settings)}, {mask})"
                    f"[{0 if of_input else 1}]"
                )
        name = self.new_name(value)
        self.lines.append(f"{name} = {call}")

    def result(self, output: dict) -> str:
        """An output as the caller wants it: in its memory order, and never in the memory of an input."""
        value = output["value"]
        name, node = self.name(value), self.values[value]
        root = value
        while self.values[root]["kind"] == "movement":
            root = self.values[root]["operands"][0]
        if self.values[root]["op"] == "input" and not output["name"].startswith("dL_d"):
            name = f"{name}.clone()"
        made_by_kernel = any(v == value and store for kernel in self.plan["kernels"] for v, store in kernel["operands"])
        if made_by_kernel or not (output["differentiable"] or output["order"]) or len(node["shape"]) < 2:
            return name
        order = list(output["order"]) or list(range(len(node["shape"])))
        return f"_in_order({name}, {order})"


class RegionWriter:
    """The text of one region: `run_<name>` for inference and, with gradients, the autograd function around it."""

    def __init__(
        self, name: str, graph, tensors: list[str], scalars: list[str], wanted: list[bool], kernels: Kernels, tf32: bool
    ):
        """tensors, scalars: names of what the region is called with, in this order; wanted: a flag for each tensor."""
        self.name, self.kernels = name, kernels
        self.tensors, self.arguments = tensors, [*tensors, *scalars]
        self.inference = _core.describe_region(graph, [], kernels.cuda, tf32)
        # The core has them in the order in which they were first needed.
        values, inputs = self.inference["forward"]["values"], self.inference["forward"]["inputs"]
        is_tensor = [values[v]["op"] == "input" for v in inputs]
        rest = {True: iter(tensors), False: iter(scalars)}
        self.input_names = [next(rest[kind]) for kind in is_tensor]
        flags = iter(wanted)
        in_order = [next(flags, False) if kind else False for kind in is_tensor]
        self.training = _core.describe_region(graph, in_order, kernels.cuda, tf32) if any(in_order) else None
        self.in_first_mode = True  # of those that were captured, which is what the file's numbers are about
        own = [values[v]["attributes"]["name"] for v in inputs]
        self._words = dict(zip(own, self.input_names, strict=True))
        # Symbols of sizes have other names in every version of PyTorch.
        plans = [self.inference["forward"], *((self.training or {}).get(key) for key in ("forward", "backward"))]
        symbols = dict.fromkeys(symbol[0] for plan in plans if plan for symbol in plan["symbols"])
        self._symbols = {symbol: f"n{number}" for number, symbol in enumerate(symbols)}

    def _named_sizes(self, text: str) -> str:
        return re.sub(r"\b[a-z]+\d+\b", lambda match: self._symbols.get(match[0], match[0]), text)

    def readable(self, text: str) -> str:
        """The text with the user's names of the inputs."""
        text = self._named_sizes(text)
        pattern = "|".join(sorted(map(re.escape, self._words), key=len, reverse=True))
        text = re.sub(rf"\bdL_d({pattern})\b", lambda m: f"dL_d{self._words[m[1]]}", text)
        return re.sub(rf"\b({pattern})\b", lambda m: self._words[m[1]], text)

    def _need(self, graph_input: int) -> str:
        """Whether the gradient of this input of the core's graph is needed."""
        return f"need[{self.arguments.index(self.input_names[graph_input])}]"

    def text(self) -> str:
        arguments = ", ".join(self.arguments)
        lines = [f"def _{self.name}_inference({arguments}):"]
        lines += _indented(self._forward_lines(self.inference, None))
        if self.training is None:
            lines += ["", "", f"def _{self.name}({arguments}):"]
            lines += [f"    _no_gradient({', '.join(self.tensors)})", f"    return _{self.name}_inference({arguments})"]
            return self._named_sizes("\n".join(map(wrapped, lines))) + "\n"
        class_name = "_" + "".join(part.title() for part in self.name.split("_"))
        lines += ["", "", f"class {class_name}(torch.autograd.Function):", "    @staticmethod"]
        lines += [f"    def forward(ctx, {arguments}):"]
        lines += _indented(self._forward_lines(self.training, "ctx"), 2)
        lines += ["", "    @staticmethod", "    @torch.autograd.function.once_differentiable"]
        gradients = self._gradient_names()
        lines += [f"    def backward(ctx, {', '.join(gradients)}):"]
        lines += _indented(self._backward_lines(gradients), 2)
        lines += ["", "", f"def _{self.name}({arguments}):"]
        lines += [
            f"    if torch.is_grad_enabled() and _any_requires_grad({', '.join(self.tensors)}):",
            f"        return {class_name}.apply({arguments})",
            f"    return _{self.name}_inference({arguments})",
        ]
        return self._named_sizes("\n".join(map(wrapped, lines))) + "\n"

    def _returned(self, described: dict) -> list[dict]:
        outputs = described["forward"]["outputs"][: described["user_outputs"] or None]
        return [output for output in outputs if output["into"] < 0]

    def _forward_lines(self, described: dict, ctx: str | None) -> list[str]:
        plan = described["forward"]
        writer = PlanWriter(plan, self.input_names, self.kernels, "forward", self.readable)
        writer.lines.append(f"device = _device_of({self.tensors[0]})")
        writer.write_symbols()
        writer.write_positive([text for text in described["positive"] if text not in plan["positive"]])
        writer.lines += [f"_more_than_one({size_code(text)})" for text in dict.fromkeys(described["counts"])]
        for step in plan["steps"]:
            writer.write_step(step)
        for position, output in enumerate(plan["outputs"]):
            if output["into"] >= 0 and position not in plan["in_place"]:
                buffer = writer.names[plan["inputs"][output["into"]]]
                writer.lines.append(f"{buffer}.copy_({writer.name(output['value'])})")
        users = described["user_outputs"] if ctx else len(plan["outputs"])
        results: dict[int, str] = {}
        for position, output in enumerate(plan["outputs"]):
            if output["into"] >= 0:
                continue
            text = writer.result(output)
            if not text.isidentifier():
                name = f"result_{position}"
                writer.lines.append(f"{name} = {text}")
                text = name
            results[position] = text
        if ctx:
            self._write_saving(described, writer, results)
        returned = [results[p] for p, o in enumerate(plan["outputs"][:users]) if o["into"] < 0]
        if ctx:
            constant = [
                results[p]
                for p, o in enumerate(plan["outputs"][:users])
                if o["into"] < 0 and p not in described["gradient_of_output"]
            ]
            if constant:
                writer.lines.append(f"ctx.mark_non_differentiable({', '.join(constant)})")
        writer.lines.append(f"return {_tuple(returned)}")
        return writer.finished()

    def _write_saving(self, described: dict, writer: PlanWriter, results: dict[int, str]) -> None:
        plan = described["forward"]
        saved, scalars = [], []
        for is_input, index, sizes_only in described["saved"]:
            if not is_input:
                saved.append(results.get(index) or writer.name(plan["outputs"][index]["value"]))
            elif plan["values"][plan["inputs"][index]]["op"] == "scalar_input":
                scalars.append(self.input_names[index])
            else:
                name = self.input_names[index]
                saved.append(f"_sizes_of({name})" if sizes_only else name)
        writer.lines.append(f"ctx.save_for_backward({', '.join(saved)})")
        if scalars:
            writer.lines.append(f"ctx.scalars = {_tuple(scalars)}")

    def _gradient_names(self) -> list[str]:
        described = self.training
        plan = described["backward"]
        given = plan["inputs"][len(described["saved"]) :]
        names = {}
        for output, value in zip(described["gradient_of_output"], given, strict=True):
            names[output] = identifier(plan["values"][value]["attributes"]["name"])
        outputs = described["forward"]["outputs"][: described["user_outputs"]]
        return [names.get(p, f"_unused_{p}") for p, o in enumerate(outputs) if o["into"] < 0]

    def _backward_lines(self, gradients: list[str]) -> list[str]:
        described, plan = self.training, self.training["backward"]
        forward_values, forward_inputs = described["forward"]["values"], described["forward"]["inputs"]
        names, saved, scalars = [], [], []
        for is_input, index, _ in described["saved"]:
            scalar = is_input and forward_values[forward_inputs[index]]["op"] == "scalar_input"
            name = self.input_names[index] if is_input else f"saved_{len(names)}"
            (scalars if scalar else saved).append(name)
            names.append(name)
        given = plan["inputs"][len(names) :]
        names += [identifier(plan["values"][v]["attributes"]["name"]) for v in given]
        writer = PlanWriter(plan, names, self.kernels, "backward", self.readable)
        first = given[0] if given else None
        if saved:
            writer.lines.append(f"{_tuple(saved)} = ctx.saved_tensors")
        if scalars:
            writer.lines.append(f"{_tuple(scalars)} = ctx.scalars")
        writer.lines.append("need = ctx.needs_input_grad")
        missing = [
            (i, name)
            for i, name in enumerate(self.input_names)
            if i not in described["gradient_for_input"]
            and forward_values[forward_inputs[i]]["op"] == "input"
            and forward_values[forward_inputs[i]]["dtype"] in ("f16", "bf16", "f32", "f64")
        ]
        for i, name in missing:
            writer.lines.append(f"_no_such_gradient({self._need(i)}, {name!r})")
        writer.lines.append(f"device = {writer.names[first]}.device")
        writer.write_symbols()
        conditions = self._conditions(plan)
        for step, needed in zip(plan["steps"], conditions, strict=True):
            begin, known = len(writer.lines), set(writer.names)
            writer.write_step(step)
            if needed is not None:
                test = " or ".join(self._need(described["gradient_for_input"][o]) for o in needed)
                writer.lines[begin:] = [f"if {test}:", *_indented(writer.lines[begin:])]
                writer.forget_views(known)
        by_name = {self.input_names[i]: (i, o) for o, i in enumerate(described["gradient_for_input"])}
        returned = []
        for name in self.arguments:
            if name not in by_name:
                returned.append("None")
                continue
            i, output = by_name[name]
            lines_before = len(writer.lines)
            text = writer.result(plan["outputs"][output])
            made = writer.lines[lines_before:]
            if made:
                writer.lines[lines_before:] = [f"if {self._need(i)}:", *_indented(made)]
            returned.append(f"{text} if {self._need(i)} else None")
        writer.lines.append("return (")
        writer.lines += [f"    {text}," for text in returned]
        writer.lines.append(")")
        return writer.finished()

    @staticmethod
    def _conditions(plan: dict) -> list[list[int] | None]:
        """For each step, the outputs that need it; None: all of them."""
        values, outputs = plan["values"], [o["value"] for o in plan["outputs"]]
        needs: dict[int, set[int]] = {}

        def mark(value: int, wanted: set[int]) -> None:
            needs.setdefault(value, set()).update(wanted)
            if values[value]["kind"] == "movement":
                mark(values[value]["operands"][0], wanted)

        for number, value in enumerate(outputs):
            mark(value, {number})
        found: list[list[int] | None] = []
        for call, kernel, _ in reversed(plan["steps"]):
            if call >= 0:
                made, read = [call], values[call]["operands"]
            else:
                operands = plan["kernels"][kernel]["operands"]
                made = [v for v, store in operands if store]
                read = [v for v, store in operands if not store]
            wanted = set().union(*(needs.get(v, set()) for v in made))
            for value in read:
                mark(value, wanted)
            found.append(None if len(wanted) == len(outputs) else sorted(wanted))
        return found[::-1]


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


def _indented(lines: list[str], levels: int = 1) -> list[str]:
    return ["    " * levels + line if line else "" for line in lines]
