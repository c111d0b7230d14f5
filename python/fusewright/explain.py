"""explain: what became of a model's operators, taken from the plans that really run."""

from __future__ import annotations

import contextlib
import random
import sys
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch.utils import _pytree as pytree

from . import reasons
from .capture.backend import Fallback, Session, Stop
from .capture.capture import capture
from .capture.outline import OPERATOR, VIEW, Operator, Outline
from .optimize import function_name, is_optimized, restore, session_of


@dataclass
class Kernel:
    """A generated kernel: what it computes, what it moves, and where it comes from."""

    name: str
    phase: str  # forward or backward
    operators: list[str]
    schedule: str
    bytes_read: int
    bytes_written: int
    sources: list[str]
    text: str = field(repr=False, default="")
    region: str = ""
    step: int = 0  # its place among the kernels and library calls of its region and phase
    operations: int = 0  # on numbers: one an element, a term of a sum, a tap of a window
    reads: list[tuple[int, int]] = field(default_factory=list)  # tensors: (number within region and phase, bytes)
    writes: list[tuple[int, int]] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)  # numbers of its operators, within the region


# The ranges that profilers show where kernels of our own compute a contraction, by schedule.
OWN_CONTRACTIONS = {"matrix_product": ("fw_matmul",), "convolution": ("fw_conv", "fw_conv_weight")}


@dataclass
class LibraryCall:
    """An operator inside a region that PyTorch's own library computes, or kernels that stand for it."""

    operator: str
    phase: str
    shapes: object
    schedule: str = "library"  # or `matrix_product`, `convolution`: kernels of our own where they are faster
    region: str = ""
    step: int = 0
    operations: int = 0  # two for each product
    reads: list[tuple[int, int]] = field(default_factory=list)
    writes: list[tuple[int, int]] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    source: str = ""

    @property
    def name(self) -> str:
        return self.operator

    @property
    def computed_by(self) -> str:
        own = OWN_CONTRACTIONS.get(self.schedule)
        return self.operator if own is None else f"{self.operator}, or {own[0]} where that is faster"

    @property
    def bytes_read(self) -> int:
        return sum(size for _, size in self.reads)

    @property
    def bytes_written(self) -> int:
        return sum(size for _, size in self.writes)


@dataclass
class Tensors:
    """How the tensors of a region's forward and backward hang together; the numbers are those of `Kernel.reads`."""

    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    saved: list[tuple[int, int]] = field(default_factory=list)  # (in the backward, in the forward)
    gradients: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Saving:
    """What a rewrite did to the amount of arithmetic: operations with it, and with the same plan made without it."""

    rule: str
    operations: int
    without: int


STOP_HEADER = ("reason", "operator", "result", "what happened", "line")
FUSED, IN_LIBRARY, IS_VIEW, OUTSIDE = "fused", "library", "view", "outside"


@dataclass(frozen=True)
class Fate:
    """What became of one operator of the captured graph: fused into kernels, a call of the library inside a region, a
    view (which costs nothing), or outside, with the reason."""

    operator: Operator
    what: str
    where: str  # kernels of the forward, or the reason


@dataclass
class Explanation:
    """What `explain` found. `str()` of it is a readable page."""

    name: str
    kernels: list[Kernel] = field(default_factory=list)
    library: list[LibraryCall] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    rewrites: list = field(default_factory=list)
    stops: list = field(default_factory=list)
    regions: list[str] = field(default_factory=list)  # the text of each region's graph
    graphs: int = 0  # graphs that Dynamo captured: more than one after a graph break
    tensors: dict[str, Tensors] = field(default_factory=dict)  # by name of the region
    savings: list[Saving] = field(default_factory=list)
    outlines: list[Outline] = field(default_factory=list)  # the captured graphs, operator by operator

    @property
    def steps(self) -> list[Kernel | LibraryCall]:
        """Kernels and library calls in the order in which they run, the backward's regions last to first."""
        regions = {name: number for number, name in enumerate(self.tensors)}

        def place(step: Kernel | LibraryCall) -> tuple:
            backward = step.phase == "backward"
            return backward, -regions[step.region] if backward else regions[step.region], step.step

        return sorted((*self.kernels, *self.library), key=place)

    @property
    def stops_to_show(self) -> list[tuple[str, str, str, str, str]]:
        """Rows for `STOP_HEADER`: a place where fusion stopped once, with the sizes of all results there. Library calls
        are in a table of their own."""
        found: dict[tuple, dict[str, None]] = {}
        for stop in self.stops:
            if stop["reason"] != "library_call":
                place = (stop["reason"], stop["operator"], stop["detail"], stop["source"])
                found.setdefault(place, {})[_sizes(stop["shape"])] = None
        return [(reason, name, ", ".join(sizes), *rest) for (reason, name, *rest), sizes in found.items()]

    @property
    def fates(self) -> list[Fate]:
        """Every operator of the captured graphs, once."""
        return [
            self._fate(entry)
            for outline in self.outlines
            for entry in outline.operators
            if entry.kind in (VIEW, OPERATOR)
        ]

    def _fate(self, entry: Operator) -> Fate:
        if entry.kind == VIEW:
            return Fate(entry, IS_VIEW, "")
        if not entry.region:
            return Fate(entry, OUTSIDE, entry.reason)
        mine = [s for s in self.steps if (s.phase, s.region) == ("forward", entry.region) and entry.origin in s.origins]
        in_library = any(isinstance(step, LibraryCall) for step in mine)
        return Fate(entry, IN_LIBRARY if in_library else FUSED, ", ".join(step.name for step in mine))

    def __str__(self) -> str:
        lines = [f"{self.name}: {_count(self.graphs, 'graph')}, {_count(len(self.regions), 'fused region')}"]
        fates = self.fates
        if fates:
            kinds = Counter(fate.what for fate in fates)
            total = ", ".join(f"{kinds[what]} {what}" for what in (FUSED, IN_LIBRARY, IS_VIEW, OUTSIDE) if kinds[what])
            lines += ["", f"{_count(len(fates), 'operator')}: {total}"]
            rows = [(f.operator.name, _sizes(f.operator.shape), f.what, f.where, f.operator.source) for f in fates]
            lines += table(("operator", "result", "became", "where or why", "line"), rows)
        for phase in dict.fromkeys(kernel.phase for kernel in self.kernels):
            kernels = [kernel for kernel in self.kernels if kernel.phase == phase]
            lines += ["", f"{phase}: {_count(len(kernels), 'kernel')}"]
            rows = [
                (k.name, k.schedule, _bytes(k.bytes_read), _bytes(k.bytes_written), " ".join(k.operators))
                for k in kernels
            ]
            lines += table(("kernel", "schedule", "read", "written", "operators"), rows)
        if self.library:
            lines += ["", "library calls"]
            lines += table(
                ("operator", "phase", "shapes"), [(c.computed_by, c.phase, str(c.shapes)) for c in self.library]
            )
        if self.rewrites:
            lines += ["", "rewrites", *(f"  {rewrite}" for rewrite in self.rewrites)]
        if stops := self.stops_to_show:
            lines += ["", "where fusion stopped", *table(STOP_HEADER, stops)]
        left = sum(fate.what == OUTSIDE for fate in fates)
        listed = f"{_count(left, 'operator')}, with the reason above" if left else "nothing"
        lines += ["", "outside" if self.fallbacks else f"outside: {listed}"]
        rows = [(f.operator or "graph", f.shapes, f.dtype, f.reason, f.source or f.detail) for f in self.fallbacks]
        lines += table(("operator", "shapes", "dtype", "reason", "where"), rows) if rows else []
        return "\n".join(lines)


def explain(model, *inputs, **kwargs) -> Explanation:
    """Explain how the model (a module or function, optimised or not) would run on these inputs.

    Compiles what a call would compile, but moves no buffer, gradient or random generator. A model that Dynamo
    captures whole is not run at all; one with graph breaks is run once, on copies of the inputs, and its state is put
    back.
    """
    if not callable(model):
        raise TypeError(f"explain: expected a torch.nn.Module or a function, got a {type(model).__name__}")
    is_module = isinstance(model, torch.nn.Module)
    name = type(model).__name__ if is_module else function_name(model)
    target = model._call_impl if is_module else restore(model) if is_optimized(model) else model
    with unchanged(model):
        only_gains = session_of(model).only_gains if is_optimized(model) else True
        session = _captured(target, name, inputs, kwargs, only_gains, run=False)
        if not session.complete:
            inputs, kwargs = pytree.tree_map_only(torch.Tensor, _copy, (inputs, kwargs))
            session = _captured(target, name, inputs, kwargs, only_gains, run=True)
    return _explanation(name, session)


def _captured(target, name: str, inputs: tuple, kwargs: dict, only_gains: bool, run: bool) -> Session:
    session = Session(name, record=True)
    session.run, session.only_gains = run, only_gains
    with contextlib.suppress(Stop):
        capture(target, session, None)(*inputs, **kwargs)
    return session


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


@contextlib.contextmanager
def unchanged(model):
    """Put back everything that a forward call can move: random generators, buffers, attributes, gradients."""
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    attributes = [(m.__dict__, dict(m.__dict__)) for m in modules]
    tables = [(t, dict(t)) for m in modules for t in (m._parameters, m._buffers, m._modules)]
    buffers = [(b, b._version, b.detach().clone()) for m in modules for b in m._buffers.values() if b is not None]
    gradients = [(p, p.grad) for m in modules for p in m._parameters.values() if p is not None]
    python_state, numpy = random.getstate(), sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    try:
        # Named, so that no GPU is woken that nobody uses.
        gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
        with torch.random.fork_rng(devices=gpus):
            yield
    finally:
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)
        for current, saved in (*attributes, *tables):
            if _differs(current, saved):
                current.clear()
                current.update(saved)
        with torch.no_grad():
            for buffer, version, saved in buffers:
                if buffer._version != version:
                    buffer.copy_(saved)
        for parameter, gradient in gradients:
            if parameter.grad is not gradient:
                parameter.grad = gradient


def _differs(current: dict, saved: dict) -> bool:
    return current.keys() != saved.keys() or any(current[key] is not saved[key] for key in saved)


def _explanation(name: str, session: Session) -> Explanation:
    result = Explanation(name, fallbacks=list(session.failures), graphs=len(session.captured))
    for captured in session.captured:
        result.fallbacks += captured.fallbacks
        result.outlines += [captured.outline] if captured.outline else []
        for region, wanted in zip(captured.regions, captured.wanted, strict=True):
            report = region.compiled.report(wanted)
            result.regions.append(str(region.imported.graph))
            result.tensors[region.name] = Tensors(**report.get("tensors", {}))
            result.kernels += [_row(Kernel, row, region.name) for row in report["kernels"]]
            result.library += [_row(LibraryCall, row, region.name) for row in report["library"]]
            if report.get("slower_than_eager"):
                result.fallbacks.append(Fallback(f"region {region.name}", "", "", reasons.SLOWER, ""))
            result.rewrites += report["rewrites"]
            for rule in dict.fromkeys(report["rewrites"]):
                result.savings.append(Saving(rule, *region.compiled.operations_saved(wanted, {rule})))
            result.stops += report["stops"]
    return result


def _row(kind: type, row: dict, region: str) -> Kernel | LibraryCall:
    known = kind.__dataclass_fields__
    return kind(**{key: value for key, value in row.items() if key in known}, region=region)


def kernel_bytes(explanation: Explanation) -> int:
    """What all kernels move."""
    return sum(kernel.bytes_read + kernel.bytes_written for kernel in explanation.kernels)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _bytes(number: int) -> str:
    value, units = float(number), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.3g} {units[0]}"


def _sizes(shape: list[int]) -> str:
    return "x".join(map(str, shape)) or "()"


def table(header: tuple, rows: list[tuple]) -> list[str]:
    rows = [tuple(str(cell) for cell in row) for row in (header, *rows)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
