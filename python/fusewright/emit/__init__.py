"""emit: a model as one Python file that needs PyTorch and nothing else (docs/emit.md)."""

from __future__ import annotations

import ast
import copy
import re
from dataclasses import dataclass, field

import torch

from ..capture.importer import Imported
from ..capture.sizes import size_text_of
from ..errors import InputError
from ..models import ModelFile, describe, is_float_tensor
from .capturing import Capture, capture_model
from .explanation import bytes_outside, eager_bytes, explanation
from .graph import GraphWriter
from .kernels import Kernels
from .measuring import measured
from .page import extension_section, helpers, kernels_section
from .plans import is_short_sum
from .regions import RegionWriter
from .source import UserSource
from .texts import identifier, literal, size_code, wrapped

NEW_NAME = "ModelNew"


@dataclass
class Emitted:
    """A written model: the text of its file, and what is in it."""

    text: str
    backend: str
    kernels: list[dict] = field(default_factory=list)
    library: list[str] = field(default_factory=list)
    rewrites: list[tuple[str, str]] = field(default_factory=list)  # name and meaning
    fallbacks: list[str] = field(default_factory=list)
    measured: list[str] = field(default_factory=list)
    training: bool = True
    sizes: str = ""  # of the inputs
    bytes_of_a_step: int = 0  # that kernels move for inputs of those sizes


class _Regions:
    """The regions of all modes; equal ones stand in the file once."""

    def __init__(self, kernels: Kernels, training: bool, tf32: bool):
        self.kernels, self.training, self.tf32 = kernels, training, tf32
        self.writers: list[RegionWriter] = []
        self.texts: list[str] = []

    def add(self, imported: Imported, wanted: list[bool], inputs: list[str], first_mode: bool) -> str:
        """The name of the function for a region that is called with these expressions, tensors first."""
        name = f"region_{len(self.texts)}"
        names, count = _distinct(inputs), len(imported.inputs)
        flags = wanted if self.training else []
        writer = RegionWriter(name, imported.graph, names[:count], names[count:], flags, self.kernels, self.tf32)
        text = writer.text()
        plain = _unnamed(text)
        for number, known in enumerate(self.texts):
            if _unnamed(known) == plain:
                return f"_region_{number}"
        writer.in_first_mode = first_mode
        self.texts.append(text)
        self.writers.append(writer)
        return f"_{name}"


def _unnamed(text: str) -> str:
    return re.sub(r"_region_\d+|_Region\d+", "_region", text)


def _distinct(expressions: list[str]) -> list[str]:
    """Names for what a region reads: `self.linear.weight` is `linear_weight`."""
    names: list[str] = []
    for expression in expressions:
        name = identifier(expression.removeprefix("self."))
        if re.fullmatch(r"(d|g|n|s|u|size|t|need|ctx|torch|device)\d*", name) or name in ("saved", "need"):
            name += "_"
        while name in names:
            name += "_"
        names.append(name)
    return names


def emit(
    file: ModelFile,
    *,
    backend: str,
    training: bool = True,
    arch: tuple[str, ...] = (),
    scale: str = "small",
    seed: int = 0,
    device: torch.device | None = None,
) -> Emitted:
    """Write the model down.

    backend: cuda or cpu, what the file's kernels are for; no GPU is needed here.
    arch: what the extension is built for, like "80" or "90a"; none: the GPUs of the machine that builds it.
    device: where the file is measured against the model; None: nowhere.
    """
    source = UserSource.read(file.path)
    class_name = file.model.__name__
    kernels = Kernels(cuda=backend == "cuda")
    regions = _Regions(kernels, training, torch.backends.cudnn.allow_tf32)
    captures: dict[bool, Capture] = {}
    bodies: dict[bool, list[str]] = {}
    model, inputs = file.build(scale, seed), file.inputs(scale)
    if training:
        inputs = [x.requires_grad_() if is_float_tensor(x) else x for x in inputs]
    for mode in (True, False) if training else (False,):
        captures[mode] = capture_model(file, model.train(mode), inputs, training)
        bodies[mode] = _body(captures[mode], regions, file, len(captures) == 1)
    state = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    parameters = _signature(source, class_name, len(inputs))
    methods = _methods(captures, bodies, parameters, state)
    imports, definitions = source.definitions(class_name)
    new_class = source.model(class_name, NEW_NAME, methods)
    region_text = "\n\n\n".join(text.strip("\n") for text in regions.texts) + "\n"
    extension = extension_section(kernels, list(arch), identifier(file.name))
    emitted = _summary(captures, regions, backend)
    emitted.training, emitted.sizes = training, describe(inputs)
    eager = eager_bytes(model.train(training), inputs, training)
    outside = bytes_outside(captures[training], training)
    sections = [
        *_imports(imports, backend),
        "",
        "",
        *(_section("The model's own definitions", "\n\n\n".join(definitions)) if definitions else []),
        # In the order in which people read it: all of it is there when the model first runs.
        *_section("The model", new_class),
        *_section("Regions: what runs around the kernels, forward and backward", region_text),
        *_section("Kernels", kernels_section(kernels)),
        *_section("Helpers", helpers(region_text + new_class)),
        *_section("How kernels are built and launched: the same for every model", extension),
    ]

    def written() -> str:
        text = "\n".join([*explanation(file, emitted, eager, outside, NEW_NAME), *sections])
        return re.sub(r"\n{4,}", "\n\n\n", text).rstrip("\n") + "\n"

    if device is not None:
        emitted.measured = measured(file, written(), device, scale, seed, training)
    emitted.text = written()
    ast.parse(emitted.text)
    return emitted


def _body(capture: Capture, regions: _Regions, file: ModelFile, first_mode: bool) -> list[str]:
    by_handle = {region.compiled.handle: number for number, region in enumerate(capture.captured.regions)}

    def call(core_region, inputs: list[str]) -> tuple[str, int]:
        number = by_handle[core_region.handle]
        imported = capture.captured.regions[number].imported
        function = regions.add(imported, capture.captured.wanted[number], inputs, first_mode)
        return function, len(imported.outputs) - len(imported.updates)

    writer = GraphWriter(capture.captured.module, capture.arguments, call, str(file.path))
    lines = writer.write()

    def named(text: str) -> str:
        return re.sub(r"\bresults\[(\d+)\]", lambda match: writer.results[int(match[1])], text)

    settings = [f"{path} = {named(value)}" for path, value in capture.settings if path != named(value)]
    return [*_size_checks(capture, writer.sizes), *lines, *settings, f"return {named(capture.results)}"]


def _size_checks(capture: Capture, places: dict) -> list[str]:
    """What Dynamo took for granted of sizes: where the model itself asks for them."""
    lines = []
    for guard in capture.size_guards:
        if not guard.free_symbols <= places.keys():
            continue
        shown = str(guard)
        sides = [size_code(str(size_text_of(side))) for side in (guard.lhs, guard.rhs)]
        text = f"{sides[0]} {guard.rel_op} {sides[1]}"
        for symbol in sorted(guard.free_symbols, key=str):
            text = re.sub(rf"\b{symbol}\b", places[symbol], text)
            shown = re.sub(rf"\b{symbol}\b", places[symbol], shown)
        lines.append(f"_expect_size({text}, {shown!r})")
    return lines


def _signature(source: UserSource, class_name: str, given: int) -> ast.arguments:
    found = source.forward_parameters(class_name)
    if found is None:
        raise InputError(f"{source.path}: {class_name} has no forward of its own: emit the class that defines it")
    if len(found.posonlyargs) + len(found.args) - 1 < given:
        raise InputError(
            f"{source.path}: forward of {class_name} takes fewer positional arguments than there are inputs"
        )
    found = copy.deepcopy(found)
    [*found.posonlyargs, *found.args][0].arg = "self"  # whatever it is there: what is written speaks of self
    return found


def _methods(
    captures: dict[bool, Capture], bodies: dict[bool, list[str]], parameters: ast.arguments, state: list[str]
) -> str:
    signature = ast.unparse(parameters)
    names = [a.arg for a in (*parameters.posonlyargs, *parameters.args)][1:]
    checks = {mode: _checks(captures[mode], parameters) for mode in bodies}
    common = [f"_expect_state(self, {state!r})"]
    without_mode = {mode: [c for c in checks[mode] if ".training" not in c] for mode in checks}
    modes = list(bodies)
    if len(modes) == 2 and bodies[True] == bodies[False] and without_mode[True] == without_mode[False]:
        return _method("forward", signature, [*common, *without_mode[True], *bodies[True]])
    if len(modes) == 1:
        return _method("forward", signature, [*common, *checks[modes[0]], *bodies[modes[0]]])
    plain = ", ".join([*names, *(f"{a.arg}={a.arg}" for a in parameters.kwonlyargs)])
    choose = [
        *common,
        f"return self._forward_training({plain}) if self.training else self._forward_evaluation({plain})",
    ]
    text = _method("forward", signature, choose)
    for mode, name in ((True, "_forward_training"), (False, "_forward_evaluation")):
        text += "\n" + _method(
            name, signature, [*[c for c in checks[mode] if "'self.training'" not in c], *bodies[mode]]
        )
    return text


def _checks(capture: Capture, parameters: ast.arguments) -> list[str]:
    """What must be as it was in the capture: attributes, and parameters that were not given."""
    lines = [f"_expect({path}, {literal(value)}, {path!r})" for path, value in sorted(capture.expectations.items())]
    positional = [*parameters.posonlyargs, *parameters.args][1 + capture.given :]
    defaults = parameters.defaults[len(parameters.defaults) - len(positional) :] if positional else []
    for argument, default in [*zip(positional, defaults, strict=True), *_keyword_defaults(parameters)]:
        lines.append(f"_expect({argument.arg}, {ast.unparse(default)}, {argument.arg!r})")
    return lines


def _keyword_defaults(parameters: ast.arguments) -> list[tuple[ast.arg, ast.expr]]:
    return [(a, d) for a, d in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True) if d is not None]


def _method(name: str, signature: str, lines: list[str]) -> str:
    text = "\n".join(wrapped(" " * 8 + line) for line in lines)
    return f"    def {name}({signature}):\n{text}\n"


def _imports(imports: list[str], backend: str) -> list[str]:
    future = [line for line in imports if line.startswith("from __future__")]
    own = ["import hashlib", "import os" if backend == "cuda" else "import platform"]
    torch_lines = ["import torch", "from torch.utils.cpp_extension import load_inline"]
    users = [line for line in imports if line not in future and line not in torch_lines]
    return [*future, *own, "", *dict.fromkeys([*torch_lines, *users])]


def _section(title: str, text: str) -> list[str]:
    head = f"# {'=' * 12} {title} "
    return [head + "=" * max(4, 116 - len(head)), "", text.strip("\n"), "", ""]


def _summary(captures: dict[bool, Capture], regions: _Regions, backend: str) -> Emitted:
    emitted = Emitted("", backend)
    for kernel in regions.kernels.found.values():
        emitted.kernels.append(
            {
                "name": kernel.name, "phase": kernel.phase, "schedule": kernel.described["schedule"],
                "operators": kernel.described["operators"], "bytes_read": kernel.described["bytes_read"],
                "bytes_written": kernel.described["bytes_written"],
            }
        )  # fmt: skip
    for writer in regions.writers:
        described = writer.training or writer.inference
        emitted.rewrites += [rule for rule in described["rewrites"] if rule not in emitted.rewrites]
        for phase in ("forward", "backward"):
            plan = described[phase]
            if plan is None or not writer.in_first_mode:
                continue
            emitted.bytes_of_a_step += sum(k["bytes_read"] + k["bytes_written"] for k in plan["kernels"])
            for call, kernel, _ in plan["steps"]:
                if call >= 0:
                    emitted.library.append(f"{phase}: {plan['values'][call]['op']}")
                elif is_short_sum(plan["kernels"][kernel], plan["values"]):
                    emitted.library.append(f"{phase}: sum")
    for capture in captures.values():
        lines = [str(fallback) for fallback in capture.captured.fallbacks]
        emitted.fallbacks += [line for line in lines if line not in emitted.fallbacks]
    return emitted
