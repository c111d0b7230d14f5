"""explain: complete, readable, and without a trace."""

import copy

import pytest
import torch
from torch import nn

import fusewright
from fusewright import Explanation, explain, optimize, reasons
from fusewright.benchmark import traffic
from fusewright.capture import partition
from fusewright.pages.study import _traffic


def model():
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.GELU())


@pytest.mark.parametrize("prepared", [False, True])
def test_explain_moves_nothing(prepared):
    net, x = model(), torch.randn(4, 8, requires_grad=True)
    if prepared:
        optimize(net)(x).sum().backward()
    before = copy.deepcopy(net.state_dict())
    gradients = [p.grad for p in net.parameters()]
    versions = [b._version for b in net.buffers()]
    generator, counts = torch.get_rng_state(), fusewright.stats()
    explanation = explain(net, x)
    assert torch.equal(generator, torch.get_rng_state())
    torch.testing.assert_close(net.state_dict(), before)
    assert versions == [b._version for b in net.buffers()]
    assert all(p.grad is g for p, g in zip(net.parameters(), gradients, strict=True))
    assert fusewright.is_optimized(net) == prepared
    assert fusewright.stats()["captures"] == counts["captures"]
    assert fusewright.stats()["region_calls"] == counts["region_calls"]
    assert explanation.kernels and {k.phase for k in explanation.kernels} == {"forward", "backward"}
    assert [f.operator for f in explanation.fallbacks] == ["aten.dropout.default"]


def test_explain_says_where_and_why():
    def f(x):
        return torch.sort(torch.relu(x) * 2)[0]

    explanation = explain(f, torch.randn(3, 4))
    (fallback,) = explanation.fallbacks
    assert fallback.reason == reasons.UNSUPPORTED_OPERATOR and "torch.sort" in fallback.source
    assert {k.phase for k in explanation.kernels} == {"forward"}
    assert "relu" in explanation.kernels[0].operators and "mul" in explanation.kernels[0].operators
    page = str(explanation)
    assert "aten.sort.default" in page and "unsupported_operator" in page and "1 fused region" in page


class Breaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.python_calls = 0

    def forward(self, x):
        self.calls += 1
        self.python_calls += 1
        y = torch.relu(x) * 2
        x.mul_(0)
        return torch.tanh(y) * 3 if y.sum() > 0 else torch.sin(y) * 3


def test_explain_behind_graph_breaks():
    net, x = Breaks(), torch.rand(4)
    before = x.clone()
    explanation = explain(net, x)
    assert explanation.graphs >= 2
    assert {"relu", "tanh"} <= {op for kernel in explanation.kernels for op in kernel.operators} | {"relu"}
    assert net.calls == 0 and net.python_calls == 0 and torch.equal(x, before)


def test_equal_operators_of_one_line_are_both_listed():
    def f(x, y):
        return torch.sigmoid(torch.sigmoid(x * y * x)) + 1

    (kernel,) = explain(f, torch.randn(3, 4), torch.randn(3, 4)).kernels
    assert kernel.operators == ["mul", "mul", "sigmoid", "sigmoid", "add"]


class Partly(nn.Module):
    """Fused, a library call within, a lone product, views, and what is not supported."""

    def __init__(self):
        super().__init__()
        self.inside, self.alone, self.norm = nn.Linear(16, 32), nn.Linear(8, 8), nn.LayerNorm(32)

    def forward(self, x, y):
        z = torch.tanh(self.norm(self.inside(x)))
        return z.reshape(-1), torch.cumsum(self.alone(y[1:]), 0), torch.zeros(3)


def partly():
    return Partly(), torch.randn(4, 16, requires_grad=True), torch.randn(5, 8, requires_grad=True)


def test_every_operator_is_listed_once():
    explanation = explain(*partly())
    found = [(fate.operator.name, fate.what, fate.where) for fate in explanation.fates]
    (kernel,) = [kernel.name for kernel in explanation.kernels if kernel.phase == "forward"]
    assert found == [
        ("linear", "library", f"matmul, {kernel}"),
        ("layer_norm", "fused", kernel),
        ("tanh", "fused", kernel),
        ("reshape", "view", ""),
        ("slice", "view", ""),
        ("linear", "outside", reasons.ALONE),
        ("cumsum", "outside", reasons.UNSUPPORTED_OPERATOR),
        ("zeros", "outside", reasons.MADE_HERE),
    ]
    assert "8 operators: 2 fused, 1 library, 2 view, 3 outside" in str(explanation)


class Small(nn.Module):
    """A division of a few numbers that no region can take in: the sort needs it, and the product needs the sort."""

    def __init__(self, width=128):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width))
        self.linear, self.norm = nn.Linear(16, width), nn.LayerNorm(width)

    def forward(self, x):
        order = torch.sort(self.scale / 3)[0]
        return torch.tanh(self.norm(self.linear(x) * order))


def became(model, *inputs):
    return {(fate.operator.name, fate.what, fate.where) for fate in explain(model, *inputs).fates}


@pytest.fixture
def as_users_have_it(monkeypatch, least_traffic):
    monkeypatch.setattr(partition, "LEAST_TRAFFIC", least_traffic)


def test_no_region_without_a_gain(as_users_have_it):
    """One operator by itself saves no call, and so few bytes no time."""
    x = torch.randn(4, 16)
    explanation = explain(Small(), x)
    assert ("div", "outside", reasons.TOO_SMALL) in became(Small(), x) and len(explanation.regions) == 1
    assert not any(fallback.reason == reasons.TOO_SMALL for fallback in explanation.fallbacks)  # no news
    assert ("div", "fused", "fw_pointwise_div") in became(Small(1 << 13), x)  # 64 kB

    model, plain = optimize(Small()), Small()
    plain.load_state_dict(model.state_dict())
    for each in (model, plain):
        each(x).sum().backward()
    torch.testing.assert_close(model.scale.grad, plain.scale.grad)
    torch.testing.assert_close(model(x), plain(x))


def test_small_parts_of_regions_stay_in_them(as_users_have_it):
    def f(x, scale):
        scale = scale / 3
        return torch.tanh(x * scale), scale

    assert all(what == "fused" for _, what, _ in became(f, torch.randn(4, 128), torch.rand(128)))


def test_one_small_operator(as_users_have_it):
    """Alone it stays PyTorch's, which `explain` says; who asks for `strict` gets a kernel, and so does whose sizes may
    change."""
    x = torch.randn(4, 8)
    assert became(lambda x: x / 3, x) == {("div", "outside", reasons.TOO_SMALL)}
    assert str(explain(lambda x: x / 3, x)).endswith("outside: 1 operator, with the reason above")
    for options in ({"strict": True}, {"dynamic": True}):
        ours = optimize(lambda x: x / 3, **options)
        fusewright.reset_stats()
        torch.testing.assert_close(ours(x), x / 3)
        assert fusewright.stats()["region_calls"] == 1, options
    assert became(optimize(lambda x: x / 3, strict=True), x) == {("div", "fused", "fw_pointwise_div")}


def test_totals_count_the_same_things():
    """If a model is partly fused, the operators left to PyTorch count on both sides."""
    model, *inputs = partly()
    regions = explain(model, *inputs)
    eager, fused = _traffic(model, inputs), _traffic(optimize(copy.deepcopy(model)), inputs, regions)
    assert fused.library == eager.library == 6  # of each product two gradients and the product
    left = fused.operators - len(regions.kernels)
    assert 0 < left < eager.operators and fused.operators < eager.operators
    whole = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Tanh())
    regions = explain(whole, inputs[0])
    assert _traffic(optimize(copy.deepcopy(whole)), inputs[:1], regions).operators == len(regions.kernels)


def test_products_with_a_vector_are_the_librarys():
    """As they are where a region calls the library for them."""
    x, y = torch.randn(4, 8), torch.randn(8)
    assert traffic.traffic_of(lambda: torch.addmv(torch.randn(4), x, y)).library == 1
    regions = explain(lambda x, y: torch.tanh(x @ y), x, y)
    assert traffic.traffic_of(lambda: x @ y).library == len(regions.library) == 1


def test_totals_claim_nothing_that_was_not_seen(monkeypatch):
    """Older versions of Dynamo run everything in eager under a mode."""
    monkeypatch.setattr(traffic._CountOperators, "ignore_compile_internals", classmethod(lambda cls: False))
    model, *inputs = partly()
    regions = explain(model, *inputs)
    assert _traffic(optimize(copy.deepcopy(model)), inputs, regions) == _traffic(model, inputs)
    whole = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Tanh())
    regions = explain(whole, inputs[0])
    counted = _traffic(optimize(copy.deepcopy(whole)), inputs[:1], regions)
    assert (counted.operators, counted.library) == (len(regions.kernels), len(regions.library))


def test_stops_have_sizes_and_lines():
    def f(x, y):
        return (torch.softmax(x * 2, 0) + y).sum(1), torch.softmax(x * 3, 1)

    explanation = explain(f, torch.randn(6, 7), torch.randn(6, 7))
    stops = explanation.stops_to_show
    assert stops and all(reason != "library_call" for reason, *_ in stops)
    assert all("test_capture_explain.py" in line for *_, line in stops)
    assert not any("d0" in cell for row in stops for cell in row)


def test_a_stop_is_shown_once():
    """One place may stop fusion in several graphs, phases and sizes."""
    stop = {"reason": "kernel_too_large", "operator": "sum", "detail": "why", "source": "model.py:3: x.sum()"}
    call = {"reason": "library_call", "operator": "matmul", "shape": [4], "detail": "", "source": ""}
    explanation = Explanation(
        "f", stops=[{**stop, "shape": [4, 1]}, call, {**stop, "shape": []}, {**stop, "shape": [4, 1]}]
    )
    assert explanation.stops_to_show == [("kernel_too_large", "sum", "4x1, ()", "why", "model.py:3: x.sum()")]


def test_explain_a_function_that_is_optimised():
    fast = optimize(lambda x: torch.relu(x) * 2)
    assert len(explain(fast, torch.randn(3)).regions) == 1


def test_explain_something_else():
    with pytest.raises(TypeError, match="explain: expected"):
        explain(3)
