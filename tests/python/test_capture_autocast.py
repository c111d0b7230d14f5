"""The autocast lists, held against eager: same dtypes, same numbers, and off again afterwards."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fusewright import optimize, stats

W2, W3 = torch.randn(4, 3, 3, 3), torch.randn(3, 4, 2, 2, 2)
X2, X3, M = torch.randn(2, 3, 6, 6), torch.randn(2, 3, 4, 4, 4), torch.randn(5, 6)
CASES = {
    "linear": (lambda x: F.linear(x, x).tanh(), M),
    "matmul": (lambda x: (x @ x.t()).tanh(), M),
    "mm": (lambda x: torch.mm(x, x.t()).tanh(), M),
    "addmm": (lambda x: torch.addmm(x.sum(1), x, x.t()).tanh(), M),
    "conv2d": (lambda x: F.conv2d(x, W2).relu(), X2),
    "conv_transpose3d": (lambda x: F.conv_transpose3d(x, W3).relu(), X3),
    "softmax": (lambda x: F.softmax(x, 1), M),
    "layer_norm": (lambda x: F.layer_norm(x, (6,)), M),
    "group_norm": (lambda x: F.group_norm(x, 3), M),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), M),
    "gelu": (F.gelu, M),
    "sum": (lambda x: x.sum(1), M),
    "mean": (lambda x: x.mean(1), M),
    "exp": (torch.exp, M),
    "log1p": (lambda x: torch.log1p(x.abs()), M),
    "pow": (lambda x: x**2, M),
    "norm": (lambda x: x.norm(dim=1), M),
    "max_pool2d": (lambda x: F.max_pool2d(x * 1, 2), X2),
    "max_pool3d": (lambda x: F.max_pool3d(x * 1, 2), X3),
    "avg_pool3d": (lambda x: F.avg_pool3d(x * 1, 2), X3),
    "avg_pool2d": (lambda x: F.avg_pool2d(x * 1, 2), X2),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x * 1, 1), X3),
    "prod": (lambda x: x.prod(1), M),
    "mse_loss": (lambda x: F.mse_loss(x, x * 2), M),
    "l1_loss": (lambda x: F.l1_loss(x, x * 2), M),
    "smooth_l1_loss": (lambda x: F.smooth_l1_loss(x, x * 2), M),
    "huber_loss": (lambda x: F.huber_loss(x, x * 2), M),
    "kl_div": (lambda x: F.kl_div(x, x * 2, log_target=True), M),
    "bce_with_logits": (lambda x: F.binary_cross_entropy_with_logits(x, x * 2), M),
    "cross_entropy": (lambda x: F.cross_entropy(x, x.amax(1).abs().clamp(max=3).long()), M),
    "cross_entropy_of_probabilities": (lambda x: F.cross_entropy(x, x * 2), M),
    "nll_loss": (lambda x: F.nll_loss(x, x.amax(1).abs().clamp(max=3).long()), M),
    "prelu": (lambda x: F.prelu(x, x[0, :1]) * 1, M),
    "add_mixed": (lambda x: x + x.float(), M),
    "logsumexp": (lambda x: x.logsumexp(1), M),
    "var": (lambda x: x.var(1), M),
}


def agrees_under_autocast(f, x, narrow):
    with torch.autocast(x.device.type, narrow):
        try:
            eager = f(x)
        except RuntimeError:
            pytest.skip("eager refuses this dtype")
        ours = optimize(f)(x)
    assert ours.dtype is eager.dtype
    torch.testing.assert_close(ours, eager, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_lists_are_eagers(name, dtype):
    f, x = CASES[name]
    agrees_under_autocast(f, x.to(dtype), torch.bfloat16)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)

    def forward(self, x):
        return F.silu(self.norm(self.linear(x)))


def test_norm_with_float32_parameters_and_alternating_states():
    model, plain = Mixed(), Mixed()
    plain.load_state_dict(model.state_dict())
    optimize(model, strict=True)
    for enabled in (True, False, True, False):
        for dtype in (torch.bfloat16, torch.float16):
            results = []
            for m in (model, plain):
                with torch.autocast("cpu", dtype, enabled=enabled):
                    y = m(M)
                m.zero_grad()
                y.float().sum().backward()
                results.append((y, m.linear.weight.grad, m.norm.weight.grad))
            assert results[0][0].dtype is results[1][0].dtype
            torch.testing.assert_close(*results, rtol=0.05, atol=0.05)
    torch.testing.assert_close(dict(model.named_buffers()), dict(plain.named_buffers()), rtol=0.05, atol=0.05)
    assert stats()["region_calls"] >= 6  # torch 2.6 does not guard autocast's dtype: the second one is PyTorch's
