"""Random programs of PyTorch: what graphs of the core cannot hold, against float64.

Writes through views, expanded and missing gradients, hooks that write to gradients, several results, second
derivatives. `python tests/python/programs.py --programs 300 --seed 1` searches; test_programs.py runs a few in every
test. A failure prints its seed, the program, and the shortest program that is still wrong.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.nn.functional as F

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import conftest  # noqa: F401  where the library and the emulator are

import fusewright
from fusewright.capture import partition
from fusewright.judge.oracle import Nudge, as_they_are, judge_runs

# Programs whose gradients are differentiated again. Off until the library has second derivatives.
SECOND_DERIVATIVES = os.environ.get("FUSEWRIGHT_FUZZ_SECOND", "0") == "1"
DEVICE = torch.device(os.environ.get("FUSEWRIGHT_TEST_DEVICE", "cpu"))
SIZES = (1, 2, 3, 4, 6, 7, 12, 33)
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)

# How gradients come in, and what is done with those that go out.
DRAWN, SUMMED, SQUARED, HOOKED, SECOND = "drawn", "summed", "squared", "hooked", "second"


@dataclass
class Program:
    seed: int
    dtype: torch.dtype
    shapes: list[tuple[int, ...]]
    scale: float = 1.0
    lines: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    mode: str = DRAWN

    @property
    def source(self) -> str:
        arguments = ", ".join(f"x{i}" for i in range(len(self.shapes)))
        body = "\n".join(f"    {line}" for line in [*self.lines, f"return {', '.join(self.results)},"])
        return f"def f({arguments}):\n{body}\n"

    def function(self):
        scope = {"torch": torch, "F": F}
        exec(self.source, scope)
        return scope["f"]

    def inputs(self) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        draw = (torch.randn(shape, generator=generator) * self.scale for shape in self.shapes)
        return [x.to(self.dtype).to(DEVICE) for x in draw]

    def __str__(self) -> str:
        shapes = ", ".join(map(str, self.shapes))
        about = f"{self.dtype}, inputs {shapes} times {self.scale}, gradients {self.mode}"
        return f"# seed {self.seed}: {about}\n{self.source}"


# ---- drawing -------------------------------------------------------------------------------------------------------


class Drawing:
    """Adds one statement after the other, and runs each at once: what PyTorch refuses is left out."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        pick = self.random.choice
        dtype = pick(DTYPES)
        shapes = [pick([self.shape(3), self.shape(2), self.shape(4)])]
        if pick([True, False]):
            shapes.append(pick([shapes[0], shapes[0][-1:]]))
        self.program = Program(seed, dtype, shapes)
        if dtype == torch.float16 and pick([True, False, False]):
            self.program.scale = pick([300.0, 1e-4])
        self.values: dict[str, torch.Tensor] = {}

    def shape(self, rank: int) -> tuple[int, ...]:
        while True:
            shape = tuple(self.random.choice(SIZES) for _ in range(rank))
            if math.prod(shape) <= 2000:
                return shape

    def draw(self) -> Program:
        program, pick = self.program, self.random.choice
        for i, x in enumerate(program.inputs()):
            self.values[f"x{i}"] = x.requires_grad_()
        ranged = program.scale != 1
        kinds = (
            [self.norm, self.view]
            if ranged
            else [
                self.pointwise,
                self.pointwise,
                self.pair,
                self.reduction,
                self.norm,
                self.view,
                self.pooled,
                self.moved,
                self.beside_its_reduction,
                self.write,
                self.write,
                self.without_gradient,
            ]
        )
        for _ in range(self.random.randint(2, 7)):
            self.try_to(pick(kinds))
        made = [name for name, x in self.values.items() if name.startswith("v") and x.is_floating_point()]
        if not made:
            program.lines = ["v0 = x0 * 1.5"]
            made = ["v0"]
        program.results = list(dict.fromkeys([made[-1], *(pick(made) for _ in range(self.random.randint(0, 2)))]))
        modes = [DRAWN, SUMMED, SQUARED, HOOKED] + [SECOND] * (2 * SECOND_DERIVATIVES)
        program.mode = DRAWN if ranged else pick(modes)
        return program

    def any(self) -> str:
        return self.random.choice(list(self.values)[-4:])

    def try_to(self, kind) -> None:
        lines, values = list(self.program.lines), dict(self.values)
        try:
            kind(self.any())
            # Values share memory: all are made again, so that a write is seen in each.
            self.values = run_lines(self.program)
        except (RuntimeError, IndexError, ValueError):
            self.program.lines, self.values = lines, values

    def add(self, expression: str) -> str:
        name = f"v{sum(line.startswith('v') for line in self.program.lines)}"
        self.program.lines.append(f"{name} = {expression}")
        self.values = run_lines(self.program)
        return name

    def pointwise(self, x: str) -> None:
        self.add(
            self.random.choice(
                [
                    f"torch.tanh({x})",
                    f"F.gelu({x})",
                    f"{x} * 1.5",
                    f"torch.sigmoid({x}) * 3",
                    f"F.silu({x}) + 1",
                    f"torch.exp(-torch.abs({x}))",
                    f"F.leaky_relu({x}, 0.1)",
                    f"torch.where({x} > 0.25, {x}, {x} * 0.5)",
                    f"torch.sin({x})",
                    f"{x}.clamp(-1, 0.5)",
                    f"torch.log1p({x} * {x})",
                ]
            )
        )

    def pair(self, x: str) -> None:
        y = self.any()
        self.add(self.random.choice([f"{x} + {y}", f"{x} * {y}", f"{x} - {y} * 0.5", f"torch.maximum({x}, {y})"]))

    def dims(self, x: str) -> str:
        rank = self.values[x].dim()
        return str(self.random.choice([-1, 0, *range(rank)])) if rank else "-1"

    def reduction(self, x: str) -> None:
        d, keep = self.dims(x), self.random.choice([True, False])
        self.add(
            self.random.choice(
                [
                    f"{x}.sum({d}, keepdim={keep})",
                    f"{x}.mean({d}, keepdim={keep})",
                    f"{x}.amax({d}, keepdim={keep})",
                    f"({x} * 1.5).max({d}).values",
                    f"({x} * 1.5).amin({d})",
                    f"torch.logsumexp({x}, {d})",
                    f"{x}.sum()",
                    f"torch.softmax({x}, {d})",
                    f"F.layer_norm({x}, {x}.shape[-1:])",
                    f"{x}.mean()",
                ]
            )
        )

    def norm(self, x: str) -> None:
        d = self.dims(x)
        if self.values[x].dim() == 0 or self.values[x].shape[int(d)] < 2:
            raise ValueError("nothing to spread")
        self.add(
            self.random.choice(
                [
                    f"torch.linalg.vector_norm({x}, dim={d})",
                    f"torch.std({x}, {d})",
                    f"torch.std_mean({x}, {d})[0]",
                    f"F.normalize({x}, dim={d}, eps=1e-6)",
                    f"{x} / {x}.norm(dim={d}, keepdim=True)",
                ]
            )
        )

    def view(self, x: str) -> None:
        self.add(
            self.random.choice(
                [
                    f"{x}.transpose(0, -1)",
                    f"{x}.flatten()",
                    f"{x}.flatten(0, 1)",
                    f"{x}.unsqueeze(0)",
                    f"{x}[..., ::2]",
                    f"{x}[1:]",
                    f"{x}.expand(3, *{x}.shape)",
                    f"{x}.reshape(-1, 2)",
                    f"{x}.sum(0, keepdim=True).expand_as({x})",
                ]
            )
        )

    def moved(self, x: str) -> None:
        """Parts of what is computed, one behind the other or with zeros around."""
        y, d = self.any(), self.dims(x)
        self.add(
            self.random.choice(
                [
                    f"torch.cat([{x} * 0.5, {x}], {d})",
                    f"torch.cat([{y}, {x}], {d})",
                    f"torch.cat([{x}[1:], {x}[:1]], 0)",
                    f"torch.stack([{x}, {x} * 2], {d})",
                    f"({x} * 1.5)[..., 1:-1]",
                    f"({x} * 1.5).select({d}, -1)",
                    f"({x} * 1.5).chunk(2, {d})[1]",
                    f"({x} * 1.5).unbind({d})[0]",
                    f"F.pad({x}, (1, -1))",
                    f"F.pad({x} * 1.5, (0, 2, 1, 0))",
                ]
            )
        )

    def pooled(self, x: str) -> None:
        pool = self.random.choice(
            [
                f"F.avg_pool1d({x} * 1.25, 2)",
                f"F.max_pool1d({x}, 3, 2, 1)",
                f"F.avg_pool2d({x}, 2)",
                f"F.max_pool2d({x}, 2)",
            ]
        )
        pool = self.add(pool)
        after = self.random.choice(
            [
                f"{pool}.max(-1).values",
                f"{pool}.min(-1).values",
                f"{pool}.flatten(1).amax(1)",
                f"{pool}.mean(-1, keepdim=True)",
                f"torch.softmax({pool} * 2 + 1, -1)",
                None,
            ]
        )
        if after:
            self.add(after)

    def beside_its_reduction(self, x: str) -> None:
        x, d = self.add(f"{x} * 1.5"), self.dims(x)
        self.add(
            self.random.choice(
                [
                    f"{x} - {x}.amax({d}, keepdim=True)",
                    f"torch.where({x} >= {x}.amax({d}, keepdim=True), {x}, -1.0)",
                    f"{x} / ({x}.abs().sum({d}, keepdim=True) + 1)",
                    f"{x} - {x}.mean({d}, keepdim=True)",
                    f"torch.softmax({x}, {d}).sum({d})",
                ]
            )
        )

    def write(self, x: str) -> None:
        """In place: into a value that is not an input, whole or through a view."""
        x = self.add(f"{x} * 1.5")
        value = self.values[x]
        y = self.random.choice(["2.0", "0.5", f"{x}.sum()", "torch.ones(())"])
        views = ["", "[..., ::2]", "[1:]", ".transpose(0, -1)", ".view(-1)", ".unsqueeze(1)", ".flatten(0, 1)", "[0]"]
        if value.numel() >= 4:
            rows = self.random.randint(1, 2)
            step = self.random.randint(2, max(2, value.numel() // 2))
            views += [f".as_strided(({rows}, 2), ({step}, 1))"] * 4
        view = self.random.choice(views)
        how = self.random.choice([f"mul_({y})", f"add_({y})", "copy_(torch.ones(()))", "tanh_()", "zero_()"])
        self.program.lines.append(f"{x}{view}.{how}")

    def without_gradient(self, x: str) -> None:
        """Gradients that are zeros: without memory, repeated, or of a constant."""
        self.add(
            self.random.choice(
                [
                    f"torch.sgn({x} * 1.5)",
                    f"torch.floor({x})",
                    f"torch.ceil({x} * 2)",
                    f"torch.round({x})",
                    f"torch.trunc({x})",
                    f"torch.sign({x}) + {x}.detach()",
                    f"{x} * 0",
                    f"torch.zeros_like({x}) * {x}",
                ]
            )
        )


def run_lines(program: Program) -> dict[str, torch.Tensor]:
    scope = {"torch": torch, "F": F}
    for i, x in enumerate(program.inputs()):
        scope[f"x{i}"] = x.requires_grad_()
    for line in program.lines:
        exec(line, scope)
    values = {name: x for name, x in scope.items() if isinstance(x, torch.Tensor)}
    if sum(x.numel() for x in values.values()) > 20000 or any(x.numel() == 0 for x in values.values()):
        raise ValueError("too large, or empty")
    return values


# ---- judging -------------------------------------------------------------------------------------------------------


def results(
    program: Program, function, nudge: Nudge = as_they_are, wide: bool = False
) -> dict[str, torch.Tensor | None]:
    """All that one run gives: results, gradients, and second derivatives."""
    leaves = [nudge(x).detach().clone() for x in program.inputs()]
    leaves = [(x.double() if wide else x).requires_grad_() for x in leaves]
    if program.mode == HOOKED:
        for x in leaves:
            x.register_hook(lambda g: g.mul_(0.5))
    found = list(function(*leaves))
    named = {f"result {i}": y for i, y in enumerate(found)}
    generator = torch.Generator().manual_seed(program.seed)
    draws = [torch.randint(-8, 9, y.shape, generator=generator) / 8 + 0.0625 for y in found]
    # A result that nothing leads to may not require a gradient: as with gradients that are missing, below.
    pairs = [(y, d) for y, d in zip(found, draws, strict=True) if y.requires_grad]
    found = [y for y, _ in pairs]
    if found and program.mode in (DRAWN, HOOKED):
        torch.autograd.backward(found, [d.to(y) for y, d in pairs])
    elif found and program.mode == SUMMED:  # one number, repeated
        torch.autograd.backward([y.sum() for y in found])
    elif found and program.mode == SQUARED:
        sum(y.square().mean() for y in found).backward()
    elif found:
        total = sum(y.square().mean() for y in found)
        first = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
        for i, (g, x) in enumerate(zip(first, leaves, strict=True)):
            named[f"first {i}"] = torch.zeros_like(x) if g is None else g
        penalty = sum(g.square().sum() for g in first if g is not None and g.requires_grad)
        if isinstance(penalty, torch.Tensor):
            penalty.backward()
    for i, x in enumerate(leaves):
        # A missing gradient is zeros: which of the two it is differs wherever PyTorch traces a graph.
        named[f"gradient {i}"] = torch.zeros_like(x) if x.grad is None else x.grad
    return {name: None if x is None else x.detach().clone() for name, x in named.items()}


def runs_in_eager(program: Program) -> bool:
    """Returns whether PyTorch runs it, with finite results: else there is nothing to compare with."""
    try:
        found = results(program, program.function())
    except (RuntimeError, TypeError, IndexError, NameError, ValueError):
        return False
    return all(x is None or bool(torch.isfinite(x).all()) for x in found.values())


def problem(program: Program) -> str | None:
    """Describes what is wrong with the program as the library runs it; None if nothing is."""
    torch._dynamo.reset()
    plain = program.function()
    fast = fusewright.optimize(program.function())
    functions = {"fused": fast, "eager": plain, "exact": plain}
    try:
        verdicts = judge_runs(lambda who, nudge: results(program, functions[who], nudge, who == "exact"))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    wrong = [f"{v.name}: {v.problem}" for v in verdicts if not v.ok]
    return "; ".join(wrong) or None


def simpler(program: Program) -> list[Program]:
    found = []
    for i in range(len(program.results)):
        if len(program.results) > 1:
            found.append(replace(program, results=program.results[:i] + program.results[i + 1 :]))
    for i, line in enumerate(program.lines):
        found.append(replace(program, lines=program.lines[:i] + program.lines[i + 1 :]))
        name, _, expression = line.partition(" = ")
        operands = [v for v in dict.fromkeys(re.findall(r"\b[xv]\d+\b", expression)) if v != expression]
        for operand in operands:
            lines = [*program.lines[:i], f"{name} = {operand}", *program.lines[i + 1 :]]
            found.append(replace(program, lines=lines))
    if program.mode != DRAWN:
        found.append(replace(program, mode=DRAWN))
    return found


def reduced(program: Program) -> Program:
    while True:
        for candidate in simpler(program):
            if runs_in_eager(candidate) and problem(candidate):
                program = candidate
                break
        else:
            return program


def search(first: int, count: int, seconds: float = math.inf, most: int = 5) -> tuple[int, list[str]]:
    """How many programs were judged, and a text for each that failed."""
    start, judged, failures = time.monotonic(), 0, []
    for seed in range(first, first + count):
        if time.monotonic() - start > seconds or len(failures) >= most:
            break
        program = Drawing(seed).draw()
        if not runs_in_eager(program):
            continue
        judged += 1
        if found := problem(program):
            small = reduced(program)
            failures.append(f"{found}\n{program}reduced: {problem(small)}\n{small}")
            print(f"FAILED {failures[-1]}", flush=True)
    return judged, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--failures", type=int, default=5)
    arguments = parser.parse_args()
    partition.LEAST_TRAFFIC = 0  # small programs stand for large ones
    judged, failures = search(arguments.seed, arguments.programs, arguments.seconds, arguments.failures)
    print(f"{judged} programs from seed {arguments.seed}, {len(failures)} failures")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
