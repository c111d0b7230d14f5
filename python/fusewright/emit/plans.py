"""One plan of the core -> the lines that run it, straight down its steps."""

from __future__ import annotations

import re

from .kernels import Kernels
from .texts import as_tuple, identifier, literal, size_code

_DTYPES = {
    "f16": "torch.float16", "bf16": "torch.bfloat16", "f32": "torch.float32", "f64": "torch.float64",
    "b8": "torch.bool", "i8": "torch.int8", "u8": "torch.uint8", "i16": "torch.int16", "i32": "torch.int32",
    "i64": "torch.int64",
}  # fmt: skip


_SHORT_SUM = 1 << 20  # bytes at emission: PyTorch adds them up in one launch, too


def is_short_sum(kernel: dict, values: list[dict]) -> bool:
    """Whether PyTorch computes this kernel in the file: one sum of little, and nothing else."""
    stored = [values[value] for value, store in kernel["operands"] if store]
    read = [value for value, store in kernel["operands"] if not store]
    return (
        [node["op"] for node in stored] == ["sum"]
        and stored[0]["operands"] == read
        and stored[0]["dtype"] == values[read[0]]["dtype"] == "f32"
        and kernel["bytes_read"] <= _SHORT_SUM
    )


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
        self.kept = {output["value"] for output in plan["outputs"]}  # to the end of the plan

    def size(self, text: str) -> str:
        return size_code(text)

    def sizes(self, texts: list[str]) -> str:
        return as_tuple([self.size(text) for text in texts]) if texts else "()"

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
        base = node
        while base["kind"] == "movement":
            base = self.values[base["operands"][0]]
        if base["op"] == "constant":  # not one number repeated: a hook may write to a gradient
            arguments = f"dtype={_DTYPES[node['dtype']]}, device=device"
            self.lines.append(f"{name} = torch.zeros({self.sizes(node['shape'])}, {arguments})")
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
        gone = [self.names[v] for v in release if v in self.names and v not in self.inputs | self.kept]
        if gone:
            self.lines.append("del " + ", ".join(dict.fromkeys(gone)))

    def forget(self, saved: set[int]) -> list[tuple]:
        """The steps of a plan whose saved values nobody wants: each is released after the last step that reads it."""
        self.kept -= saved
        last = dict.fromkeys(sorted(saved), 0)
        for number, (call, kernel, _) in enumerate(self.plan["steps"]):
            operands = [v for v, _ in self.plan["kernels"][kernel]["operands"]] if call < 0 else [call]
            for value in operands + (self.values[call]["operands"] if call >= 0 else []):
                while self.values[value]["kind"] == "movement":
                    value = self.values[value]["operands"][0]
                if value in last:
                    last[value] = number
        steps = [(call, kernel, list(release)) for call, kernel, release in self.plan["steps"]]
        for value, number in last.items():
            steps[number][2].append(value)
        return steps

    def _kernel(self, kernel: dict) -> None:
        if is_short_sum(kernel, self.values):
            (source, _), (result, _) = sorted(kernel["operands"], key=lambda operand: operand[1])
            if result not in self.names:  # it is not a buffer that the caller has
                attributes = self.values[result]["attributes"]
                dims, keep = list(attributes["dims"]), bool(attributes["keepdim"])
                source = self.name(source)
                self.lines.append(f"{self.new_name(result)} = torch.sum({source}, {dims}, keepdim={keep})")
                return
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
                like = f"_shaped({operands[0]}, {self.sizes(node['shape'])})"
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
        """An output as the caller wants it: in its memory order, and in memory of its own."""
        value = output["value"]
        name, node = self.name(value), self.values[value]
        if output["borrowed"]:
            name = f"{name}.clone()"
        made_by_kernel = any(v == value and store for kernel in self.plan["kernels"] for v, store in kernel["operands"])
        if made_by_kernel or not (output["differentiable"] or output["order"]) or len(node["shape"]) < 2:
            return name
        order = list(output["order"]) or list(range(len(node["shape"])))
        return f"_in_order({name}, {order})"
