"""explain: complete, readable, and without a trace."""

import copy

import pytest
import torch
from torch import nn

import fusewright
from fusewright import explain, optimize, reasons


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


def test_explain_a_function_that_is_optimised():
    fast = optimize(lambda x: torch.relu(x) * 2)
    assert len(explain(fast, torch.randn(3)).regions) == 1


def test_explain_something_else():
    with pytest.raises(TypeError, match="explain: expected"):
        explain(3)
