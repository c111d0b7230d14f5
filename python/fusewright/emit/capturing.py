"""A model -> its whole graph with regions, and what that graph takes for granted."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field

import torch
import torch._dynamo
from torch import fx, nn
from torch.fx.experimental import _config as _symbolic_shapes

from ..capture.backend import Captured, Session
from ..capture.capture import capture
from ..capture.normalize import source_name
from ..errors import InputError
from ..explain import unchanged
from ..models import ModelFile, describe, user_code

_ARGUMENT = re.compile(r"(?:L\['args'\]|args)\[(\d+)\]")
_PLAIN = (bool, int, float, str, type(None))


@dataclass
class Capture:
    """One mode of a model as Dynamo saw it."""

    captured: Captured
    arguments: list[str | None]  # an expression for each placeholder; None: a size
    results: str  # an expression over `results`
    expectations: dict[str, object] = field(default_factory=dict)  # attributes that became part of the graph
    settings: list[tuple[str, str]] = field(default_factory=list)  # attributes that a call sets, and to what
    size_guards: list = field(default_factory=list)  # relations between sizes that hold for it
    given: int = 0  # inputs of the call
    requires_grad: list[bool] = field(default_factory=list)  # for each placeholder of its graph


class _EmitSession(Session):
    """Calls the captured graph once without computing anything: what goes in, and where the call puts what comes out,
    tells where each tensor belongs."""

    def __init__(self, name: str):
        super().__init__(name, record=True)
        self.run, self.guards = True, []
        self.arguments: tuple = ()
        self.outputs: tuple = ()
        self.sources: list[str] = []  # where Dynamo found each argument
        self.reasons: list[str] = []
        # Numbers of the model are part of the graph, and are checked when it runs.
        self.settings = {"specialize_float": True, "allow_unspec_int_on_nn_module": False}

    def instead_of(self, gm: fx.GraphModule, fused):
        super().instead_of(gm, fused)
        reason = getattr(gm, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            self.reasons.append(_describe_break(reason))

        self.sources = [source_name(node) for node in gm.graph.nodes if node.op == "placeholder"]
        values = next(node for node in reversed(gm.graph.nodes) if node.op == "output").args[0]

        def stand_in(*args):
            self.arguments, self.outputs = args, tuple(_stand_in(value, args) for value in values)
            return self.outputs

        return stand_in


def _stand_in(value: object, args: tuple) -> object:
    """Something in the place of a result, or the input that is handed through."""
    if not isinstance(value, fx.Node):
        return value
    if value.op == "placeholder":
        placeholders = [node for node in value.graph.nodes if node.op == "placeholder"]
        return args[placeholders.index(value)]
    example = value.meta.get("example_value")
    if isinstance(example, torch.Tensor):
        return torch.empty((), dtype=example.dtype)
    raise InputError(f"a number that the model computes ({value.name}) is one of its results")


def _describe_break(reason) -> str:
    lines = [line.strip() for line in str(reason.reason).splitlines() if line.strip()]
    stack = getattr(reason, "user_stack", None) or []
    where = f" at {stack[-1].filename.rpartition('/')[2]}:{stack[-1].lineno}: {stack[-1].line}" if stack else ""
    return (lines[0] if lines else "graph break") + where


def capture_model(file: ModelFile, model: nn.Module, inputs: list, training: bool) -> Capture:
    """The model's graph for inputs of any size. Graph breaks and what cannot be written down are refused."""
    if not tells_guards():
        raise InputError(f"torch {torch.__version__} does not tell what a captured graph depends on: emit needs 2.7")
    names = _parameter_names(model, inputs, file)
    session = _EmitSession(type(model).__name__)
    places = _places(model, inputs, names)
    before = {name: _state(module) for name, module in model.named_modules()}
    # Sizes that happen to be equal in the example need not be equal in other calls.
    with torch.set_grad_enabled(training), _symbolic_shapes.patch(use_duck_shape=False), unchanged(model):
        with user_code(file.path, f"{type(model).__name__} called with {describe(inputs)}"):
            output = capture(model._call_impl, session, True)(*inputs)
        set_by_call = [
            (prefix, name, value)
            for prefix, module in model.named_modules()
            for name, value in _state(module).items()
            if value is not before[prefix].get(name)
        ]
    if session.failures:
        raise InputError(f"{file.path}: Dynamo cannot capture the model: {session.failures[0].detail}")
    if not session.complete or len(session.captured) != 1:
        why = session.reasons[0] if session.reasons else "Dynamo left the model in pieces"
        raise InputError(f"{file.path}: graph break: {why}; an emitted file holds one whole graph")
    captured = session.captured[0]
    if captured.module is None:
        why = "; ".join(map(str, captured.fallbacks)) or "it has no operators that could be fused"
        raise InputError(f"{file.path}: nothing in the model can be fused: {why}")
    arguments = []
    for value, source in zip(session.arguments, session.sources, strict=True):
        if isinstance(value, torch.Tensor) and id(value) not in places:
            raise InputError(f"{file.path}: a tensor of the graph is neither the model's nor an input: {_show(value)}")
        number = _ARGUMENT.fullmatch(source)
        if isinstance(value, torch.Tensor):
            arguments.append(places[id(value)])
        else:
            arguments.append(names[int(number[1])] if number else None)
    leaves = {id(value): f"results[{i}]" for i, value in enumerate(session.outputs) if isinstance(value, torch.Tensor)}
    places |= leaves
    settings = []
    for prefix, name, value in set_by_call:
        if id(value) not in places:
            raise InputError(
                f"{file.path}: forward sets {_attribute_of(prefix, name)}, and not to a tensor of the graph"
            )
        settings.append((_attribute_of(prefix, name), places[id(value)]))
    return Capture(
        captured,
        arguments,
        _structure(output, places, file),
        _expectations(session.guards, model, names),
        settings,
        _size_guards(captured.module),
        len(inputs),
        [isinstance(value, torch.Tensor) and value.requires_grad for value in session.arguments],
    )


def _state(module: nn.Module) -> dict[str, object]:
    """What `forward` may set: buffers and plain attributes."""
    tables = ("_parameters", "_buffers", "_modules")
    return {**{name: value for name, value in vars(module).items() if name not in tables}, **module._buffers}


def _size_guards(module: fx.GraphModule) -> list:
    for node in module.graph.nodes:
        sizes = getattr(node.meta.get("val"), "shape", ()) if node.op == "placeholder" else ()
        for size in sizes:
            if isinstance(size, torch.SymInt):
                guards = dict.fromkeys(g.expr for g in size.node.shape_env.guards if _asked_by_code(g))
                return [guard for guard in guards if getattr(guard, "is_Relational", False)]
    return []


def _asked_by_code(guard) -> bool:
    """Whether Python code of the model asked, and not an operator that chooses strides: kernels serve those sizes, too,
    or refuse them."""
    place = getattr(getattr(guard, "sloc", None), "framework_loc", None)
    return "/_dynamo/" in str(getattr(place, "filename", place))


def tells_guards() -> bool:
    """Whether this version of Dynamo says which attributes and sizes a capture takes for granted."""
    return "guard_filter_fn" in inspect.signature(torch._dynamo.eval_frame._optimize).parameters


def _show(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _parameter_names(model: nn.Module, inputs: list, file: ModelFile) -> list[str]:
    """The parameters of `forward` that the inputs go to."""
    parameters = list(inspect.signature(model.forward).parameters.values())
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        raise InputError(f"{file.path}: forward takes *args or **kwargs: name its parameters")
    if len(inputs) > len(parameters):
        raise InputError(f"{file.path}: forward takes {len(parameters)} arguments, but {len(inputs)} inputs are given")
    return [p.name for p in parameters[: len(inputs)]]


def _places(model: nn.Module, inputs: list, names: list[str]) -> dict[int, str]:
    """Where each tensor is found when ModelNew runs."""
    found: dict[int, str] = {}

    def add(value: object, text: str) -> None:
        if isinstance(value, torch.Tensor):
            found.setdefault(id(value), text)
        elif isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                add(item, f"{text}[{i}]")
        elif isinstance(value, dict):
            for key, item in value.items():
                add(item, f"{text}[{key!r}]")

    for value, name in zip(inputs, names, strict=True):
        add(value, name)
    for prefix, module in model.named_modules():
        for table in (module._parameters, module._buffers, vars(module)):
            for name, value in table.items():
                if isinstance(value, torch.Tensor):
                    add(value, _attribute_of(prefix, name))
    return found


def _attribute_of(prefix: str, name: str) -> str:
    owner = path_of(prefix)
    return f"{owner}.{name}" if name.isidentifier() else f"getattr({owner}, {name!r})"


def path_of(prefix: str) -> str:
    """A submodule's dotted name as an expression: `self.layers._modules["0"].norm`."""
    text = "self"
    for part in prefix.split(".") if prefix else []:
        text += f".{part}" if part.isidentifier() else f'._modules["{part}"]'
    return text


def _structure(value: object, places: dict[int, str], file: ModelFile) -> str:
    """The model's output, put together from the graph's results."""
    if isinstance(value, torch.Tensor):
        if id(value) not in places:
            raise InputError(f"{file.path}: an output is no result of the graph")
        return places[id(value)]
    if isinstance(value, _PLAIN):
        return repr(value)
    if type(value) in (tuple, list):
        items = [_structure(item, places, file) for item in value]
        if type(value) is list:
            return f"[{', '.join(items)}]"
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if type(value) is dict:
        return "{" + ", ".join(f"{k!r}: {_structure(v, places, file)}" for k, v in value.items()) + "}"
    raise InputError(f"{file.path}: an output of type {type(value).__name__} cannot be written down")


def _expectations(guards: list, model: nn.Module, names: list[str]) -> dict[str, object]:
    """Numbers, flags and names that the graph was captured for, by the expression that finds them again."""
    found: dict[str, object] = {}
    for entry in guards:
        value = entry.value
        plain = isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(isinstance(v, _PLAIN) for v in value))
        if not entry.has_value or not plain:
            continue
        text = re.sub(r"\bL\['(\w+)'\]", r"\1", entry.name)
        if text.startswith("target.__self__."):
            path = re.sub(
                r"\._(?:modules|parameters|buffers)\['(\w+)'\]", _attribute, text.removeprefix("target.__self__")
            )
            found.setdefault(f"self{path}", value)
        elif match := _ARGUMENT.fullmatch(text):
            found.setdefault(names[int(match[1])], value)
    return found


def _attribute(match: re.Match) -> str:
    return f".{match[1]}" if match[1].isidentifier() else f'._modules["{match[1]}"]'
