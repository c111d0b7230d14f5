"""Fusion is never lost silently: where an optimised model runs in eager, one line says so and `stats()` counts it."""

import copy
import logging
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import fusewright
from fusewright import reasons


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        return torch.tanh(self.norm(self.linear(x))) * 2

    def encode(self, x):
        return torch.sigmoid(self.norm(self.linear(x)))

    def generate(self, x):
        for _ in range(2):
            x = self(x)
        return x


class SeesOperators(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class SeesFunctions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


X = torch.randn(4, 8)


@pytest.fixture
def model():
    return fusewright.optimize(Encoder().eval())


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "fusewright"]


def under(mode):
    def run(model):
        with mode():
            return model(X)

    return run


def outer(backend, **options):
    return lambda model: torch.compile(lambda x: model(x) + 1, backend=backend, **options)(X) - 1


LOST = {
    "vmap": (reasons.TRANSFORM, lambda model: vmap(model)(X[:, None])[:, 0]),
    "jvp": (reasons.TRANSFORM, lambda model: jvp(model, (X,), (X,))[0]),
    "grad": (reasons.TRANSFORM, lambda model: grad(lambda x: model(x).sum())(X)),
    "torch.compile": (reasons.OUTER_COMPILE, outer("eager")),
    "torch.compile, whole": (reasons.OUTER_COMPILE, outer("aot_eager", fullgraph=True)),
    "torch.compile of it": (reasons.OUTER_COMPILE, lambda m: torch.compile(m, backend="eager", fullgraph=True)(X)),
    "FlopCounterMode": (reasons.DISPATCH_MODE, under(lambda: FlopCounterMode(display=False))),
    "a dispatch mode": (reasons.DISPATCH_MODE, under(SeesOperators)),
    "forward": (reasons.BYPASSED, lambda model: model.forward(X)),
    "encode": (reasons.BYPASSED, lambda model: model.encode(X)),
    "a part": (reasons.BYPASSED, lambda model: model.linear(X)),
    "torch.jit.trace": (reasons.TRACED, lambda model: torch.jit.trace(model, X, check_trace=False)(X)),
    "make_fx": (reasons.TRACED, lambda model: torch.fx.experimental.proxy_tensor.make_fx(model)(X)(X)),
}  # fmt: skip


@pytest.mark.parametrize("fused_before", [False, True], ids=["", "fused before"])
@pytest.mark.parametrize("case", LOST)
def test_a_line_and_a_count(model, caplog, case, fused_before):
    reason, run = LOST[case]
    if fused_before:
        model(X)
    expected = run(copy.deepcopy(model))
    torch._dynamo.reset()  # or an outer torch.compile would take what it has compiled for the copy
    fusewright.reset_stats()
    torch.testing.assert_close(run(model), expected)
    counts = fusewright.stats()
    assert counts["fallback_calls"] > 0 and counts["region_calls"] == 0
    assert counts["fallback_reasons"] == {reason: counts["fallback_calls"]}
    run(model)
    (line,) = lines(caplog)
    assert line.startswith("Encoder: ") and f"({reason})" in line
    assert ("fusewright.restore" in line) == (reason == reasons.TRACED)

    fusewright.reset_stats()  # and afterwards it is fused as before
    model(X)
    assert fusewright.stats()["region_calls"] == 1 and not fusewright.stats()["fallback_reasons"]


FUSED = {
    "a function mode": under(SeesFunctions),
    "generate": lambda model: model.generate(X),
    "functional_call": lambda model: functional_call(model, dict(model.named_parameters()), (X,)),
    "update_bn": lambda model: update_bn([X, X], model),
    "within another module": lambda model: nn.Sequential(model)(X),
    "torch.compile by us": outer("fusewright"),
    "optimize of a method": lambda model: fusewright.optimize(model.encode)(X),
    "optimize of a part": lambda model: fusewright.optimize(nn.Sequential(model.norm, nn.SiLU()))(X),
    "twice optimised": lambda model: fusewright.optimize(fusewright.optimize(model))(X),
    "a part of an optimised model": lambda model: fusewright.optimize(nn.Sequential(nn.SiLU(), model))(X),
}


@pytest.mark.parametrize("case", FUSED)
def test_fused_without_a_word(model, caplog, case):
    fusewright.reset_stats()
    FUSED[case](model)
    assert fusewright.stats()["region_calls"] > 0 and fusewright.stats()["fallback_calls"] == 0
    assert not lines(caplog)


def test_what_is_no_call_of_the_model(caplog):
    """Reading a weight that is computed, a part in the backward of a checkpoint, a graph break, a hook, a copy."""

    class Broken(Encoder):
        def forward(self, x):
            x = self.norm(self.linear(x))
            torch._dynamo.graph_break()
            return torch.tanh(torch.utils.checkpoint.checkpoint(self.linear, x, use_reentrant=False)) * 2

    model = Broken()
    model.linear = parametrizations.weight_norm(model.linear)
    model.norm.register_forward_hook(lambda *_: None)
    fusewright.optimize(model)
    assert model.linear.weight.shape == (8, 8)
    model(X).sum().backward()
    caplog.clear()  # the checkpoint has a line of its own
    assert reasons.BYPASSED not in fusewright.stats()["fallback_reasons"]
    for plain in (copy.deepcopy(model.norm), fusewright.restore(model).norm):
        plain(X)
    fusewright.restore(model).encode(X)
    assert reasons.BYPASSED not in fusewright.stats()["fallback_reasons"] and not lines(caplog)


def test_restore_leaves_nothing(model):
    assert all(part._compiled_call_impl is not None for part in model.modules())
    fusewright.optimize(model.linear)
    fusewright.restore(model)
    assert [part._compiled_call_impl is None for part in model.modules()] == [True, False, True]
    fusewright.restore(model.linear)(X)
    assert not fusewright.stats()["fallback_reasons"]


def test_many_calls_under_a_mode(model):
    """They used to count as failures of capture, after which nothing was captured any more."""
    for _ in range(40):
        under(SeesOperators)(model)
    model(X)
    assert fusewright.stats()["region_calls"] == 1


def test_threads(model, caplog):
    """A call in one thread is no reason to be silent about another's."""
    inside, go_on = threading.Event(), threading.Event()

    def wait(*_):
        inside.set()
        go_on.wait(30)

    model.norm.register_forward_hook(torch._dynamo.disable(wait))
    thread = threading.Thread(target=model, args=(X,))
    thread.start()
    assert inside.wait(60)
    model.linear(X)
    go_on.set()
    thread.join()
    assert fusewright.stats()["fallback_reasons"][reasons.BYPASSED] == 1


# ---- copies ------------------------------------------------------------------------------------------------


class Average(AveragedModel):
    def __init__(self, model):
        super().__init__(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))


@pytest.mark.parametrize(
    "make", [copy.deepcopy, AveragedModel, Average, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["deepcopy", "AveragedModel", "EMA", "pickle"],
)  # fmt: skip
def test_one_call_optimises_a_copy(model, caplog, make):
    model(X)
    other = make(model)
    assert not any(fusewright.is_optimized(part) for part in other.modules())
    assert all(part._compiled_call_impl is None for part in other.modules())
    fusewright.reset_stats()
    torch.testing.assert_close(fusewright.optimize(other)(X), model(X))
    assert fusewright.stats()["region_calls"] == 2 and fusewright.stats()["fallback_calls"] == 0
    if isinstance(other, AveragedModel):
        with torch.no_grad():
            model.linear.weight.add_(1)
        other.update_parameters(model)
        other.update_parameters(model)
        expected = fusewright.restore(copy.deepcopy(other))(X)
        torch.testing.assert_close(other(X), expected)
    assert not lines(caplog) and logging.getLogger("fusewright").isEnabledFor(logging.WARNING)
