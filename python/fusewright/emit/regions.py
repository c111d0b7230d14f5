"""One region of a captured graph -> the Python that runs it: a function for inference, an autograd function for
training, straight down the steps of the library's plans."""

from __future__ import annotations

import re

from .. import _core
from .kernels import Kernels
from .plans import PlanWriter
from .texts import as_tuple, identifier, indented, size_code, wrapped

_HARDLY_MORE = 1.04  # times the bytes that kernels move


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
        self.wanted = in_order
        self.training = _core.describe_region(graph, in_order, kernels.cuda, tf32) if any(in_order) else None
        if self.training and self.training["backward"] is None:
            self.training = None  # no path leads to any of them
        self._unify_forward()
        self.in_first_mode = True  # of those that were captured, which is what the file's numbers are about
        own = [values[v]["attributes"]["name"] for v in inputs]
        self._words = dict(zip(own, self.input_names, strict=True))
        # Symbols of sizes have other names in every version of PyTorch.
        plans = [self.inference["forward"], *((self.training or {}).get(key) for key in ("forward", "backward"))]
        symbols = dict.fromkeys(symbol[0] for plan in plans if plan for symbol in plan["symbols"])
        self._symbols = {symbol: f"n{number}" for number, symbol in enumerate(symbols)}

    def _unify_forward(self) -> None:
        """Without gradients, too, the kernels of training run where these write hardly more: a file has one of each."""
        if self.training is None:
            return
        plans = [self.inference["forward"], self.training["forward"]]
        moved = [sum(k["bytes_read"] + k["bytes_written"] for k in plan["kernels"]) for plan in plans]
        calls = [[plan["values"][call]["op"] for call, *_ in plan["steps"] if call >= 0] for plan in plans]
        if calls[0] == calls[1] and moved[1] <= _HARDLY_MORE * moved[0]:
            self.inference = {**self.training, **{key: self.inference[key] for key in ("positive", "counts")}}

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
        lines += indented(self._forward_lines(self.inference, None))
        if self.training is None:
            lines += ["", "", f"def _{self.name}({arguments}):"]
            if not any(self.wanted):
                lines.append(f"    _no_gradient({', '.join(self.tensors)})")
            lines.append(f"    return _{self.name}_inference({arguments})")
            return self._named_sizes("\n".join(map(wrapped, lines))) + "\n"
        class_name = "_" + "".join(part.title() for part in self.name.split("_"))
        lines += ["", "", f"class {class_name}(torch.autograd.Function):", "    @staticmethod"]
        lines += [f"    def forward(ctx, {arguments}):"]
        lines += indented(self._forward_lines(self.training, "ctx"), 2)
        lines += ["", "    @staticmethod"]
        gradients = self._gradient_names()
        lines += [f"    def backward(ctx, {', '.join(gradients)}):", "        _first_derivatives_only()"]
        lines += indented(self._backward_lines(gradients), 2)
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
        users = described["user_outputs"] or len(plan["outputs"])
        wanted = {output["value"] for output in plan["outputs"][: None if ctx else users]}
        for step in writer.forget(writer.kept - wanted):
            writer.write_step(step)
        for position, output in enumerate(plan["outputs"]):
            if output["into"] >= 0 and position not in plan["in_place"]:
                buffer = writer.names[plan["inputs"][output["into"]]]
                writer.lines.append(f"{buffer}.copy_({writer.name(output['value'])})")
        results: dict[int, str] = {}
        for position, output in enumerate(plan["outputs"]):
            if output["into"] >= 0 or output["value"] not in wanted:
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
        if ctx and self._heads():
            tracked = ", ".join(results[p] for p in described["gradient_of_output"])
            writer.lines += ["ctx.set_materialize_grads(False)", f"ctx.results = _kinds_of({tracked})"]
        if ctx:
            constant = [
                results[p]
                for p, o in enumerate(plan["outputs"][:users])
                if o["into"] < 0 and p not in described["gradient_of_output"]
            ]
            if constant:
                writer.lines.append(f"ctx.mark_non_differentiable({', '.join(constant)})")
        writer.lines.append(f"return {as_tuple(returned)}")
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
            writer.lines.append(f"ctx.scalars = {as_tuple(scalars)}")

    def _gradient_names(self) -> list[str]:
        described = self.training
        plan = described["backward"]
        given = plan["inputs"][len(described["saved"]) :]
        names = {}
        for output, value in zip(described["gradient_of_output"], given, strict=True):
            names[output] = identifier(plan["values"][value]["attributes"]["name"])
        outputs = described["forward"]["outputs"][: described["user_outputs"]]
        return [names.get(p, f"_unused_{p}") for p, o in enumerate(outputs) if o["into"] < 0]

    def _heads(self) -> dict[int, list[int]]:
        """For each argument the results with a gradient that it leads to, where that is not all of them to each: what
        leads only to results that nobody uses has no gradient."""
        described, leads = self.training, self.training["leads_to"]
        if all(map(all, leads)):
            return {}
        return {
            self.arguments.index(self.input_names[i]): [k for k, reached in enumerate(to) if reached]
            for i, to in zip(described["gradient_for_input"], leads, strict=True)
        }

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
            writer.lines.append(f"{as_tuple(saved)} = ctx.saved_tensors")
        if scalars:
            writer.lines.append(f"{as_tuple(scalars)} = ctx.scalars")
        if heads := self._heads():
            tracked = ", ".join(writer.names[v] for v in given)
            writer.lines += [
                f"need = _needed(ctx.needs_input_grad, {heads}, {tracked})",
                f"{tracked} = _or_zeros(ctx.results, {tracked})",
            ]
        else:
            writer.lines.append("need = ctx.needs_input_grad")
        missing = [
            (i, name)
            for i, name in enumerate(self.input_names)
            if not self.wanted[i]
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
                writer.lines[begin:] = [f"if {test}:", *indented(writer.lines[begin:])]
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
                writer.lines[lines_before:] = [f"if {self._need(i)}:", *indented(made)]
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
