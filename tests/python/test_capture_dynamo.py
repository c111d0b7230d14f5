"""Tests each peculiarity of Dynamo and export that docs/capture.md lists; failures, exceptions, logs."""

import copy
import gc
import logging
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from check import check
from torch import nn

from fusewright import UnsupportedError, optimize, reasons, stats
from fusewright.capture import capture
from fusewright.capture.backend import Session


def same(model, plain, *inputs, **tolerances):
    ours, eager = model(*inputs), plain(*inputs)
    torch.testing.assert_close(ours, eager, **tolerances)
    return ours


# ---- attributes, hooks, graph breaks ------------------------------------------------------------------------------


class Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature, self.step = 1.0, 0

    def forward(self, x):
        return F.gelu(x / self.temperature) * self.temperature + self.step


def test_an_annealed_float_costs_two_captures():
    model, plain = optimize(Annealed(), strict=True), Annealed()
    x = torch.randn(4, 8)
    for step in range(50):
        model.temperature = plain.temperature = 1.0 + step / 10
        same(model, plain, x)
    assert stats()["captures"] <= 2 and stats()["region_calls"] == 50


def test_a_counted_integer_costs_two_captures():
    model, plain = optimize(Annealed(), strict=True), Annealed()
    x = torch.randn(4, 8)
    for step in range(2, 20):
        model.step = plain.step = step
        same(model, plain, x)
    assert stats()["captures"] <= 2 and stats()["region_calls"] == 18


NUMBERS = {
    "arithmetic": lambda x, s: torch.tanh(x * s) + s / 2,
    "leaky_relu": F.leaky_relu,
    "clamp": lambda x, s: x.clamp(-s, s) * 2,
    "hardtanh": lambda x, s: F.hardtanh(x, -s, s),
    "rsub": lambda x, s: (s - x) ** s,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_float_argument(name):
    f, x = NUMBERS[name], torch.rand(4, 5) / 4
    fast = optimize(f, strict=True)
    for s in (0.5, 0.25, 1.5, 3.0, 0.75):
        torch.testing.assert_close(fast(x, s), f(x, s))
    assert stats()["captures"] <= 2 and stats()["region_calls"] == 5


def test_an_attribute_of_a_norm_is_guarded():
    f = lambda x, eps: F.layer_norm(x, (8,), eps=eps) * 2  # noqa: E731
    fast, x = optimize(f, strict=True), torch.randn(3, 8)
    for eps in (0.5, 0.25, 1.5, 0.5, 0.25):
        torch.testing.assert_close(fast(x, eps), f(x, eps))
    assert stats()["region_calls"] == 5


PARTS_THAT_CHANGE = {
    "prefix": lambda x, t: torch.tanh(x * 2) * t[: x.shape[0]] + 1,
    "suffix": lambda x, t: torch.tanh(x * 2) * t[-x.shape[0] :] + 1,
    "narrow": lambda x, t: torch.tanh(x * 2) * t.narrow(0, 0, x.shape[0]) + 1,
    "row": lambda x, t: torch.tanh(x * 2) * t[x.shape[0]] + 1,
    "computed": lambda x, t: torch.tanh(x * 2) * torch.exp(t)[: x.shape[0]] + 1,
    "split": lambda x, t: torch.exp(t).split([x.shape[0], 40 - x.shape[0]])[0] * torch.tanh(x * 2),
    "pad": lambda x, t: F.pad(torch.tanh(x * 2), (0, 0, 0, 40 - x.shape[0])) * t * 2,
}


@pytest.mark.parametrize("name", PARTS_THAT_CHANGE)
def test_parts_at_positions_that_change_cost_two_captures(name):
    f = PARTS_THAT_CHANGE[name]
    fast, table = optimize(f), torch.randn(40, 8)
    for n in (5, 7, 9, 11, 13, 15, 17, 19, 21, 23):
        x = torch.randn(n, 8)
        torch.testing.assert_close(fast(x, table), f(x, table))
    assert stats()["captures"] <= 2 and stats()["region_calls"] >= 10 and stats()["fallback_calls"] == 0


def test_new_sizes_cost_three_more_captures_at_most():
    model = optimize(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Softmax(1)))
    plain = copy.deepcopy(model)
    for n, size in [(2, 8), (3, 8), (4, 9), (5, 12), (2, 15), (7, 21), (9, 33)]:
        same(model, plain, torch.randn(n, 3, size, size + 1))
    assert stats()["captures"] <= 4 and stats()["fallback_calls"] == 0


def test_dynamic_from_the_start():
    check(nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU()), [torch.randn(2, 3, 9, 8)], dynamic=True)
    check(lambda x: (x * 2).flatten(1).softmax(1).view_as(x), [torch.randn(4, 3, 5)], dynamic=True)
    check(lambda x: (x * 2).reshape(-1, x.shape[-1]).mean(0) * x.shape[0], [torch.randn(4, 3, 5)], dynamic=True)
    check(lambda a, b: (a @ b).tanh(), [torch.randn(4, 3, 5), torch.randn(5, 6)], dynamic=True)


def test_hooks_added_and_removed_later():
    model, other = (optimize(nn.Sequential(nn.Linear(4, 4), nn.ReLU())) for _ in range(2))
    x, seen = torch.randn(2, 4), []
    first = model(x)
    handle = model[0].register_forward_hook(lambda m, i, o: o + 1)
    torch.testing.assert_close(model(x), torch.relu(model[0](x)))
    pre = model.register_forward_pre_hook(lambda m, i: (i[0] * 2,))
    torch.testing.assert_close(model(x), torch.relu(model[0](2 * x)))
    pre.remove()
    handle.remove()
    torch.testing.assert_close(model(x), first)
    other.register_forward_hook(lambda m, i, o: seen.append(1))
    other(x)
    model(x)
    assert seen == [1]


def test_backward_hooks():
    model = optimize(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    seen = []
    model[1].register_full_backward_hook(lambda m, gi, go: seen.append("module"))
    model[0].weight.register_hook(lambda g: seen.append("tensor"))
    model(torch.randn(2, 4)).sum().backward()
    assert sorted(seen) == ["module", "tensor"]


class Broken(nn.Module):
    def forward(self, x):
        y = torch.relu(x) * 2
        print("side effect")
        if y.sum() > 0:
            y = torch.tanh(y) + 1
        n = int(y.max().item())
        return torch.sigmoid(y) * n


def test_graph_breaks(capsys):
    model = optimize(Broken())
    x = torch.randn(4, 4)
    same(model, Broken(), x)
    assert capsys.readouterr().out == "side effect\n" * 2
    assert stats()["region_calls"] >= 3
    same(model, Broken(), -x.abs())


# ---- state of autograd and autocast inside the graph ----------------------------------------------------------------


def test_no_grad_inside():
    def f(x):
        y = torch.tanh(x) * 2
        with torch.no_grad():
            z = torch.sigmoid(y) * 3
        return torch.relu(y) * z + y.detach() * x

    check(f, [torch.randn(3, 4)], layouts=["contiguous"])


def _view_read_under_no_grad(x, w):
    y = (x * w).view(-1, 3)
    with torch.no_grad():
        order = torch.argsort(y, 0)  # PyTorch's, and the first to read the view
    return torch.gather(y, 0, order).exp()


def _view_made_under_no_grad(x, w):
    with torch.no_grad():
        v = w.view(2, 3)
    return torch.sigmoid(x.view(-1, 2, 3) * v) * w.sum()


def _view_for_pytorch_made_under_no_grad(x, w):
    with torch.no_grad():
        v = w.view(2, 3)
    return torch.cumsum(v, 0) * torch.sigmoid(w.sum()) * x.sum()


def _clone_and_expansion_made_under_no_grad(x, w):
    with torch.no_grad():
        v, e = w.clone(), w.expand(2, 6)
    return torch.sigmoid(x * v) * e + w


def _view_read_on_both_sides(x, w):
    v = torch.sigmoid(w * x).view(-1, 3)
    with torch.no_grad():
        k = torch.cumsum(v, 0) + torch.tanh(v)
    return torch.cumsum(v, 0) * k


@pytest.mark.parametrize(
    "f",
    [
        _view_read_under_no_grad,
        _view_made_under_no_grad,
        _view_for_pytorch_made_under_no_grad,
        _clone_and_expansion_made_under_no_grad,
        _view_read_on_both_sides,
    ],
)
def test_a_view_keeps_the_mode_it_was_made_in(f):
    """Views run where they are first read, but not in another mode: a gradient would be lost, or appear."""
    check(f, [torch.randn(2, 6), torch.randn(6)], layouts=["contiguous"], fused=False)


def test_spectral_norm():
    from torch.nn.utils.parametrizations import spectral_norm

    model = nn.Sequential(spectral_norm(nn.Conv2d(3, 5, 3)), nn.GELU())
    plain, fast, x = copy.deepcopy(model), optimize(model), torch.randn(2, 3, 6, 6)
    for _ in range(3):
        same(fast, plain, x)


def test_autocast_inside():
    linear = nn.Linear(8, 8)

    def f(x):
        y = torch.relu(x)
        with torch.autocast("cpu", torch.bfloat16):
            z = torch.relu(linear(y)) * 2
            with torch.autocast("cpu", enabled=False):
                w = torch.relu(linear(z.float()))
        return z, w + torch.relu(linear(y))

    x = torch.randn(4, 8)
    ours, eager = optimize(f)(x), f(x)
    assert [o.dtype for o in ours] == [torch.bfloat16, torch.float32]
    torch.testing.assert_close(ours, eager, rtol=0.02, atol=0.02)
    assert stats()["region_calls"] >= 2 and stats()["fallback_calls"] == 0


# ---- mutation and aliasing ------------------------------------------------------------------------------------------


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.steps += 1
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return torch.relu(x - self.mean) * 2


def test_buffers_move_as_in_eager():
    model, plain = optimize(Counter()), Counter()
    for _ in range(3):
        same(model, plain, torch.randn(5, 4))
        torch.testing.assert_close(dict(model.named_buffers()), dict(plain.named_buffers()))
    assert stats()["region_calls"] >= 3 and stats()["fallback_calls"] == 0
    assert model.mean.data_ptr() == dict(model.named_buffers())["mean"].data_ptr()


class Handing(Counter):
    def forward(self, x):
        self.mean.add_(1)
        return torch.relu(x) + self.mean, self.mean


def test_an_updated_buffer_handed_out_is_the_buffer(caplog):
    model = optimize(Handing())
    _, mean = model(torch.randn(5, 4))
    assert mean.data_ptr() == model.mean.data_ptr()


def test_writing_into_an_input(caplog):
    def f(x):
        x.add_(1)
        return torch.relu(x) * 2

    x = torch.randn(4)
    y = x.clone()
    with caplog.at_level(logging.INFO, "fusewright"):
        torch.testing.assert_close(optimize(f)(x), f(y))
    torch.testing.assert_close(x, y)
    assert stats()["fallback_calls"] == 0 and stats()["region_calls"] == 1
    (warning,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert reasons.MUTATION in warning


def test_aliases_stay_eagers():
    def f(x):
        y = torch.relu(x) * 2
        return y, y.view(-1), y.t(), x.view(-1), torch.tanh(y.view(-1)), F.dropout(y, 0.5, False)

    x = torch.randn(3, 4)
    y, flat, turned, same_x, _, identity = optimize(f, strict=True)(x)
    assert flat.data_ptr() == turned.data_ptr() == y.data_ptr() and identity is y
    assert same_x.data_ptr() == x.data_ptr()
    flat[0] = 7.0
    assert y[0, 0] == 7.0


def test_in_place_chains():
    check(lambda x: (x * 2).add_(1).mul_(3).clamp_(0, 4), [torch.randn(3, 5)], layouts=["contiguous", "transposed"])

    def through_a_view(x):
        y = torch.relu(x) + 1
        y.view(-1).mul_(2)
        return y * 3

    check(through_a_view, [torch.randn(3, 4)], layouts=["contiguous"])


def test_regions_are_convex():
    def f(x):
        a = torch.relu(x) * 2
        b = torch.cumsum(a, 0)  # outside
        return torch.tanh(a) + b * a

    x = torch.randn(3, 4)
    torch.testing.assert_close(optimize(f)(x), f(x))
    assert stats()["regions"] == 2


def test_random_numbers_are_eagers():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5), nn.GELU())
    x = torch.randn(4, 8)
    torch.manual_seed(1)
    eager = [model(x), torch.rand(1)]
    optimize(model)
    model(x)
    torch.manual_seed(1)
    torch.testing.assert_close([model(x), torch.rand(1)], eager)


# ---- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_a_wrong_shape_raises_eagers_own_exception(strict):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    messages = []
    for m in (copy.deepcopy(model), optimize(model, strict=strict)):
        with pytest.raises(RuntimeError) as caught:
            m(torch.randn(2, 5))
        messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]
    same(model, copy.deepcopy(model), torch.randn(2, 4))
    assert stats()["region_calls"] == 1


def test_bad_calls_do_not_switch_a_model_off():
    model = optimize(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    model(torch.randn(2, 4))
    for _ in range(20):
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 5))
    model(torch.randn(2, 4))
    assert stats()["region_calls"] == 2


def test_a_wrong_dtype_and_a_wrong_call():
    model = optimize(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    plain = copy.deepcopy(model)
    for arguments in ([torch.randn(2, 4).double()], ["text"], [], [torch.randn(2, 4), 1]):
        raised = []
        for m in (model, plain):
            with pytest.raises(Exception) as caught:  # noqa: B017
                m(*arguments)
            raised.append((type(caught.value), str(caught.value)))
        assert raised[0] == raised[1]


class Raising(nn.Module):
    def forward(self, x):
        if x.shape[0] > 3:
            raise ValueError(f"batch {x.shape[0]} is too large")
        return torch.relu(x) * 2


def test_the_users_own_exception():
    model = optimize(Raising())
    with pytest.raises(ValueError, match="batch 4 is too large"):
        model(torch.randn(4, 2))
    same(model, Raising(), torch.randn(3, 2))
    assert stats()["region_calls"] == 1


def sorts(x):
    y = torch.relu(x) * 2
    z = torch.sort(y)[0]  # the line
    return torch.tanh(z) + 1


def test_an_unsupported_operator_logs_one_line(caplog):
    fast = optimize(sorts)
    with caplog.at_level(logging.INFO, "fusewright"):
        for n in (3, 4, 5):
            x = torch.randn(n, 4)
            torch.testing.assert_close(fast(x), sorts(x))
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "3x4" in line]) == 1
    for part in (
        "aten.sort.default",
        "[3x4]",
        "float32",
        reasons.UNSUPPORTED_OPERATOR,
        "test_capture_dynamo.py",
        "torch.sort(y)",
    ):
        assert part in lines[0]
    assert stats()["regions"] >= 2


def test_strict_names_what_is_unsupported():
    with pytest.raises(UnsupportedError, match="aten.sort.default") as caught:
        optimize(sorts, strict=True)(torch.randn(3, 4))
    error = caught.value
    assert error.operator == "aten.sort.default" and error.reason == reasons.UNSUPPORTED_OPERATOR
    assert error.shapes == "[3x4]" and error.dtype == "float32" and "torch.sort(y)" in error.source


@pytest.mark.parametrize(
    "f, inputs, reason",
    [
        (lambda x: x * 2, [torch.randn(3, dtype=torch.complex64)], reasons.UNSUPPORTED_DTYPE),
        (lambda x: F.dropout(x, 0.5, True), [torch.randn(3)], reasons.UNSUPPORTED_ATTRIBUTE),
        (lambda x: x * 2, [torch.empty(3, device="meta")], reasons.DEVICE),
        (lambda x: x.add_(1) * 2, [torch.randn(3)], reasons.MUTATION),
    ],
)
def test_reasons(f, inputs, reason):
    with pytest.raises(UnsupportedError) as caught:
        optimize(f, strict=True)(*inputs)
    assert caught.value.reason == reason and reason in reasons.ALL
    optimize(f)(*inputs)


def test_a_region_that_the_core_cannot_run(caplog, monkeypatch):
    from fusewright import _core
    from fusewright.capture import assemble

    def unavailable(*args):
        raise _core.Unavailable("no compiler")

    monkeypatch.setattr(assemble._core, "run_region", unavailable)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Softmax(1))
    plain = copy.deepcopy(model)
    optimize(model)
    with caplog.at_level(logging.INFO, "fusewright"):
        for n in (2, 3, 4):
            same(model, plain, torch.randn(n, 3, 8, 8))
    torch.testing.assert_close(dict(model.named_buffers()), dict(plain.named_buffers()))
    assert stats()["fallback_calls"] == 3 and reasons.UNAVAILABLE in caplog.text
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_settings_do_not_leak():
    import torch._dynamo.config as config

    names = [
        "skip_nnmodule_hook_guards",
        "allow_unspec_int_on_nn_module",
        "accumulated_cache_size_limit",
        "cache_size_limit",
    ]
    names = [name for name in names if hasattr(config, name)]
    before = {name: getattr(config, name) for name in names}
    optimize(sorts)(torch.randn(3, 4))
    with pytest.raises(UnsupportedError):
        optimize(sorts, strict=True)(torch.randn(3, 4))
    assert {name: getattr(config, name) for name in names} == before


def test_a_call_refused_because_another_thread_traces_is_made_again():
    """Dynamo refuses calls of all threads while one of them traces (torch 2.11 does)."""
    refusal = RuntimeError("Detected that you are using FX to symbolically trace a dynamo-optimized function.")
    answers = iter([refusal, 2, refusal, refusal, ValueError("the model's own")])

    def compiled():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    call = capture._where_it_can_capture(compiled, lambda: "traced", Session("test"))
    assert call() == 2
    assert call() == "traced"  # refused again: this thread traces
    assert stats()["fallback_reasons"] == {reasons.TRACED: 1}
    with pytest.raises(ValueError, match="own"):
        call()


# ---- the first call -----------------------------------------------------------------------------------------------

FIRST_CALL = """
import sys
import torch
from torch._dynamo import guards, symbolic_convert, utils
import fusewright

model = fusewright.optimize(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()))
places = [(guards, "profile_guard_manager"), (symbolic_convert, "get_funcname"),
          (utils, "_scrubbed_inductor_config_for_logging")]
before, replaced = set(sys.modules), [getattr(*place, None) for place in places]
model(torch.randn(2, 8)).sum().backward()
assert [getattr(*place, None) for place in places] == replaced
from torch._dynamo import funcname_cache
assert not funcname_cache.cache, list(funcname_cache.cache)
print([name for name in sys.modules if name not in before])
"""


@pytest.mark.real_core
def test_a_first_call_imports_next_to_nothing():
    done = subprocess.run([sys.executable, "-c", FIRST_CALL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(eval(done.stdout)) < 5, done.stdout


@pytest.mark.real_core
def test_dynamos_log_of_lines_is_as_ever():
    script = "import torch, fusewright; fusewright.optimize(torch.nn.GELU())(torch.ones(2))"
    log = os.environ | {"TORCH_LOGS": "trace_source"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=log)
    assert "in forward (GELU.forward)" in done.stderr, done.stderr


@pytest.mark.parametrize("fails", [False, True], ids=["captured", "failed"])
@pytest.mark.parametrize("enabled", [True, False], ids=["enabled", "disabled"])
def test_garbage_waits_for_the_end_of_a_capture(monkeypatch, enabled, fails):
    during = []

    def compile_graph(gm, session):
        during.append(gc.isenabled())
        if fails:
            raise ValueError
        return gm.forward

    monkeypatch.setattr(capture, "compile_graph", compile_graph)
    try:
        (gc.enable if enabled else gc.disable)()
        optimize(lambda x: torch.tanh(x))(torch.randn(4))
        assert during == [False] and gc.isenabled() == enabled
    finally:
        gc.enable()
