"""Buffers that a region updates: in place, seen by autograd as eager's update is, and never twice."""

import copy
import ctypes

import pytest
import torch
from conftest import EMULATOR, FAKE_CORE
from torch import nn

import fusewright
from fusewright import _core, optimize
from fusewright.capture import assemble


def pair(model):
    return optimize(copy.deepcopy(model), strict=True), model


def agree(ours, plain, *inputs):
    torch.testing.assert_close(ours(*inputs), plain(*inputs))
    torch.testing.assert_close(ours.state_dict(), plain.state_dict())


def operators_of(call):
    """Returns the operators that PyTorch's profiler sees in a call, without those of a capture."""
    with torch.profiler.profile() as profile:
        call()
    return [event.key for event in profile.key_averages()]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("shape", [(31, 6), (5, 6, 7), (4, 6, 5, 3)], ids=str)
def test_nothing_is_left_to_copy(shape, grad):
    norm = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)](6)
    ours, plain = pair(nn.Sequential(norm, nn.SiLU()))
    buffers = {name: buffer.data_ptr() for name, buffer in ours.named_buffers()}
    x = torch.randn(shape, requires_grad=grad)
    agree(ours, plain, x)
    seen = operators_of(lambda: ours(x))
    assert FAKE_CORE or not {"aten::copy_", "aten::add_", "aten::add"} & set(seen), seen
    plain(x)
    agree(ours, plain, x * 3 + 1)
    assert buffers == {name: buffer.data_ptr() for name, buffer in ours.named_buffers()}
    assert int(ours[0].num_batches_tracked) == 3
    agree(ours.eval(), plain.eval(), x)


@pytest.mark.real_core
def test_launches(emulated):
    """One kernel: statistics, their update, the counter and the result."""
    launches = ctypes.CDLL(str(EMULATOR / "libcuda_emulator.so")).emulator_launches
    launches.restype = ctypes.c_uint64
    for model, x in (
        (nn.Sequential(nn.BatchNorm1d(8), nn.SiLU()), torch.randn(64, 8)),
        (nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()), torch.randn(2, 3, 9, 8)),
    ):
        ours, plain = pair(model)
        agree(ours, plain, x)
        before = launches()
        seen = operators_of(lambda: ours(x))  # noqa: B023
        assert launches() - before == 1
        assert not {"aten::copy_", "aten::add_"} & set(seen), seen
        plain(x)
        agree(ours, plain, x)


def test_autograd_sees_one_update():
    ours, plain = pair(nn.BatchNorm1d(4))
    x = torch.randn(7, 4, requires_grad=True)
    ours(x)
    for grad in (True, False, True):
        before = {name: buffer._version for name, buffer in ours.named_buffers()}
        with torch.set_grad_enabled(grad):
            ours(x)
        assert {name: buffer._version - before[name] for name, buffer in ours.named_buffers()} == dict.fromkeys(
            before, 1
        )
    # Saved by somebody else before the update.
    w = torch.ones(4, requires_grad=True)
    held = (w * ours.running_mean).sum()
    ours(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        held.backward()
    assert not ours.running_mean.requires_grad


class Momentum(nn.Module):
    """A buffer that the backward reads, updated by what it was used for."""

    def __init__(self, detached):
        super().__init__()
        self.register_buffer("centre", torch.linspace(-1, 1, 4))
        self.detached = detached

    def forward(self, x):
        y = torch.tanh(x * self.centre if self.detached else x)
        mean = y.mean(0)
        self.centre.mul_(0.9).add_(mean.detach() if self.detached else mean, alpha=0.1)
        return y


def test_a_buffer_that_the_backward_reads():
    ours, plain = optimize(Momentum(True)), Momentum(True)
    x = torch.randn(5, 4, requires_grad=True)
    agree(ours, plain, x)
    y = ours(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    plain(x)
    # Hooks keep what was there before the update.
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x):
        torch.testing.assert_close(
            torch.autograd.grad(ours(x).sum(), x), torch.autograd.grad(plain(x).sum(), x), rtol=1e-5, atol=1e-6
        )
    torch.testing.assert_close(ours.centre, plain.centre)


def test_a_buffer_that_autograd_follows():
    ours, plain = optimize(Momentum(False)), Momentum(False)
    x = torch.randn(5, 4, requires_grad=True)
    agree(ours, plain, x)
    assert ours.centre.requires_grad and plain.centre.requires_grad
    for model in (ours, plain):
        x.grad = None
        model.centre.sum().backward()
        torch.testing.assert_close(x.grad.abs().sum() > 0, torch.tensor(True))


def test_statistics_that_share_memory():
    """Eager computes with what it has written already; the region with what was there."""
    x = torch.randn(7, 4)
    ours = optimize(nn.BatchNorm1d(4), strict=True)
    ours(x)
    both = torch.arange(8.0)
    ours.running_mean, ours.running_var = both[:4], both[2:6]
    before, mean, var = both.clone().unfold(0, 4, 2), x.mean(0), x.var(0)
    ours(x)
    torch.testing.assert_close(ours.running_var, 0.9 * before[1] + 0.1 * var)
    torch.testing.assert_close(ours.running_mean[:2], (0.9 * before[0] + 0.1 * mean)[:2])


class Stepping(nn.Module):
    """Counts, and reads the count: its backward reads it, too."""

    def __init__(self, dtype):
        super().__init__()
        self.register_buffer("steps", torch.zeros(4, dtype=dtype))

    def forward(self, x):
        self.steps += 1
        return torch.tanh(x) / self.steps


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])
def test_a_counter_that_the_backward_reads(dtype):
    ours, plain = pair(Stepping(dtype))
    for _ in range(3):
        found, expected = (torch.randn(3, 4).requires_grad_() for _ in range(2))
        expected.data.copy_(found.data)
        ours(found).sum().backward()
        plain(expected).sum().backward()
        torch.testing.assert_close(found.grad, expected.grad)
        torch.testing.assert_close(ours.steps, plain.steps)


def test_what_comes_of_a_statistic_has_no_gradient():
    class Moved(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            y = torch.tanh(self.norm(x))
            self.norm.running_mean.add_(1)
            return y, self.norm.running_mean * 2

    ours, plain = pair(Moved())
    for _ in range(3):
        x = torch.randn(3, 4, requires_grad=True)
        agree(ours, plain, x)
        assert not ours.norm.running_mean.requires_grad and not ours(x)[1].requires_grad
        plain(x)


class Instances(nn.Module):
    def __init__(self, use):
        super().__init__()
        self.norm, self.use = nn.InstanceNorm1d(4, track_running_stats=True), use

    def forward(self, x):
        return self.use(self.norm, x)


def read_before(norm, x):
    a = norm.running_mean * 2
    return torch.tanh(norm(x)), a


def for_the_statistics_alone(norm, x):
    norm(x)
    return torch.tanh(x)


def moved_around_it(norm, x):
    norm.running_mean.mul_(0.5)
    y = norm(x)
    norm.running_mean.add_(1)
    return y * 2


@pytest.mark.parametrize("use", [read_before, for_the_statistics_alone, moved_around_it, lambda norm, x: norm(x).exp()])
def test_statistics_that_no_schema_tells_of(use):
    """PyTorch's instance norm updates them without saying so."""
    plain = Instances(use)
    ours = optimize(copy.deepcopy(plain))
    for _ in range(2):
        agree(ours, plain, torch.randn(2, 4, 5))


def test_strided_statistics():
    ours, plain = pair(nn.BatchNorm1d(4))
    for model in (ours, plain):
        model.running_mean = torch.zeros(4, 2)[:, 0]
    for _ in range(2):
        agree(ours, plain, torch.randn(7, 4))


def test_inference_mode():
    ours, plain = pair(nn.BatchNorm1d(4))
    x = torch.randn(7, 4)
    with torch.inference_mode():
        agree(ours, plain, x)
        agree(ours, plain, x)
    agree(ours, plain, x)


def test_one_norm_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(torch.sigmoid(self.norm(x)))

    ours, plain = pair(Twice())
    for _ in range(3):
        agree(ours, plain, torch.randn(7, 4))


def test_statistics_read_around_the_norm():
    class Read(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            before = self.norm.running_mean * 2
            y = self.norm(x)
            return y, before, torch.exp(self.norm.running_var), y.cumsum(0) + self.norm.running_mean

    ours, plain = optimize(Read()), Read()
    for _ in range(3):
        agree(ours, plain, torch.randn(7, 4))


def test_a_fallback_updates_once(monkeypatch):
    def refuse(*call):
        raise _core.Error("refused")

    monkeypatch.setattr(_core, "run_region", refuse)
    ours, plain = optimize(nn.BatchNorm1d(4)), nn.BatchNorm1d(4)
    x = torch.randn(7, 4, requires_grad=True)
    for _ in range(2):
        agree(ours, plain, x)
    assert not ours.running_mean.requires_grad and fusewright.stats()["fallback_calls"] == 2


def test_a_failure_behind_an_update_is_the_callers(monkeypatch):
    """The call cannot be repeated in eager: that would update twice."""
    run = _core.run_region

    def interrupted(*call):
        run(*call)
        raise _core.Interrupted("failed when buffers had been updated")

    monkeypatch.setattr(_core, "run_region", interrupted)
    ours, plain = optimize(nn.BatchNorm1d(4)), nn.BatchNorm1d(4)
    x = torch.randn(7, 4)
    with pytest.raises(RuntimeError, match="had been updated"):
        ours(x)
    plain(x)
    for _ in range(2):  # from now on as PyTorch's
        agree(ours, plain, x)


@pytest.mark.real_core
@pytest.mark.parametrize("eager_wins", [True, False])
def test_the_race_with_eager_moves_nothing(emulated, monkeypatch, eager_wins):
    monkeypatch.setenv("FUSEWRIGHT_TUNE", "1")

    class Slow:
        """Times that leave no doubt."""

        def __init__(self, region):
            self.region, self.handle, self.contested = region, region.handle, True

        def contest(self, inputs, fused, eager):
            for _ in range(3):
                fused()
                eager()
            return eager_wins

    monkeypatch.setattr(_core, "run_contested", lambda *call: _core.Verdict.unknown)
    runner = assemble._runner
    monkeypatch.setattr(
        assemble, "_runner", lambda region, *rest: runner(region._replace(compiled=Slow(region.compiled)), *rest)
    )
    ours, plain = optimize(nn.Sequential(nn.BatchNorm1d(4), nn.SiLU())), nn.Sequential(nn.BatchNorm1d(4), nn.SiLU())
    for grad in (True, False):
        for _ in range(2):
            agree(ours, plain, torch.randn(7, 4, requires_grad=grad))


class CudnnNorm(nn.BatchNorm2d):
    """As PyTorch captures batch norm of images on a GPU where no gradient is wanted: an operator whose schema does not
    say that it updates running statistics, and which no CPU has."""

    def forward(self, x):
        if self.training:
            self.num_batches_tracked.add_(1)
        arguments = (self.running_mean, self.running_var, self.training, self.momentum, self.eps)
        return torch.cudnn_batch_norm(x, self.weight, self.bias, *arguments)[0]


@torch.no_grad()
def test_the_batch_norm_of_cudnn():
    ours = optimize(nn.Sequential(CudnnNorm(6, momentum=0.3), nn.SiLU()), strict=True)
    plain = nn.Sequential(nn.BatchNorm2d(6, momentum=0.3), nn.SiLU())
    for train in (True, True, False, True):
        agree(ours.train(train), plain.train(train), torch.randn(4, 6, 5, 3) * 3 + 1)
    seen = operators_of(lambda: ours(torch.randn(4, 6, 5, 3)))
    assert FAKE_CORE or not {"aten::copy_", "aten::add_", "aten::cudnn_batch_norm"} & set(seen), seen


@torch.no_grad()
def test_the_batch_norm_of_cudnn_without_statistics():
    def normed(x, w, b):
        return torch.relu(torch.cudnn_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)[0])

    x, w, b = torch.randn(4, 6, 5, 3), torch.randn(6), torch.randn(6)
    expected = torch.relu(nn.functional.batch_norm(x, None, None, w, b, training=True))
    torch.testing.assert_close(optimize(normed, strict=True)(x, w, b), expected)


@torch.no_grad()
def test_statistics_of_cudnn_that_others_read_stay_where_they_were():
    class Read(CudnnNorm):
        def forward(self, x):
            return super().forward(x).relu() + self.running_mean.sum()

    explanation = fusewright.explain(Read(6), torch.randn(4, 6, 5, 3))
    assert [(f.operator, f.reason) for f in explanation.fallbacks] == [("", "mutation")]


class Changing(nn.Module):
    """Reads its buffer, and changes it, in one region."""

    def __init__(self, read):
        super().__init__()
        self.read = read
        self.register_buffer("state", torch.randn(6))

    def forward(self, x):
        y = self.read(self.state, x)
        self.state.mul_(0.5)
        return y


@pytest.mark.parametrize(
    "read",
    [
        lambda state, x: torch.tanh(state) * x,
        lambda state, x: torch.sigmoid((state + 1) * x.detach()) * x,
        lambda state, x: state.view(2, 3).exp().view(6) * x,
        lambda state, x: state.mean() * x.sin(),
        lambda state, x: (x.view(5, 3, 2) * state.view(3, 2).sum(1, keepdim=True)).view(5, 6),
        lambda state, x: x + state,
    ],
)
def test_backward_of_what_was_worked_out_from_a_buffer(read):
    """The buffer has changed by then; what eager keeps of it has not."""
    ours, plain = pair(Changing(read))
    for _ in range(2):
        x = torch.randn(5, 6)
        ours_x, plain_x = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, expected = ours(ours_x), plain(plain_x)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(ours.state_dict(), plain.state_dict())
        y.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(ours_x.grad, plain_x.grad)


def test_backward_of_a_buffer_that_was_changed():
    """Eager refuses, and so do we."""
    for model in pair(Changing(lambda state, x: state * x)):
        y = model(torch.randn(5, 6, requires_grad=True))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
