"""Graphs that a trace would spoil run as Dynamo gave them, with one log line, and compute what eager computes."""

import copy

import pytest
import torch
import torch.nn.functional as F
from check import check
from torch import nn

import fusewright
from fusewright import UnsupportedError, optimize, reasons


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x * 8) / 8, x * 2

    @staticmethod
    def backward(ctx, g, h):
        return g + h


def same(f, *inputs, fast=None):
    """Result, gradients and whether there are any."""
    found, expected = [], []
    for function, into in ((fast or optimize(f), found), (f, expected)):
        for _ in range(2):  # as captured, and again
            given = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
            y = function(*given)
            into.append((y, y.requires_grad, y.is_inference()))
            if y.requires_grad:
                y.sum().backward()
            into.append([x.grad for x in given])
    torch.testing.assert_close(found, expected)


def matrices():
    return torch.randn(4, 6), torch.randn(6, 6, requires_grad=True)


def in_inference_mode(x, w):
    with torch.inference_mode():
        teacher = (x @ w).tanh()
    return (x @ w).sigmoid() * 2 + teacher


def hooked(x, w):
    y = (x @ w).tanh()
    y.register_hook(lambda g: g.clamp(-0.1, 0.1))
    return y.exp()


def one_library(x, w):
    q = (x @ w)[None]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, q, q).tanh()


FUNCTIONS = {
    "beside_another_path": lambda x, w: Reversed.apply((x @ w).tanh() * 3) * 2 + w[:4],
    "alone": lambda x, w: (Reversed.apply((x @ w).tanh() * 3) * 2).sin(),
    "two_results": lambda x, w: (sum(Rounded.apply((x @ w).tanh() * 3)) * 2).sin(),
}


@pytest.mark.parametrize("name, regions", [("beside_another_path", 2), ("alone", 2), ("two_results", 4)])
def test_functions_are_left_to_python(name, regions):
    """The operators around them are fused, and so are those that Python runs in them: the two results of Rounded."""
    before = fusewright.stats()
    same(FUNCTIONS[name], *matrices(), fast=optimize(FUNCTIONS[name], strict=True))
    after = fusewright.stats()
    assert after["regions"] == before["regions"] + regions and after["fallback_calls"] == before["fallback_calls"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_in_a_graph_of_torch_compile(name, caplog):
    """There Dynamo has made operators of them already."""
    same(FUNCTIONS[name], *matrices(), fast=torch.compile(FUNCTIONS[name], backend="fusewright"))
    assert "state: a trace does not keep autograd_function_apply" in caplog.text


STATES = {
    "hook": hooked,
    "grad": lambda x, w: torch.func.grad(lambda v: (x @ v).tanh().pow(2).sum())(w) * w,
    "vjp": lambda x, w: torch.func.vjp(lambda v: (x @ v).tanh(), w)[1](x)[0] * w,
    "jvp": lambda x, w: torch.func.jvp(lambda v: (x @ v).tanh(), (w,), (w * 2,))[1],
    "jacobian": lambda x, w: torch.func.jacrev(lambda v: (x @ v).tanh().sum(0))(w).sum(0) * w,
    "vmap": lambda x, w: torch.func.vmap(lambda row: (row @ w).tanh())(x) * 2,
    "inference": in_inference_mode,
    "inference_all": torch.inference_mode()(lambda x, w: (x @ w).tanh() * 2),
    "library": one_library,
}


@pytest.mark.parametrize("name", STATES)
def test_states(name):
    same(STATES[name], *matrices())


# ---- calls without a meaning ----------------------------------------------------------------------------------------


class Layers(nn.Module):
    """A slice of a ModuleList, and a module that the call makes: PyTorch notes down that both are used."""

    def __init__(self, kind):
        super().__init__()
        layers = [nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6)) for _ in range(3)]
        self.layers = kind(layers) if kind is nn.ModuleList else kind(*layers)

    def forward(self, x):
        for layer in self.layers[:2]:
            x = x + layer(x)
        return nn.SiLU()(x)


@pytest.mark.parametrize("kind", [nn.ModuleList, nn.Sequential])
def test_what_means_nothing_is_ignored(kind, caplog):
    check(Layers(kind), [torch.randn(4, 6)], layouts=["contiguous"])
    explanation = fusewright.explain(Layers(kind), torch.randn(4, 6))
    assert explanation.graphs == 1 and not explanation.fallbacks and len(explanation.regions) == 1
    assert not [record for record in caplog.records if record.name == "fusewright"]


def test_what_a_library_notes_down_is_ignored():
    """As models of torchvision do, at the start of `forward` and of `__init__`."""

    def f(x):
        torch._C._log_api_usage_once("python.a_library.a_model")
        return (x * 2).tanh()

    check(f, [torch.randn(4, 6)], layouts=["contiguous"])


def test_a_user_learns_of_it(caplog):
    def f(x):
        return torch.func.vmap(torch.tanh)(x) * 2

    x = torch.randn(3, requires_grad=True)
    optimize(f)(x).sum().backward()
    (line,) = (record.getMessage() for record in caplog.records if record.name == "fusewright")
    assert "_vmap_increment_nesting stays PyTorch's (state: a trace does not keep _vmap_increment_nesting)" in line
    with pytest.raises(UnsupportedError) as caught:
        optimize(f, strict=True)(x)
    assert caught.value.reason == reasons.STATE
    assert [fallback.reason for fallback in fusewright.explain(f, x).fallbacks] == [reasons.STATE]


def test_the_first_layer_trains():
    class Clipped(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 4)

        def forward(self, x):
            return F.gelu(self.b(Reversed.apply(F.gelu(self.a(x)))))

    plain = Clipped()
    ours = optimize(copy.deepcopy(plain))
    x = torch.randn(3, 6)
    for model in (ours, plain):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(ours.state_dict(), plain.state_dict())


def written(x, w, write):
    y = (x @ w).exp()
    with torch.no_grad():
        write(y)
    return (y * 2).sin()


def rounded(x, w):
    q = w.clone()
    q.data.mul_(8).round_().div_(8)
    return (x @ q).tanh()


def detached(x, w):
    y = x @ w
    y.detach().relu_()
    return (y * 3).sin()


def through_a_view(x, w):
    y = (x @ w) * 2
    row = y[0]
    with torch.no_grad():
        row.zero_()
    return y.cos()


def with_gradients_again(x, w):
    with torch.no_grad():
        y = torch.zeros(4, 6)
        with torch.enable_grad():
            y += x @ w
        y.mul_(2)
    return y.cos()


def of_rows(x, w):
    y = torch.zeros(4, 6)
    for i in range(4):
        y[i] = (x[i] @ w).tanh()
    with torch.no_grad():
        y.clamp_(-0.5, 0.5)
    return y * 2


def history_into_data(x, w):
    c = torch.zeros(6)
    c.data.add_((x @ w).mean(0))
    return (x @ w - c).tanh()


def bits(x, w):
    q = w.clone()
    q.view(torch.int32).bitwise_and_(-65536)
    return (x @ q).tanh()


def view_without_gradients(x, w):
    y = F.relu(x @ w, inplace=True)
    with torch.no_grad():
        t = y[:, :3]
    return (y[:, :3].sigmoid() - t).square()


HIDDEN = {
    "rows": of_rows,
    "history": history_into_data,
    "bits": bits,
    "view_of_written": view_without_gradients,
    "add": lambda x, w: written(x, w, lambda y: y.add_(1)),
    "mask": lambda x, w: written(x, w, lambda y: y.masked_fill_(y > 1, 0.5)),
    "slice": lambda x, w: written(x, w, lambda y: y[:, 0].zero_()),
    "item": lambda x, w: written(x, w, lambda y: y.__setitem__(0, 3.0)),
    "data": rounded,
    "detach": detached,
    "view": through_a_view,
    "enabled_within": with_gradients_again,
}


@pytest.mark.parametrize("name", HIDDEN)
def test_writes_behind_autograds_back(name):
    f, (x, w) = HIDDEN[name], matrices()
    try:
        f(x, w).sum().backward()
    except RuntimeError as refusal:  # what exp keeps for its backward is written: our backward has the values it needs
        assert "modified by an inplace operation" in str(refusal)
        optimize(f)(x, w).sum().backward()
        kept = w.detach().clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda saved: saved):
            f(x, kept).sum().backward()
        torch.testing.assert_close(w.grad, kept.grad)
    else:
        same(f, x, w)
    with pytest.raises(UnsupportedError) as caught:
        optimize(f, strict=True)(x, w)
    assert caught.value.reason == reasons.MUTATION


def fresh(x, w):
    with torch.no_grad():
        scale = w.abs().amax()
        scale.mul_(2).clamp_(min=0.5)
    return x @ w / scale


def copied(x, w):
    codes = (x @ w).detach()
    codes = codes.clone().round_()
    return (x @ w).tanh() + codes


def an_input(x, w):
    y = x.detach().clone()
    y.detach().mul_(2)
    return (y @ w).tanh()


def a_target(x, w):
    t = (x @ w).detach()
    t.mul_(2)  # and nobody reads the product itself
    return ((x @ w).tanh() - t).square()


def a_detached_view(x, w):
    y = F.relu(x @ w, inplace=True)
    with torch.no_grad():
        t = y.detach()
    return (y.sigmoid() - t).square()


@pytest.mark.parametrize("f", [fresh, copied, an_input, a_target, a_detached_view])
def test_writes_into_what_has_no_gradient_are_traced(f):
    check(f, list(matrices()), layouts=["contiguous"])


def test_a_counting_module_is_traced():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 5)
            self.register_buffer("mean", torch.zeros(5))

        def forward(self, x):
            y = self.linear(x)
            with torch.no_grad():
                self.mean.lerp_(y.mean(0), 0.1)
            return F.gelu(y - self.mean)

    check(Counting(), [torch.randn(4, 6)], layouts=["contiguous"])


def test_a_history_does_not_reach_a_buffer():
    class Center(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 6)
            self.register_buffer("center", torch.zeros(6))

        def forward(self, x):
            y = self.linear(x)
            self.center.data.mul_(0.9).add_(y.mean(0) * 0.1)
            return torch.tanh(y - self.center)

    plain = Center()
    ours = optimize(copy.deepcopy(plain))
    for _ in range(3):
        x = torch.randn(4, 6)
        for model in (ours, plain):
            model.zero_grad()
            model(x).sum().backward()
        assert not ours.center.requires_grad
        torch.testing.assert_close(ours.state_dict(), plain.state_dict(), rtol=0, atol=0)
        torch.testing.assert_close(ours.linear.bias.grad, plain.linear.bias.grad, rtol=0, atol=0)


# ---- copy_ has no functional form with a derivative ----------------------------------------------------------------


def rows_one_by_one(x, w):
    y = torch.zeros(5, 4, 6)
    for i in range(5):
        y[i] = torch.tanh(x * (i + 1) + w)
    return y * 2


def other_memory(x, w):
    y = torch.zeros(6, 4).t()
    y.copy_(x)
    return y, y * w


def halves(x, w):
    y = torch.empty(4, 12)
    y[..., :6] = x * w
    y[..., 6:].copy_(x.sin())
    return y.sigmoid()


def changed_rows(x, w):
    y = x * 2
    y[1:3] *= w
    y[:, 2:] += x[:, 2:]
    return y.tanh()


COPIES = {
    "slice": lambda x, w: F.pad(x, (0, 0, 2, 2)).index_fill(0, torch.tensor([0]), 1.0).add_(0)[1:5].copy_(x) * w,
    "whole": lambda x, w: torch.zeros(4, 6).copy_(x * w).sigmoid(),
    "broadcast": lambda x, w: (x * 2).copy_(w).tanh() * x,
    "rows": rows_one_by_one,
    "memory": other_memory,
    "halves": halves,
    "changed": changed_rows,
    "dtype": lambda x, w: torch.zeros(4, 6, dtype=torch.float64).copy_(x * w).tanh(),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("dynamic", [None, True])
def test_copies_have_gradients(name, dynamic):
    check(
        COPIES[name],
        [torch.randn(4, 6), torch.randn(6)],
        fused=False,
        layouts=["contiguous", "transposed"],
        dynamic=dynamic,
    )


def test_a_copy_is_no_alias():
    def f(x, w):
        y = torch.zeros_like(w)
        y.copy_(w)
        return y, (x * w).tanh()

    w = torch.randn(6)
    y, _ = optimize(f)(torch.randn(4, 6), w)
    assert torch.equal(y, w) and y.data_ptr() != w.data_ptr()


def through_as_strided(x):
    x = x * 1.5
    x.as_strided((2, 2), (3, 1)).mul_(3)
    return x * 2 + 1


def through_as_strided_of_columns(x):
    x = x.t() * 1.5
    x.as_strided((2, 3), (5, 1), 1).copy_(torch.ones(3) * x[0, 0])
    return x.sin()


@pytest.mark.parametrize("f", [through_as_strided, through_as_strided_of_columns], ids=lambda f: f.__name__)
def test_writes_through_as_strided_have_gradients(f):
    """By a scatter: the derivative of PyTorch's own functional form is wrong. The rest is fused."""
    fast = optimize(f)
    same(f, torch.randn(3, 5, requires_grad=True), fast=fast)
    assert fusewright.stats()["region_calls"] >= 2


def into_expanded(x):
    x = x * 1.5
    x.expand(3, 4).mul_(3)
    return x


def into_what_is_read(x):
    y = x * 1.5
    y[1:] = y[:-1]
    return y


@pytest.mark.parametrize("f", [into_expanded, into_what_is_read], ids=lambda f: f.__name__)
def test_writes_that_pytorch_refuses(f, caplog):
    """Elements that share memory: eager's error, and a line that says why the graph was left to it."""
    x = torch.randn(4, requires_grad=True)
    with pytest.raises(RuntimeError, match="single memory location"):
        f(x)
    with caplog.at_level("WARNING", "fusewright"), pytest.raises(RuntimeError, match="single memory location"):
        optimize(f)(x)
    assert "mutation" in caplog.text and "memory" in caplog.text


def test_writes_into_every_other_element_are_traced():
    def f(x):
        y = x * 1.5
        y[:, ::2].add_(y[:, 1::2])
        return y * 2

    same(f, torch.randn(3, 6, requires_grad=True))
    assert fusewright.stats()["region_calls"] > 0
