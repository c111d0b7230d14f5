"""The four showcase models: output, every gradient, buffers, and training beside eager."""

import copy

import pytest
import showcase
import torch
from check import check
from showcase import BATCH_NORM, CONV, CONV_TRANSPOSE, GROUP_NORM

from fusewright import optimize, stats

pytestmark = pytest.mark.real_core


@pytest.mark.parametrize("name", showcase.NAMES)
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_against_float64(name, train):
    model = showcase.make(name).train(train)
    check(model, [showcase.inputs(name)], layouts=["contiguous"])
    check(model, lambda size: [showcase.inputs(name, size)], sizes=range(1, 6) if train else [3], layouts=[])


@pytest.mark.parametrize("name", [CONV, CONV_TRANSPOSE])
def test_channels_last(name):
    check(showcase.make(name), [showcase.inputs(name)], layouts=["channels_last", "transposed", "offset"])


@pytest.mark.parametrize("name", showcase.NAMES)
def test_training_beside_eager(name):
    eager = showcase.make(name)
    fused = optimize(copy.deepcopy(eager), strict=True)
    start = copy.deepcopy(eager.state_dict())
    pairs = [(model, torch.optim.Adam(model.parameters(), lr=0.01)) for model in (eager, fused)]
    for _ in range(5):
        x, losses = showcase.inputs(name), []
        target = torch.randn_like(eager(x)) if name != BATCH_NORM else torch.randn(x.shape[0], 12)
        for model, optimizer in pairs:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-6)
    assert stats()["captures"] == 1 and stats()["region_calls"] == 5 and stats()["fallback_calls"] == 0
    # Adam steps by sign where a gradient is all rounding: the bias that a norm cancels is left out.
    cancelled = "linear.bias" if name == BATCH_NORM else None
    for key, value in fused.state_dict().items():
        if key != cancelled and "running_mean" not in key:
            torch.testing.assert_close(
                value, eager.state_dict()[key], rtol=1e-3, atol=1e-3, msg=lambda m, k=key: f"{k}: {m}"
            )
            assert not torch.equal(value, start[key]), f"{key} was not trained"


def test_every_parameter_gets_its_gradient():
    for name in showcase.NAMES:
        model = optimize(showcase.make(name), strict=True)
        x = showcase.inputs(name).requires_grad_()
        model(x).square().sum().backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.shape == parameter.shape, f"{name} {key}"
            # batch_norm subtracts the mean and with it this bias: its gradient is 0, in eager up to rounding.
            if (name, key) != (BATCH_NORM, "linear.bias"):
                assert parameter.grad.abs().min() > 0, f"{name} {key}"
        assert x.grad.abs().max() > 0


def test_the_bias_stays_a_tensor():
    """Steps change the added bias, and each call reads its present value without another capture."""
    model = showcase.make(BATCH_NORM)
    plain = copy.deepcopy(model)
    optimize(model, strict=True)
    x = showcase.inputs(BATCH_NORM)
    results = []
    for value in (0.5, -2.0, 7.25):
        with torch.no_grad():
            for m in (model, plain):
                m.bias.fill_(value)
        results.append(model(x))
        torch.testing.assert_close(results[-1], plain(x))
    assert not torch.allclose(results[0], results[1]) and stats()["captures"] == 1
    model.bias = torch.nn.Parameter(torch.tensor([3.5]))  # another tensor in its place
    plain.bias = torch.nn.Parameter(torch.tensor([3.5]))
    torch.testing.assert_close(model(x), plain(x))
    for shape in ((12,), (1, 12)):
        check(showcase.make(BATCH_NORM, 7, 12, shape), [x], layouts=["contiguous"])


def test_running_statistics_and_counter():
    model = showcase.make(BATCH_NORM)
    plain = copy.deepcopy(model)
    optimize(model, strict=True)
    for train in (True, True, False, True):
        x = showcase.inputs(BATCH_NORM) * 3 + 1
        torch.testing.assert_close(model.train(train)(x), plain.train(train)(x))
        torch.testing.assert_close(model.state_dict(), plain.state_dict())
    assert model.batch_norm.num_batches_tracked == 3
    for m in (model, plain):
        with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
            m(torch.randn(1, 7))
    torch.testing.assert_close(model.state_dict(), plain.state_dict())


# Whatever broadcasts against the result: per channel, per column, one number, a rank more.
MULTIPLIERS = {
    CONV: [(5, 1, 1), (6,), (7, 6), (1,), (1, 5, 1, 1), ()],
    CONV_TRANSPOSE: [(5, 1, 1, 1), (10,), (1, 8, 1), (1, 5, 1, 1, 1)],
    GROUP_NORM: [(12,), (1,), (6, 1), (6, 12)],
}


@pytest.mark.parametrize("name, shape", [(name, shape) for name in MULTIPLIERS for shape in MULTIPLIERS[name]])
def test_multipliers(name, shape):
    arguments = (*showcase.ARGUMENTS[name][:-1], shape)
    check(showcase.make(name, *arguments), [showcase.inputs(name)], layouts=["contiguous"])


@pytest.mark.parametrize("name", showcase.NAMES)
def test_bfloat16(name):
    check(showcase.make(name).bfloat16(), [showcase.inputs(name).bfloat16()], layouts=["contiguous"])


def test_the_divisor_is_read_at_each_call():
    model = showcase.make(BATCH_NORM).eval()
    plain = copy.deepcopy(model)
    optimize(model, strict=True)
    x = showcase.inputs(BATCH_NORM)
    for value in (1.5, 2.0, 0.25, 3):
        model.divide_value = plain.divide_value = value
        torch.testing.assert_close(model(x), plain(x))
