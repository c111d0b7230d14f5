"""One trace gives the graph that an export in full gives, or leaves the graph to it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fusewright import optimize, stats
from fusewright.capture import normalize, trace


def captured(function, *inputs, dynamic=False) -> list[fx.GraphModule]:
    """Dynamo's graphs of a call."""
    graphs = []

    def backend(gm, _):
        graphs.append(gm)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, dynamic=dynamic)(*inputs)
    return graphs


def examples_of(gm: fx.GraphModule) -> list:
    return [node.meta["example_value"] for node in gm.graph.nodes if node.op == "placeholder"]


def described(module: fx.GraphModule, written: list[int]) -> list[str]:
    """All that normalize reads of a graph: operators, arguments, values, the user's lines, what is written."""
    module.graph.eliminate_dead_code(lambda node: node.is_impure() or normalize.is_marker(node))
    numbers = {node: f"%{i}" for i, node in enumerate(module.graph.nodes)}

    def value(x):
        if isinstance(x, torch.Tensor):
            return f"{tuple(x.shape)} {x.stride()} {x.dtype} {x.device} {x.requires_grad}"
        return str([value(y) for y in x]) if isinstance(x, (tuple, list)) else f"{type(x).__name__} {x}"

    lines = [f"written: {written}"]
    for node in module.graph.nodes:
        arguments = fx.map_arg((node.args, node.kwargs), numbers.__getitem__)
        target = "" if node.op == "placeholder" else f"{node.target} {arguments}"
        constant = getattr(module, node.target) if node.op == "get_attr" else ""
        computes = isinstance(node.target, torch._ops.OpOverload)
        source = (node.stack_trace or "").strip().splitlines()[-2:] if computes else ""
        lines.append(f"{numbers[node]} {node.op} {target} {value(node.meta.get('val'))} {constant} {source}")
    return lines


class Counting(nn.Module):
    """Buffers that are written in place, through a view, and read again."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("sums", torch.zeros(4, 6))

    def forward(self, x):
        self.steps += 1
        self.sums[1].add_(x.detach().sum(0))
        return x * self.sums.mean() + self.steps


def in_place(x):
    y = x * 2
    y.view(-1)[3:].relu_()
    y += 1
    return F.relu(y, inplace=True), y.t()


def inner_autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x.t()
    return y.float() * 2


def without_gradients(x):
    with torch.no_grad():
        scale = x.abs().amax(1, keepdim=True)
    return torch.tanh(x / scale)


CASES = {
    "chain": lambda x: F.gelu(x / 3) * torch.sigmoid(x),
    "composites": nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.LayerNorm(8), nn.Softmax(1)),
    "batch_norm": nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.SiLU()),
    "batch_norm_evaluated": nn.BatchNorm1d(6).eval(),
    "dropout": nn.Dropout(0.3),
    "buffers": Counting(),
    "in_place": in_place,
    "views": lambda x: (x.reshape(2, -1).t(), x[1:], x, x.view(-1)),
    "inner_autocast": inner_autocast,
    "without_gradients": without_gradients,
    "several": lambda x: torch.max(x, 1),
    "conversions": lambda x: x.to(torch.float64).float() + x.long(),
    "sizes": lambda x: x.sum() / x.shape[0] + x.shape[1],
    "constant": lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) + torch.tensor(2.0),
    "fresh": lambda x: x + torch.arange(6, device=x.device) * torch.ones(()),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("gradients", [True, False], ids=["gradients", "none"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_graph_is_that_of_an_export(case, gradients, dynamic):
    x = torch.randn(4, 6, requires_grad=gradients)
    for gm in captured(copy.deepcopy(case), x, dynamic=dynamic):
        examples = examples_of(gm)
        assert trace.is_plain(gm, examples)
        with torch._guards.tracing(None):
            ours = described(*trace.trace(normalize._run(gm), examples))
            assert ours == described(*normalize._export(gm, examples))


def test_ambient_autocast_too():
    model, x = nn.Sequential(nn.Linear(6, 8), nn.GELU()), torch.randn(4, 6)
    with torch.autocast("cpu", torch.bfloat16):
        (gm,) = captured(model, x)
        examples = examples_of(gm)
        with torch._guards.tracing(None):
            ours = described(*trace.trace(normalize._run(gm), examples))
            assert ours == described(*normalize._export(gm, examples))
    assert "bfloat16" in str(ours)


def test_a_trace_calls_no_hooks_of_the_user():
    packed = []
    (gm,) = captured(lambda x: torch.tanh(x) * 2, torch.randn(4, requires_grad=True))
    with torch.autograd.graph.saved_tensors_hooks(packed.append, lambda x: x):
        trace.trace(normalize._run(gm), examples_of(gm))
    assert not packed


def test_a_trace_leaves_modes_and_generators_as_they_were():
    (gm,) = captured(nn.Dropout(0.5), torch.randn(4))
    generator = torch.get_rng_state()
    trace.trace(normalize._run(gm), examples_of(gm))
    assert torch.equal(torch.get_rng_state(), generator)

    def switches(x):
        torch._C._set_grad_enabled(False)
        return (x * 2,)

    trace.trace(switches, examples_of(gm))
    assert torch.is_grad_enabled()


# ---- what is left to the export -----------------------------------------------------------------------------------


class SharedMemory(nn.Module):
    """One buffer is a part of the other: what is written into this is read from that."""

    def __init__(self):
        super().__init__()
        self.register_buffer("whole", torch.ones(8))
        self.part = self.whole[2:6]

    def forward(self, x):
        self.whole.mul_(2)
        return torch.tanh(x) * self.part


def test_shared_memory_that_is_written_is_eager():
    model, plain = optimize(SharedMemory()), SharedMemory()
    x = torch.randn(4)
    for _ in range(3):
        torch.testing.assert_close(model(x), plain(x))
    torch.testing.assert_close(list(model.buffers()), list(plain.buffers()))
    assert stats()["region_calls"] == 0


def graph_of(method: str, *shape: int) -> tuple[fx.GraphModule, list]:
    """A graph that calls a method of its one input, as Dynamo would write it."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_method(method, (x,)),))
    return fx.GraphModule(nn.Module(), graph), [FakeTensorMode().from_tensor(torch.ones(shape))]


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_overwritten_whole_keeps_its_history(whole):
    """A copy of what has no gradient: in eager the tensor still requires one, and hands on zeros."""

    def f(x, w):
        y = x * 1.5
        (y if whole else y[:, :2]).copy_(torch.ones(5, 4 if whole else 2))
        return y, torch.exp(y * w)

    def run(function):
        x, w = (torch.linspace(-1, 1, 20).view(5, 4).requires_grad_() for _ in range(2))
        y, z = function(x, w)
        assert y.requires_grad and z.requires_grad
        (y.sum() + z.sum()).backward()
        return y.detach(), z.detach(), x.grad, w.grad

    torch.testing.assert_close(run(optimize(f)), run(f))
    assert stats()["fallback_calls"] == 0


def test_an_input_that_gets_other_strides_is_not_traced():
    with pytest.raises(trace.NotTraced, match="other sizes"):
        gm, examples = graph_of("t_", 4, 4)
        trace.trace(normalize._run(gm), examples)


def test_which_graphs_are_traced():
    gm, examples = graph_of("relu", 4)
    assert trace.is_plain(gm, examples)
    assert not trace.is_plain(gm, [torch.ones(4)])  # not a fake tensor
    assert not trace.is_plain(gm, [*examples, FakeTensorMode().from_tensor(torch.ones(4))])  # of another mode
    gm.register_buffer("constant", torch.ones(4))
    with gm.graph.inserting_after():
        gm.graph.get_attr("constant")
    assert not trace.is_plain(gm, examples)


def test_a_graph_that_is_not_traced_is_exported(monkeypatch):
    def refuse(*_):
        raise RuntimeError("an operator that the tracer does not know")

    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.SiLU())
    plain, x = copy.deepcopy(model), torch.randn(4, 6)
    monkeypatch.setattr(normalize, "trace", refuse)
    optimize(model, strict=True)
    torch.testing.assert_close(model(x), plain(x))
    torch.testing.assert_close(list(model.buffers()), list(plain.buffers()))
    assert stats()["region_calls"] == 1 and stats()["fallback_calls"] == 0
