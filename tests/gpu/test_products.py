"""Matrix products of float32 by our own kernels (docs/contractions.md), against float64 and beside cuBLAS."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusewright
from fusewright import optimize, stats
from fusewright.capture import partition

pytestmark = [
    pytest.mark.real_core,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="Hopper's instructions"
    ),
]


@pytest.fixture(autouse=True)
def own(monkeypatch):
    """Every product is ours, from the second call on."""
    monkeypatch.setenv("FUSEWRIGHT_FLOAT32_MATMUL", "own")
    monkeypatch.setattr(partition, "LEAST_PRODUCT", 0)
    fusewright._core.finish_compiling()
    yield
    torch.cuda.synchronize()


def settled(function):
    """The function after a call for which the kernels are compiled."""

    def run(*arguments):
        function(*arguments)
        fusewright._core.finish_compiling()
        before = stats()["matrix_products"]
        result = function(*arguments)
        assert stats()["matrix_products"] > before
        return result

    return run


def error(x, exact):
    return ((x.double() - exact).norm() / exact.norm()).item()


def product(a, b):
    return settled(optimize(lambda x, y: x @ y, tune=False))(a, b)


SIZES = [(1, 1, 32), (1, 300, 64), (128, 256, 64), (129, 257, 65), (200, 1000, 333), (1000, 70, 5000), (2048, 2048, 96)]


@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes_and_layouts(size, transposed):
    m, n, k = size
    a = torch.randn(k, m, device="cuda").t() if transposed[0] else torch.randn(m, k, device="cuda")
    b = torch.randn(n, k, device="cuda").t() if transposed[1] else torch.randn(k, n, device="cuda")
    exact = a.double() @ b.double()
    assert error(product(a, b), exact) < max(1.5 * error(a @ b, exact), 3e-7)


def test_offset_and_strided_operands():
    whole = torch.randn(301, 401, device="cuda")
    a, b = whole[1:, 3:203], torch.randn(401, 150, device="cuda")[1:201:1]
    exact = a.double() @ b.double()
    assert error(product(a, b), exact) < 3e-7
    spread = torch.randn(300, 400, device="cuda")[:, ::2]
    exact = spread.double() @ b.double()
    assert error(product(spread, b), exact) < 3e-7


def test_batches():
    a, b = torch.randn(5, 130, 70, device="cuda"), torch.randn(5, 70, 200, device="cuda")
    exact = a.double() @ b.double()
    assert error(product(a, b), exact) < 3e-7
    turned = torch.randn(5, 200, 70, device="cuda").transpose(1, 2)
    assert error(product(a, turned), a.double() @ turned.double()) < 3e-7


KINDS = {
    "normal": lambda *s: torch.randn(*s, device="cuda"),
    "lognormal 1": lambda *s: torch.exp(torch.randn(*s, device="cuda")) * torch.randn(*s, device="cuda").sign(),
    "lognormal 5": lambda *s: torch.exp(5 * torch.randn(*s, device="cuda")) * torch.randn(*s, device="cuda").sign(),
    "positive": lambda *s: torch.randn(*s, device="cuda").abs(),
    "log-uniform": lambda *s: torch.pow(10.0, torch.empty(*s, device="cuda").uniform_(-8, 8)),
    "ill-scaled rows": lambda *s: (
        torch.randn(*s, device="cuda") * torch.pow(10.0, torch.empty(s[0], 1, device="cuda").uniform_(-15, 15))
    ),
    "outliers": lambda *s: torch.where(
        torch.rand(*s, device="cuda") < 1e-3, 1e4 * torch.randn(*s, device="cuda"), torch.randn(*s, device="cuda")
    ),
    "subnormal": lambda *s: 1e-38 * torch.rand(*s, device="cuda"),
    "sparse": lambda *s: torch.randn(*s, device="cuda") * (torch.rand(*s, device="cuda") < 0.02),
}


@pytest.mark.parametrize("depth", [64, 1000, 8192])
@pytest.mark.parametrize("kind", KINDS)
def test_accuracy(kind, depth):
    """Within what the contract of float32 leaves: the norm of the error beside cuBLAS's, and each element's own."""
    torch.manual_seed(depth)
    a, b = KINDS[kind](256, depth), KINDS[kind](384, depth).t()
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    ours, theirs = product(a, b), a @ b
    assert error(ours, exact) <= max(2 * error(theirs, exact), 3e-7)

    def worst(x):
        return ((x.double() - exact).abs() / (size + 1e-300)).max().item()

    assert worst(ours) <= max(4 * worst(theirs), 6e-7)


def test_small_numbers_beside_large_ones():
    """Sums that see only the small numbers of rows with large ones."""
    a, b = torch.zeros(300, 64, device="cuda"), torch.zeros(64, 200, device="cuda")
    a[:, 0], a[:, 1] = 1.0, 1e-13 * torch.rand(300, device="cuda")
    b[0], b[1] = 1e-13, 1.0
    exact = a.double() @ b.double()
    assert ((product(a, b).double() - exact).abs() / exact).max() < 3e-7


def test_infinities_and_nan():
    a, b = torch.rand(300, 100, device="cuda") + 0.5, torch.rand(100, 200, device="cuda") + 0.5
    a[7, 3], a[200, 5], b[9, 150] = torch.inf, torch.nan, -torch.inf
    ours, theirs = product(a, b), a @ b
    torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_training(bias):
    """A linear chain: output and every gradient."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(333, 500, bias=bias), nn.GroupNorm(20, 500), nn.SiLU(), nn.Linear(500, 129)).cuda()
    x = torch.randn(4, 77, 333, device="cuda").flatten(0, 1).requires_grad_()
    gradient = torch.randn(308, 129, device="cuda")

    def step(module, x, gradient):
        x = x.detach().requires_grad_()
        for parameter in module.parameters():
            parameter.grad = None
        y = module(x)
        y.backward(gradient)
        return [y.detach(), x.grad, *(p.grad for p in module.parameters())]

    theirs = step(model, x, gradient)
    exact = step(model.double(), x.double(), gradient.double())
    model.float()
    fast = optimize(model, tune=False)
    ours = settled(lambda: step(fast, x, gradient))()
    for mine, eager, right in zip(ours, theirs, exact, strict=True):
        assert error(mine, right) < max(2 * error(eager, right), 5e-7)


def test_three_dimensions():
    layer = nn.Linear(200, 300).cuda()
    x = torch.randn(6, 50, 200, device="cuda")
    exact = F.linear(x.double(), layer.weight.double(), layer.bias.double())
    fast = settled(optimize(lambda x: torch.tanh(layer(x)), tune=False))
    assert error(fast(x), exact.tanh()) < 1e-6


def test_results_are_the_same_from_run_to_run():
    a, b = torch.randn(100, 9000, device="cuda"), torch.randn(9000, 130, device="cuda")
    function = settled(optimize(lambda x, y: x @ y, tune=False))
    first = function(a, b)
    for _ in range(50):
        assert torch.equal(function(a, b), first)


def test_weights_that_change_without_their_version():
    """Operands are packed in every call."""
    weight = torch.randn(300, 200, device="cuda")
    x = torch.randn(150, 200, device="cuda")
    function = settled(optimize(lambda x: F.linear(x, weight).relu(), tune=False))
    function(x)
    weight.data.mul_(2)
    exact = F.linear(x.double(), weight.double()).relu()
    assert error(function(x), exact) < 5e-7


def test_graph_replay_sees_new_operands():
    a, b = torch.randn(200, 300, device="cuda"), torch.randn(300, 256, device="cuda")
    function = optimize(lambda x, y: (x @ y) * 2, tune=False)
    with torch.no_grad():
        settled(function)(a, b)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = function(a, b)
    b.copy_(torch.randn_like(b))
    graph.replay()
    assert error(result, (a.double() @ b.double()) * 2) < 5e-7


def test_tf32_is_the_librarys():
    a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    function = optimize(lambda x, y: (x @ y).relu(), tune=False)
    function(a, b)
    fusewright._core.finish_compiling()
    before = stats()["matrix_products"]
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        result = function(a, b)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert stats()["matrix_products"] == before
    assert error(result, (a.double() @ b.double()).relu()) < 1e-3


def test_side_streams():
    a, b = torch.randn(700, 800, device="cuda"), torch.randn(800, 900, device="cuda")
    function = settled(optimize(lambda x, y: x @ y, tune=False))
    expected = function(a, b)
    results = []
    for _ in range(8):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            results.append(function(a, b))
        torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    assert all(torch.equal(result, expected) for result in results)
