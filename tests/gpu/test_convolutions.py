"""Convolutions by our own kernels (docs/contractions.md), against float64 and beside cuDNN."""

import pytest
import torch
import torch.nn.functional as F
from convolutions import check_convolution, error

import fusewright
from fusewright import optimize, stats

pytestmark = [
    pytest.mark.real_core,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 8, reason="tensor cores' instructions"
    ),
]


@pytest.fixture(autouse=True)
def own(monkeypatch):
    """Every convolution and gradient is ours, from the second call on."""
    monkeypatch.setenv("FUSEWRIGHT_CONVOLUTION", "own")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    yield
    torch.cuda.synchronize()


@pytest.mark.parametrize("seed", range(60))
def test_random_geometry(seed):
    check_convolution(seed, "cuda")


def test_same_results_from_run_to_run():
    x = torch.randn(16, 64, 56, 56, device="cuda", requires_grad=True)
    w = torch.randn(96, 64, 3, 3, device="cuda", requires_grad=True)
    f = optimize(lambda x, w: F.conv2d(x, w, padding=1).relu(), tune=False)
    dy = torch.randn(16, 96, 56, 56, device="cuda")
    torch.autograd.grad(f(x, w), (x, w), dy)
    fusewright._core.finish_compiling()
    first = [f(x, w), *torch.autograd.grad(f(x, w), (x, w), dy)]
    for _ in range(20):
        again = [f(x, w), *torch.autograd.grad(f(x, w), (x, w), dy)]
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_what_the_user_does_not_allow(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    x = torch.randn(4, 16, 20, 20, device="cuda")
    w = torch.randn(16, 16, 3, 3, device="cuda")
    f = optimize(lambda x, w: F.conv2d(x, w).relu(), tune=False)
    for _ in range(2):
        before = stats()["convolutions"]
        result = f(x, w)
        fusewright._core.finish_compiling()
    assert stats()["convolutions"] == before
    assert error(result, F.conv2d(x.double(), w.double()).relu()) < 1e-6


def test_numbers_beyond_halves():
    x = torch.randn(8, 32, 40, 40, device="cuda")
    x[:4] *= 1e-12
    x[:, :, :20] *= 1e6
    x[0, 0, 5, 5] = float("inf")
    w = torch.randn(48, 32, 3, 3, device="cuda") / 10
    f = optimize(lambda x, w: F.conv2d(x, w, padding=1) * 2.0, tune=False)
    f(x, w)
    fusewright._core.finish_compiling()
    ours, exact = f(x, w), F.conv2d(x.double(), w.double(), padding=1) * 2
    size = F.conv2d(x.double().abs(), w.double().abs(), padding=1) * 2
    finite = exact.isfinite()
    assert torch.equal(finite, ours.isfinite())
    assert ((ours.double() - exact).abs()[finite] <= 2**-9 * size[finite]).all()
