"""The tuner on the device itself: every candidate is right, choices repeat, graphs are recorded without timing."""

import time

import pytest
import torch
import torch.nn.functional as F

from fusewright import _core, optimize, stats
from fusewright.benchmark.first_call import first_calls
from fusewright.models import default_models, load

pytestmark = pytest.mark.cuda


def rows(x, w, b):
    return F.gelu(F.layer_norm(x, x.shape[1:], w, b))


def columns(x, w, b):
    return F.silu(F.batch_norm(x, None, None, w, b, training=True))


def points(x, w, b):
    return F.gelu(x * w + b)


def step(f, *inputs):
    inputs = [t.detach().requires_grad_() for t in inputs]
    y = f(*inputs)
    return [y.detach(), *torch.autograd.grad(y, inputs, torch.ones_like(y) / y.shape[0])]


def draw(n, c):
    return torch.randn(n, c), torch.rand(c) + 0.5, torch.randn(c)


def groups(x, w, b):
    return F.silu(F.group_norm(x, x.shape[1] // (8 if x.shape[1] % 8 == 0 else 1), w, b))


@pytest.mark.parametrize("f", [rows, columns, points, groups], ids=lambda f: f.__name__)
@pytest.mark.parametrize("sizes", [(4096, 1024), (8, 50000), (30000, 33), (257, 4000)], ids=str)
def test_every_candidate(f, sizes):
    inputs = draw(*sizes)
    expected = step(f, *(t.double() for t in inputs))
    ours = optimize(f, strict=True, tune=False)
    for number in range(11):
        _core.force_candidate(number)
        try:
            found = step(ours, *inputs)
        finally:
            _core.force_candidate(-1)
        for y, e in zip(found, expected, strict=True):
            torch.testing.assert_close(y.double(), e, atol=2e-4, rtol=2e-4, msg=lambda m: f"candidate {number}: {m}")  # noqa: B023


def test_the_choice_is_made_once():
    ours, inputs = optimize(rows, strict=True, tune=True), draw(512, 768)
    step(ours, *inputs)
    stats()  # waits for what is compiled in the background
    first = step(ours, *inputs)
    counts = stats()
    again = step(ours, *inputs)
    assert stats()["kernels_tuned"] == counts["kernels_tuned"]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_graph_of_sizes_that_were_not_timed():
    ours = optimize(points, strict=True, dynamic=True, tune=True)
    with torch.no_grad():
        for sizes in ((100, 64), (90, 72)):
            ours(*draw(*sizes))
        inputs = draw(4096, 5 * 64)
        counts = stats()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = ours(*inputs)
        graph.replay()
        torch.testing.assert_close(y, points(*inputs), atol=1e-5, rtol=1e-5)
    assert stats()["kernels_tuned"] == counts["kernels_tuned"]


def test_against_eager():
    """Results and gradients are right for either winner, and timing does not touch the caller's."""
    for sizes in ((3, 5), (2048, 2048)):
        inputs = draw(*sizes)
        ours = optimize(rows, tune=True)
        for _ in range(3):
            stats()
            for y, e in zip(step(ours, *inputs), step(rows, *inputs), strict=True):
                torch.testing.assert_close(y, e, atol=1e-4, rtol=1e-4)
        leaves = [t.detach().requires_grad_() for t in inputs]
        ours(*leaves)
        assert all(t.grad is None for t in leaves)


def test_a_slow_host_does_not_decide(monkeypatch):
    """Timing is the device's, whatever the host takes to launch a step."""
    run, calls = _core.run_region, 0

    def late(*call):
        nonlocal calls
        calls += 1
        until = time.perf_counter() + 300e-6
        while time.perf_counter() < until:
            pass
        return run(*call)

    monkeypatch.setattr(_core, "run_region", late)
    scale = 1 + time.time() % 1  # nobody has timed and remembered this function yet
    ours, inputs = optimize(lambda x, w, b: F.gelu(rows(x, w, b)) * scale, tune=True), draw(8192, 768)
    before = stats()["fallback_calls"]
    for _ in range(3):
        step(ours, *inputs)
        stats()  # waits for what is compiled in the background: then the two are timed
    assert calls > 4 and stats()["fallback_calls"] == before
    timed = calls
    step(ours, *inputs)
    assert calls == timed, "it is decided"


def test_a_full_cache_leaves_nothing_to_compile_or_time(device):
    found = first_calls(load(default_models()[-1]), "small", device)
    assert found["cold"]["kernels_compiled"] > 0
    assert found["warm"]["kernels_compiled"] == found["warm"]["kernels_tuned"] == 0
