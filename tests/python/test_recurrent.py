"""LSTM, GRU and RNN stay PyTorch's: the log and `explain` say so, and what stands around them is fused."""

import copy

import pytest
import torch
import torch.nn.functional as F
from check import check
from torch import nn

import fusewright
from fusewright import UnsupportedError, explain, optimize, reasons


class Recurrent(nn.Module):
    """A recurrent layer between two layers that are fused."""

    def __init__(self, kind, **options):
        super().__init__()
        self.before, self.inside = nn.Linear(4, 6), kind(6, 5, **options)
        self.after = nn.Linear(10 if options.get("bidirectional") else 5, 4)

    def forward(self, x):
        return F.gelu(self.after(self.inside(F.gelu(self.before(x)))[0])) * 2


KINDS = {
    "lstm": (nn.LSTM, {}),
    "gru": (nn.GRU, {"num_layers": 2}),
    "rnn": (nn.RNN, {"nonlinearity": "relu", "batch_first": True}),
    "bidirectional": (nn.LSTM, {"bidirectional": True, "num_layers": 2}),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_stands_around_is_fused(name, caplog):
    kind, options = KINDS[name]
    model, x = Recurrent(kind, **options), torch.randn(3, 2, 4)
    check(model, [x], fused=False, layouts=["contiguous"])
    stats = fusewright.stats()
    assert stats["region_calls"] >= 2 and stats["fallback_calls"] == 0
    operator = {"lstm": "lstm", "gru": "gru", "rnn": "rnn_relu", "bidirectional": "lstm"}[name]
    assert f"{operator} stays PyTorch's" in caplog.text
    explanation = explain(model, x)
    assert len(explanation.regions) == 2
    assert [(f.operator, f.reason) for f in explanation.fallbacks] == [(operator, reasons.UNSUPPORTED_OPERATOR)]
    with pytest.raises(UnsupportedError) as caught:
        optimize(model, strict=True)(x)
    assert caught.value.operator == operator


def test_lengths_that_vary():
    plain = Recurrent(nn.LSTM)
    fast = optimize(copy.deepcopy(plain))
    for length in (3, 5, 300, 7):
        x = torch.randn(length, 2, 4)
        for model in (plain, fast):
            model.zero_grad()
            model.y = model(x)
            model.y.sum().backward()
        torch.testing.assert_close(fast.y, plain.y)
        for ours, eager in zip(fast.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, eager.grad)
    assert fusewright.stats()["captures"] <= 6


def test_masks_between_layers():
    plain = Recurrent(nn.LSTM, num_layers=2, dropout=0.5)
    fast = optimize(copy.deepcopy(plain))
    x = torch.randn(3, 2, 4)
    results = []
    for model in (plain, fast):
        torch.manual_seed(0)
        results.append(model(x))
    torch.testing.assert_close(*results)
