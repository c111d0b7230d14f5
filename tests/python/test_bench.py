"""The benchmark: what it counts is exact, what it times is judged, and what cannot be is said."""

import csv
import io
import json
import os
import time
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from test_cli import fusewright as command
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import fusewright
from fusewright.benchmark import benchmark, candidates, floor, measure, profiling
from fusewright.benchmark.candidates import Candidate
from fusewright.benchmark.floor import least_bytes
from fusewright.benchmark.memory import Memory, memory_of
from fusewright.benchmark.profiling import step_timings
from fusewright.explain import Explanation, Kernel, LibraryCall, Tensors

pytestmark = pytest.mark.real_core

TWO = ("eager", "fusewright")
CPU = torch.device("cpu")


class Norms(nn.Module):
    """Two regions' worth: what they share is not fused over, because the sort between them stays PyTorch's."""

    def __init__(self, features):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(features))
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return self.norm(torch.tanh(x) * self.scale)


def explained(model, *inputs):
    inputs = [x.requires_grad_() if x.is_floating_point() else x for x in inputs]
    return fusewright.explain(model, *inputs)


# ---- what is counted ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, shape",
    [
        (lambda: nn.Linear(13, 9, bias=False), (5, 13)),
        (lambda: nn.Conv2d(6, 8, 3, bias=False, stride=2, padding=1), (3, 6, 11, 9)),
        (lambda: nn.Conv2d(6, 8, 3, bias=False, groups=2, dilation=2), (3, 6, 11, 9)),
        (lambda: nn.ConvTranspose2d(6, 8, 3, bias=False, stride=2, output_padding=1), (3, 6, 5, 7)),
        (lambda: nn.ConvTranspose3d(4, 6, 2, bias=False, groups=2), (2, 4, 5, 3, 4)),
    ],
    ids=["linear", "conv", "grouped", "transposed", "transposed grouped"],
)
def test_operations_of_contractions(make, shape):
    """As PyTorch's own counter has them in the forward; each gradient takes as many."""
    model = nn.Sequential(make(), nn.Tanh())
    x = torch.randn(shape, requires_grad=True)
    explanation = explained(model, x)
    with FlopCounterMode(display=False) as counter:
        model(x)
    assert [call.operations for call in explanation.library] == 3 * [counter.get_total_flops()]


def test_operations_of_kernels():
    """One for each element of a pointwise result, each term of a reduction, each tap of a window."""
    x = torch.randn(7, 33)
    (kernel,) = fusewright.explain(lambda x: torch.tanh(x) * 2, x).kernels
    assert kernel.operations == 2 * x.numel()
    (kernel,) = fusewright.explain(lambda x: (x * x).sum(-1), x).kernels
    assert kernel.operations == 2 * x.numel()
    (kernel,) = fusewright.explain(lambda x: F.max_pool2d(x, 3, 2), torch.randn(2, 3, 9, 11)).kernels
    assert kernel.operations == 2 * 3 * 4 * 5 * 9


def test_what_rewrites_save():
    """The bias in front of a norm is never added: its elements are what is saved, and a sum."""

    def centred(x, b):
        z = x + b
        return z - z.mean(-1, keepdim=True)

    (saving,) = fusewright.explain(centred, torch.randn(31, 65), torch.randn(31, 1)).savings
    assert saving.rule == "shift_cancels_in_norm" and saving.without - saving.operations == 31 * 65


def test_least_bytes():
    """Inputs once, results once, library results once; nothing for what kernels leave to each other."""
    rows, columns, size = 37, 65, 4
    x = torch.randn(rows, columns)
    one, vector = rows * columns * size, columns * size
    model = nn.BatchNorm1d(columns)
    with (
        torch.no_grad()
    ):  # reads x, weight, bias, two statistics and the counter; writes y, the statistics, the counter
        assert least_bytes(fusewright.explain(model, x)) == one + 4 * vector + 8 + one + 2 * vector + 8
    forward = one + 4 * vector + 8 + one + 2 * vector + 8
    backward = one + one + vector + one + 2 * vector  # x, dL_dy, weight; dL_dx, dL_dweight, dL_dbias
    assert least_bytes(explained(nn.BatchNorm1d(columns), x)) == forward + backward

    model = nn.Sequential(nn.Linear(columns, 9, bias=False), nn.Tanh())
    y = rows * 9 * size  # forward: product, result. Backward: result or product, dL_dy; dL_dproduct
    assert least_bytes(explained(model, x)) == 2 * y + 3 * y


def test_least_bytes_of_a_copy(emulated):
    """An input that is kept in another memory order is an input: what we keep of it is our choice."""
    x = torch.randn(2, 32, 66, 64).contiguous(memory_format=torch.channels_last)
    explanation = explained(nn.GroupNorm(32, 32, affine=False), x)
    assert "one_memory_order" in explanation.rewrites
    one = x.numel() * 4
    assert least_bytes(explanation) == one + one + 2 * one + one


def test_memory():
    """Exactly: eager keeps what each operator saves, ours the input."""
    x = torch.randn(1001, requires_grad=True)
    model = fusewright.subject.plain_copy(lambda x: torch.exp(torch.sigmoid(torch.tanh(x))), "test")
    gradient = [torch.randn(1001)]
    size = x.numel() * 4
    eager = memory_of(model, model, [x], gradient)
    assert eager.held == 2 * size and x.grad is None  # the results of tanh and sigmoid
    fused = fusewright.optimize(model)
    measure.training_step(fused)(x, gradient)
    assert memory_of(fused, fused, [x], gradient) == Memory(held=0, peak=2 * size)  # result, then gradient


# ---- what is timed -----------------------------------------------------------------------------------------


def test_seconds_of_steps():
    """Every step has a time of its own, alike regions and directions too, and together they fit into the call."""

    def two_alike(x):
        y = torch.tanh(x) * 2
        y = torch.sort(y, dim=-1).values  # stays PyTorch's
        return torch.tanh(y) * 2

    x = torch.randn(64, 4096, requires_grad=True)
    explanation = fusewright.explain(two_alike, x)
    assert [(step.phase, step.region[-1]) for step in explanation.steps] == [
        ("forward", "0"), ("forward", "1"), ("backward", "1"), ("backward", "0")
    ]  # fmt: skip
    fused = fusewright.optimize(two_alike)

    def call():
        fused(x).sum().backward()

    found = [min(timing.samples) for timing in step_timings(explanation, call, CPU)]
    start = time.perf_counter()
    call()
    assert sum(found) < time.perf_counter() - start
    first, second, *backward = step_timings(explanation, lambda: fused(x), CPU)
    assert first and second and backward == [None, None]  # which has kernels of the same names, but did not run

    model = nn.Sequential(nn.Linear(65, 33), nn.GELU())
    x = torch.randn(17, 65, requires_grad=True)
    explanation, fused = explained(model, x), fusewright.optimize(model)
    found = step_timings(explanation, lambda: fused(x).sum().backward(), CPU)
    assert all(found) and sum(isinstance(step, LibraryCall) for step in explanation.steps) == 3


def test_kernels_on_a_device():
    """By their names: parts count together, equal names are told apart by their order, and a longer name is another."""
    names = ["fw_row_add", "fw_row_add_mul", "fw_row_add"]
    kernels = [Kernel(name, "forward", [], "row", 0, 0, [], region="r", step=i) for i, name in enumerate(names)]
    explanation = Explanation("model", kernels=kernels, tensors={"r": Tensors()})
    launches = [("fw_row_add_phase0", 3), ("fw_row_add_merge0", 1), ("fw_row_add_phase1", 2), ("gemm", 50)]
    launches += [("fw_row_add_mul", 7), ("fw_row_add_mul_sides", 1), ("fw_row_add", 9)]
    events = [
        SimpleNamespace(name=name, time_range=SimpleNamespace(elapsed_us=lambda us=us: us)) for name, us in 2 * launches
    ]
    found = profiling._of_kernels_on_device(explanation, events)
    assert [[round(1e6 * s) for s in found[id(kernel)]] for kernel in kernels] == [[6, 6], [8, 8], [9, 9]]


def test_contractions_of_our_own_on_a_device():
    """Their range has a name of ours, and stands where the plan has a library call."""
    plan = [
        Kernel("fw_row_relu", "forward", [], "row", 0, 0, [], region="r", step=0),
        LibraryCall("conv2d", "forward", [], schedule="convolution", region="r", step=1),
    ]

    def ranges(*names):
        children = [SimpleNamespace(name=n, time_range=SimpleNamespace(start=i)) for i, n in enumerate(names)]
        return SimpleNamespace(name="r", cpu_children=children)

    for name in ("fw_conv", "fw_conv_weight", "fw_matmul", "aten::convolution"):
        event = ranges("fw_row_relu", "aten::empty", name)
        assert [child.name for child in profiling._steps_in(event, plan)] == ["fw_row_relu", name]
    assert profiling._steps_in(ranges("fw_row_relu", "fw_row_add"), plan) == []


def test_a_candidate_that_fails_while_it_is_timed(monkeypatch):
    """It is taken out, and the others are timed."""
    calls = []

    def third_call_raises(model):
        def call(x):
            calls.append(x)
            if len(calls) == 3:
                raise RuntimeError("overwritten")
            return model(x)

        return call

    monkeypatch.setitem(candidates.MAKERS, "max-autotune", third_call_raises)
    three = ("eager", "max-autotune", "fusewright")
    result = fusewright.bench(torch.tanh, torch.randn(33), candidates=three, seconds=0.01)
    assert result.ok and result.row("max-autotune").reason == "RuntimeError: overwritten"
    assert result.timing("fusewright", "step") and result.timing("eager", "forward")


def test_bench():
    model, x = Norms(33), torch.randn(129, 33)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    before = torch.get_rng_state()
    result = fusewright.bench(model, x, candidates=TWO, seconds=0.01)
    assert result.ok and result.modes == ["forward", "step"] and not fusewright.is_optimized(model)
    assert torch.equal(torch.get_rng_state(), before) and x.grad is None and not x.requires_grad
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    ours = result.row("fusewright")
    assert {v.name for v in ours.verdicts["step"]} > {"output", "d input 0", "d scale"}
    assert [v.name for v in ours.verdicts["forward"]] == ["output"]
    assert ours.memory.held < result.row("eager").memory.held
    for mode in result.modes:
        assert len(ours.timings[mode].samples) >= 7
        assert result.of_floor("fusewright", mode) is None  # all of it fits into a cache
        assert any(f"floor, {mode}: none is known" in note for note in result.notes)
        assert all(0 < timing.median < 1 for timing in result.steps[mode])

    whole = json.loads(result.to_json())
    assert [step["phase"] for step in whole["steps"]["step"]] == ["forward", "backward"]
    assert whole["verdict"] == "right" and whole["candidates"]["fusewright"]["modes"]["step"]["rounds"] >= 7
    lines = list(csv.DictReader(io.StringIO(result.to_csv())))
    assert [(line["mode"], line["candidate"]) for line in lines] == [(m, c) for m in result.modes for c in TWO]
    assert float(lines[3]["median_s"]) == ours.timings["step"].median
    assert "right, checked after timing" in str(result)


def test_any_inputs_and_outputs():
    """Nested inputs, integers, several outputs, some of them without a gradient."""

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(11, 9)

        def forward(self, pair, index):
            a, b = pair
            y = torch.tanh(a * b["b"]) + self.table(index)
            return {"y": y, "z": torch.sigmoid(y) * 2}, (y > 0), index

    inputs = ((torch.randn(5, 9), {"b": torch.randn(9)}), torch.randint(11, (5,)))
    result = fusewright.bench(Odd(), *inputs, candidates=TWO, seconds=0.01)
    assert result.ok, result.problems
    names = [v.name for v in result.row("fusewright").verdicts["step"]]
    assert {"output 0", "output 3", "d input 1", "d table.weight"} <= set(names)


def test_random_models():
    """Ours is judged with eager's random numbers; no other has them. Where float64 draws others, nobody is judged."""
    model = nn.Sequential(nn.Linear(9, 33), nn.Dropout(0.5), nn.GELU())
    three = ("eager", "max-autotune", "fusewright")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(candidates.MAKERS, "max-autotune", lambda model: model)
        result = fusewright.bench(model, torch.randn(17, 9), candidates=three, seconds=0.01, modes=["step"])
    assert result.ok and len(result.row("fusewright").verdicts["step"]) == 4
    assert "step of max-autotune was not judged: it draws random numbers of its own" in result.notes

    noise = lambda x: x * torch.randn(x.shape, dtype=x.dtype)
    result = fusewright.bench(noise, torch.randn(17, 9), candidates=TWO, seconds=0.01, modes=["forward"])
    assert result.ok and any("and other ones in float64" in note for note in result.notes)


def test_no_gradient():
    result = fusewright.bench(lambda x: torch.tanh(x).round() > 0, torch.randn(33), candidates=TWO, seconds=0.01)
    assert result.modes == ["forward"] and any("no output has a gradient" in note for note in result.notes)


def test_only_a_refusal_is_bad_input():
    with pytest.raises(fusewright.InputError, match="eager refuses the inputs: RuntimeError"):
        fusewright.bench(nn.Linear(3, 4), torch.randn(5, 6))
    with pytest.raises(fusewright.InputError, match="no inputs"):
        fusewright.bench(nn.Linear(3, 4))
    with pytest.raises(ValueError, match="no 'sideways'"):
        fusewright.bench(nn.Linear(3, 4), torch.randn(5, 3), modes=["sideways"])


# ---- what is said ------------------------------------------------------------------------------------------

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(33))
    def forward(self, x):
        return torch.tanh(x * self.weight)

def get_inputs():
    return [torch.randn(17, 33)]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


class _Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.001


def test_a_wrong_gradient(capsys, monkeypatch, file, tmp_path):
    """Exit status 1: it may be fast, but it is wrong. Only the step is: the forward is right."""
    monkeypatch.setitem(candidates.MAKERS, "fusewright", lambda model: lambda x: _Wrong.apply(model(x)))
    arguments = ("bench", str(file), "--seconds", "0.01", "--no-first-calls", "--candidates", *TWO)
    written = tmp_path / "numbers.json"
    status, out, _ = command(capsys, *arguments, "-o", str(written))
    assert status == 1 and "WRONG: step, d weight: error" in out and "WRONG: forward" not in out
    assert json.loads(written.read_text())["verdict"] == "wrong"


def test_a_candidate_that_cannot_run(capsys, monkeypatch, file, tmp_path):
    """A line says why; the others are timed."""

    def refuse(model):
        raise RuntimeError("no compiler\nanywhere")

    monkeypatch.setitem(candidates.MAKERS, "torch.compile", refuse)
    written = tmp_path / "numbers.csv"
    arguments = ("bench", str(file), "--seconds", "0.01", "--candidates", "eager", "torch.compile", "fusewright")
    status, out, err = command(capsys, *arguments, "-o", str(written))
    assert status == 0 and "torch.compile n/a: RuntimeError: no compiler\n" in out
    assert err.splitlines()[0] == "model: prepare eager"
    lines = list(csv.DictReader(written.open()))
    assert [line["reason"] for line in lines[:3]] == ["", "RuntimeError: no compiler", ""]
    assert float(lines[2]["first_call_warm_s"]) > 0 and float(lines[2]["first_call_cold_s"]) > 0


def test_torch_compile_is_timed(file):
    """The real one, with its state under the user's names."""
    loaded = fusewright.models.load(file)
    result = fusewright.bench(
        loaded.build(), draw=loaded.draw(), candidates=("eager", "torch.compile"), seconds=0.01, modes=["step"]
    )
    row = result.row("torch.compile")
    assert not row.reason and row.memory.peak > 0 and "d weight" in [v.name for v in row.verdicts["step"]]
    assert not row.problems and result.ok


def test_more_than_the_hardware_can_do(monkeypatch):
    """The benchmark is wrong then, and says so."""
    monkeypatch.setattr(benchmark, "copy_of", lambda count, device: lambda *_: time.sleep(0.02))
    monkeypatch.setattr(floor, "cache_bytes", lambda: 1)
    result = fusewright.bench(torch.tanh, torch.randn(33), candidates=TWO, seconds=0.01, modes=["forward"])
    assert result.ok and len(result.doubts) == 2 and "do not trust" in result.doubts[1]
    assert "ERROR OF THE BENCHMARK: forward, fusewright" in str(result) and "% (!)" in str(result)


@pytest.mark.parametrize("reads_only", [False, True], ids=["reads and writes", "reads"])
def test_a_floor_on_the_processor(monkeypatch, reads_only):
    """Bytes that caches hold do not count. Neither does the library, whose time is no floor for other ways."""
    x = torch.randn(2**22)
    function = (lambda x: (x * 2 + 1).sum()) if reads_only else (lambda x: x * 2 + 1)
    moved = x.nbytes + (4 if reads_only else x.nbytes)
    for cached, expected in ((1 << 20, moved - (1 << 20)), (1 << 40, None), (0, None)):
        monkeypatch.setattr(floor, "cache_bytes", lambda cached=cached: cached)
        result = fusewright.bench(function, x, candidates=TWO, seconds=0.2, modes=["forward"])
        found = result.floors.get("forward")
        assert (found.bytes if found else None) == expected and (found is None or found.library == 0)
        assert ("none is known" in str(result)) == (expected is None)


def test_the_size_of_caches():
    found, page = floor.cache_bytes(), os.sysconf("SC_PAGESIZE")
    assert found == 0 or page <= found < os.sysconf("SC_PHYS_PAGES") * page
    assert floor.bytes_from_memory(10, torch.device("cuda")) == 10


def test_bad_output(capsys, file):
    status, out, err = command(capsys, "bench", str(file), "-o", "numbers.txt")
    assert status == 2 and not out and "written as .json or .csv" in err
    status, out, err = command(capsys, "bench", str(file), "-o", "/nonexistent/numbers.csv")
    assert status == 2 and not out and "cannot write /nonexistent" in err


def test_training_step_through_a_call():
    """The callable may be another object than the one with the parameters."""
    model = nn.Linear(3, 4)
    x, gradient = torch.randn(5, 3), torch.randn(5, 4)
    candidate = Candidate("half", model, lambda x: model(x) / 2)
    measure.training_step(candidate.model, candidate.call)(x, gradient)
    assert torch.equal(model.bias.grad, gradient.sum(0) / 2)


def test_nobody_always_has_the_same_neighbour():
    """The candidate that runs before another leaves the machine in some state."""
    calls = []
    names = ["a", "b", "c", "d"]
    candidates = {name: lambda name=name: calls.append(name) or time.sleep(0.002) for name in names}
    timings = measure.interleaved(candidates, list, seconds=0, rounds=(30, 30))
    assert all(len(timing.samples) == 30 for timing in timings.values())
    rounds = calls[-4 * 30 :]
    assert all(sorted(rounds[i : i + 4]) == names for i in range(0, len(rounds), 4))
    for name in names:
        before = {rounds[i - 1] for i in range(1, len(rounds)) if rounds[i] == name and i % 4}
        assert before == set(names) - {name}


def test_on_a_terminal():
    """Tables that fit it, with the same words."""
    result = fusewright.bench(torch.tanh, torch.randn(33), candidates=TWO, seconds=0.01)
    text = io.StringIO()
    benchmark.print_tables(result, Console(file=text, force_terminal=True, width=100, color_system=None))
    shown = text.getvalue()
    assert max(map(len, shown.splitlines())) <= 100 and "┃" in shown
    assert all(part in shown for part in ("fusewright", "training step", "peak of a step", "right, checked after"))
