"""Gradients with create_graph=True: regions run once more in PyTorch's operators, and are differentiated through them.

Everything is held against eager in float64: the error may be twice that of eager in the same dtype (three times in 16
bits), or within PyTorch's tolerances.
"""

import copy
import gc
import logging
import pickle
import threading
import time
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import fusewright
from fusewright import optimize, stats
from fusewright.capture.plain import Plain
from fusewright.judge.oracle import judge_runs

pytestmark = pytest.mark.real_core
grad = torch.autograd.grad


def judge(run):
    """run(optimized, dtype, nudge) -> named tensors: ours beside eager and eager in float64."""

    def with_who(who, nudge):
        before = stats()
        result = run(
            {"fused": optimize, "eager": lambda f, **_: f, "exact": lambda f, **_: f}[who], who == "exact", nudge
        )
        if who == "fused":
            after = stats()
            assert after["second_derivatives"] > before["second_derivatives"], "no region ran once more"
            assert after["fallback_calls"] == before["fallback_calls"], "something fell back"
        return {name: x.detach() for name, x in result.items() if x is not None}

    for verdict in judge_runs(with_who):
        assert verdict.ok, verdict.problem


def leaves(tensors, exact, nudge):
    tensors = [nudge(x).detach().clone() for x in tensors]
    return [(x.double() if exact else x).requires_grad_() for x in tensors]


def judge_function(fn, tensors, penalty=lambda g: g.square().sum(), **options):
    """First and second gradients of a function of tensors, a penalty on the first ones in the loss."""

    def run(optimized, exact, nudge):
        inputs = leaves(tensors, exact, nudge)
        y = optimized(fn, strict=True, **options)(*inputs)
        first = grad(y.square().sum(), inputs, create_graph=True)
        second = grad(y.sum() + sum(penalty(g) for g in first), inputs)
        return {f"first {i}": g for i, g in enumerate(first)} | {f"second {i}": g for i, g in enumerate(second)}

    judge(run)


# ---- the mechanism -------------------------------------------------------------------------------------------------


FUNCTIONS = {
    "gelu": (lambda x, w: F.gelu(x * w) + x, [(3, 37), (37,)]),
    "layer_norm": (lambda x, w: F.silu(F.layer_norm(x, x.shape[1:], w)), [(5, 33), (33,)]),
    "convolution": (lambda x, w: F.leaky_relu(F.conv2d(x, w), 0.2), [(2, 3, 9, 7), (4, 3, 3, 2)]),
    "pooling": (lambda x, w: F.max_pool2d(torch.tanh(F.conv2d(x, w)), 2), [(2, 2, 8, 7), (3, 2, 3, 2)]),
    "batch_norm": (lambda x, w: F.batch_norm(x, None, None, w, training=True).sigmoid(), [(31, 5), (5,)]),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w).tanh(), [(7, 6, 5), (6,)]),
    "softmax": (lambda x, w: (x @ w).softmax(1), [(3, 4), (4, 33)]),
    "logsumexp": (lambda x, w: torch.logsumexp(x * w, 0), [(31, 3), (3,)]),
    "division": (lambda x, w: torch.exp(x) / (1 + w * w), [(31, 3), (3,)]),
    "power": (lambda x, w: (x * x + 1) ** 1.5 * torch.sigmoid(w), [(31, 3), (3,)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_gradients(name):
    fn, shapes = FUNCTIONS[name]
    judge_function(fn, [torch.randn(shape) for shape in shapes])


@pytest.mark.parametrize("name", ["gelu", "layer_norm", "batch_norm", "softmax", "convolution", "power"])
def test_gradgradcheck(name):
    fn, shapes = FUNCTIONS[name]
    shapes = [[min(size, 5) for size in shape] for shape in shapes]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradgradcheck(optimize(fn, strict=True), inputs)
    assert stats()["second_derivatives"] > 1


def test_the_first_gradient_is_the_fused_one():
    """Its value, with create_graph and without."""
    fn, shapes = FUNCTIONS["gelu"]
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    fused = optimize(fn, strict=True)
    y = fused(*inputs).sum()
    with_graph, without = grad(y, inputs, create_graph=True), grad(y, inputs)
    torch.testing.assert_close([g.detach() for g in with_graph], list(without))
    assert all(g.requires_grad for g in with_graph) and not any(g.requires_grad for g in without)
    assert stats()["second_derivatives"] == 1 and stats()["region_calls"] == 1


def test_third_derivatives():
    def run(optimized, exact, nudge):
        (x,) = leaves([torch.linspace(-2, 2, 31)], exact, nudge)
        result, derivative = {}, optimized(lambda x: torch.tanh(x) * x + torch.sin(x), strict=True)(x)
        for order in range(1, 5):
            (derivative,) = grad(derivative.sum(), x, create_graph=True)
            result[f"derivative {order}"] = derivative
        return result

    judge(run)


def test_one_input_from_another():
    """Gradients of a region are partial ones, though its inputs hang on each other, or are the same."""

    def run(optimized, exact, nudge):
        (x,) = leaves([torch.randn(4, 7)], exact, nudge)
        z = torch.cumsum(x, 1)  # PyTorch's, outside of the region
        y = optimized(lambda a, b, c: torch.tanh(a * b) * c, strict=True)(x, z, x)
        (first,) = grad(y.square().sum(), x, create_graph=True)
        return {"first": first, "second": grad(first.square().sum(), x)[0]}

    judge(run)


def test_some_inputs_and_results_only():
    """Covers an input that is not differentiable, one that wants no gradient, and a result that is not used."""

    def fn(x, mask, w):
        y = torch.where(mask, torch.tanh(x), x * w)
        return y, y.argmax(1), torch.exp(y)

    def run(optimized, exact, nudge):
        x, w = leaves([torch.randn(5, 33), torch.randn(33)], exact, nudge)
        w = w.detach()
        mask = torch.arange(33) % 3 == 0
        y, largest, _ = optimized(fn, strict=True)(x, mask, w)
        assert not largest.requires_grad
        (first,) = grad(y.square().sum(), x, create_graph=True)
        return {"first": first, "second": grad(first.pow(3).sum(), x)[0]}

    judge(run)


def test_several_regions():
    """With an operator of PyTorch's between them."""

    def fn(x, w):
        return torch.tanh(torch.cumsum(torch.sigmoid(x * w), 1) * x)

    def run(optimized, exact, nudge):
        x, w = leaves([torch.randn(5, 7), torch.randn(7)], exact, nudge)
        y = optimized(fn, second_derivatives=True)(x, w)
        (first,) = grad(y.square().sum(), x, create_graph=True)
        second = grad(first.square().sum(), (x, w))
        return {"first": first, "second x": second[0], "second w": second[1]}

    judge(run)


def test_sizes_and_numbers_that_change():
    """One capture for many sizes; a number of Python's that is read at each call."""

    def fn(x, number):
        y = torch.tanh(x * number).reshape(x.shape[1], x.shape[0])
        return torch.exp(y) * y.mean(1, keepdim=True)

    fused = optimize(fn, dynamic=True, strict=True)
    for rows, columns, number in ((3, 5, 0.5), (4, 9, 0.75), (7, 2, 1.5), (6, 31, -2.0)):
        x = torch.randn(rows, columns, dtype=torch.float64, requires_grad=True)
        results = []
        for f in (fused, fn):
            (first,) = grad(f(x, number).square().sum(), x, create_graph=True)
            results.append((first, *grad(first.square().sum(), x)))
        torch.testing.assert_close(*results)
    assert stats()["second_derivatives"] == 4 and stats()["captures"] <= 2


def test_second_backward_without_retain_graph():
    fn, shapes = FUNCTIONS["gelu"]
    messages = []
    for f in (optimize(fn, strict=True), fn):
        inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
        y = f(*inputs).sum()
        grad(y, inputs, create_graph=True)  # keeps the graph
        grad(y, inputs, create_graph=True, retain_graph=False)
        with pytest.raises(RuntimeError, match="second time") as error:
            grad(y, inputs, create_graph=True)
        messages.append(str(error.value))
        with pytest.raises(RuntimeError, match="second time"):
            grad(y, inputs)
    assert messages[0] == messages[1]


def test_an_input_that_changes_raises_eagers_error():
    """Only where it is read: the first gradient of a sum does not."""

    def fn(x, bias):
        return torch.tanh(x) + bias

    for f in (optimize(fn, strict=True, second_derivatives=True), lambda x, bias: fn(x, bias) * 1):
        leaf, bias = torch.randn(3, 5, requires_grad=True), torch.randn(3, 5)
        x = leaf * 1
        y = f(x, bias)
        bias.add_(1)
        grad(y.sum(), leaf, retain_graph=True)  # nobody reads the bias
    leaf = torch.randn(3, 5, requires_grad=True)
    x = leaf * 1
    y = optimize(lambda x: torch.exp(x) * 2, strict=True, second_derivatives=True)(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        grad(y.sum(), leaf, create_graph=True)
    x, w = torch.randn(3, 5, requires_grad=True), torch.randn(5)
    y = optimize(lambda x, w: torch.tanh(x * w) * w, strict=True)(x, w)
    w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        grad(y.sum(), x, create_graph=True)


def test_hooks_fire_once():
    counts = {}

    def counting(name):
        counts[name] = 0

        def hook(g):
            counts[name] += 1

        return hook

    def fn(x, w):
        return torch.tanh(x * w) * w

    for f in (optimize(fn, strict=True), fn):
        leaf, w = torch.randn(3, 5, requires_grad=True), torch.randn(5, requires_grad=True)
        x = leaf * 1
        y = f(x, w)
        for name, tensor in {"leaf": leaf, "w": w, "x": x, "y": y}.items():
            tensor.register_hook(counting(name))
        first = grad(y.sum(), (leaf, w), create_graph=True)
        once = dict(counts)
        sum(g.square().sum() for g in first).backward()
        if f is not fn:
            ours = (once, dict(counts))
    assert ours == (once, counts)


def test_a_model_that_is_gone():
    """Its graph of autograd can still be differentiated twice, and nothing is left after that."""
    others = [o for o in gc.get_objects() if type(o) is Plain]  # of models that other tests keep
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
    optimize(model, strict=True)
    x = torch.randn(3, 5, requires_grad=True)
    y = model(x).sum()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    (first,) = grad(y, x, create_graph=True)
    (second,) = grad(first.square().sum(), x)
    assert second.abs().sum() > 0
    plain = [o for o in gc.get_objects() if type(o) is Plain and not any(o is x for x in others)]
    assert plain
    watched = [weakref.ref(o) for o in plain]
    del y, first, plain
    torch._dynamo.reset()
    gc.collect()
    assert all(ref() is None for ref in watched)


def test_copies_and_pickles():
    model = optimize(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)), second_derivatives=True)
    x = torch.randn(3, 5, requires_grad=True)
    grad(model(x).sum(), x, create_graph=True)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        (a,) = grad(other(x).sum(), x, create_graph=True)
        (b,) = grad(model(x).sum(), x, create_graph=True)
        torch.testing.assert_close(a, b)


def test_threads():
    """Backward passes of several threads at a time."""
    fn, shapes = FUNCTIONS["layer_norm"]
    fused, wrong = optimize(fn, strict=True), []
    fused(*(torch.randn(shape, requires_grad=True) for shape in shapes))

    def work():
        try:
            for _ in range(5):
                inputs = [torch.randn(shape, dtype=torch.float32, requires_grad=True) for shape in shapes]
                results = []
                for f in (fused, fn):
                    first = grad(f(*inputs).square().sum(), inputs, create_graph=True)
                    results.append(grad(sum(g.square().sum() for g in first), inputs))
                torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)
        except Exception as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_log_says_it_once(caplog):
    fused = optimize(FUNCTIONS["gelu"][0], strict=True)
    inputs = [torch.randn(shape, requires_grad=True) for shape in FUNCTIONS["gelu"][1]]
    with caplog.at_level(logging.INFO, "fusewright"):
        for _ in range(3):
            grad(fused(*inputs).sum(), inputs, create_graph=True)
    lines = [r.message for r in caplog.records if "second derivatives" in r.message]
    assert len(lines) == 1 and "lambda_1_0" in lines[0]
    assert stats()["second_derivatives"] == 3


# ---- memory --------------------------------------------------------------------------------------------------------


def softmax_of(x):
    return F.softmax(x, -1)


def test_what_eager_lets_go_is_not_kept():
    """softmax keeps its result. Its input would come on top, unless somebody holds it, or the user asks for it."""
    leaf = torch.randn(4, 129, requires_grad=True)
    fused = optimize(softmax_of, strict=True)
    x = leaf * 1
    (first,) = grad(fused(x).square().sum(), leaf, create_graph=True)
    torch.testing.assert_close(first.detach(), grad(softmax_of(leaf).square().sum(), leaf)[0])
    assert first.requires_grad
    with pytest.raises(RuntimeError, match="softmax_of_1_0") as error:
        first.square().sum().backward()
    assert "second_derivatives=True" in str(error.value) and "\n" not in str(error.value).strip()
    (first,) = grad(fused(leaf).square().sum(), leaf, create_graph=True)
    first.square().sum().backward()

    def run(optimized, exact, nudge):
        (leaf,) = leaves([torch.randn(4, 129)], exact, nudge)
        y = optimized(softmax_of, strict=True, second_derivatives=True)(leaf * 1)
        (first,) = grad(y.square().sum(), leaf, create_graph=True)
        return {"first": first, "second": grad(first.square().sum(), leaf)[0]}

    judge(run)


def test_a_backward_under_torch_func():
    """It is PyTorch's too, where the region keeps enough for it; elsewhere the error names the option."""
    rows, leaf = torch.randn(3, 4, 129), torch.randn(4, 129, requires_grad=True)
    for options in ({"second_derivatives": True}, {}):
        y = optimize(softmax_of, strict=True, **options)(leaf * 1)
        vectors = torch.func.vmap(lambda g, y=y: grad(y, leaf, g, retain_graph=True)[0])
        if options:
            expected = [grad(softmax_of(leaf), leaf, g)[0] for g in rows]
            torch.testing.assert_close(vectors(rows), torch.stack(expected))
        else:
            with pytest.raises(NotImplementedError, match="second_derivatives=True"):
                vectors(rows)


def test_a_forward_does_not_fail_for_it(monkeypatch):
    """A fault of ours in what is prepared for second derivatives: they refuse, and nothing else changes."""

    def fail(*_, **__):
        raise AssertionError("planted")

    monkeypatch.setattr(Plain, "_graph", fail)
    x = torch.randn(3, 5, requires_grad=True)
    y = optimize(lambda x: torch.tanh(x) * x, strict=True)(x).sum()
    torch.testing.assert_close(grad(y, x, retain_graph=True)[0], torch.tanh(x) + x * (1 - torch.tanh(x) ** 2))
    (first,) = grad(y, x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        first.sum().backward()


def bytes_kept_by(f, x):
    """Bytes that are held between forward and backward."""
    kept = {}

    def pack(t):
        kept[t.untyped_storage()._cdata] = t.untyped_storage()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = f(x)
    return sum(storage.nbytes() for storage in kept.values()), y


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_more_is_kept_than_by_eager(name):
    fn, shapes = FUNCTIONS[name]
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]

    def on_intermediate_values(f):
        return lambda inputs: f(*(x * 1 for x in inputs))

    fused = optimize(fn, strict=True)
    fused(*inputs)
    ours, _ = bytes_kept_by(on_intermediate_values(fused), inputs)
    eager, _ = bytes_kept_by(on_intermediate_values(fn), inputs)
    assert ours <= eager


# ---- state ---------------------------------------------------------------------------------------------------------


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2)
        self.norm, self.last = nn.BatchNorm2d(16), nn.Linear(16, 1)

    def forward(self, x):
        x = F.leaky_relu(self.first(x), 0.2)
        x = F.leaky_relu(self.norm(self.second(x)), 0.2)
        return self.last(x.mean((2, 3)))


def test_wgan_gp_in_training():
    """BatchNorm in training; D(real), D(fake), D(mix), and one backward for all of them."""
    torch.manual_seed(1)
    critic = Critic()
    real, fake, share = torch.randn(6, 3, 9, 9), torch.randn(6, 3, 9, 9), torch.rand(6, 1, 1, 1)

    def run(optimized, exact, nudge):
        model = copy.deepcopy(critic)
        model = optimized(model.double() if exact else model, strict=True)
        a, b = (nudge(x).double() if exact else nudge(x) for x in (real, fake))
        mix = (share.to(a.dtype) * a + (1 - share.to(a.dtype)) * b).requires_grad_()
        of_real, of_fake, of_mix = model(a), model(b), model(mix)
        (g,) = grad(of_mix.sum(), mix, create_graph=True)
        penalty = ((g.flatten(1).norm(dim=1) - 1) ** 2).mean()
        (of_fake.mean() - of_real.mean() + 10 * penalty).backward()
        result = {"of mix": of_mix, "gradient of mix": g, "penalty": penalty}
        result |= {f"gradient of {n}": p.grad for n, p in model.named_parameters()}
        return result | {f"buffer {n}": b.clone() for n, b in model.named_buffers()}

    judge(run)


def test_statistics_of_evaluation():
    """The running ones; they come from the forward, and stay as they are."""
    torch.manual_seed(1)
    critic = Critic().eval()
    critic.norm.running_mean.normal_()
    critic.norm.running_var.uniform_(0.5, 2)
    x = torch.randn(3, 3, 9, 9)

    def run(optimized, exact, nudge):
        model = copy.deepcopy(critic)
        model = optimized(model.double() if exact else model, strict=True)
        (leaf,) = leaves([x], exact, nudge)
        (g,) = grad(model(leaf).sum(), leaf, create_graph=True)
        g.square().sum().backward()
        result = {"gradient of x": leaf.grad, "g": g}
        result |= {f"gradient of {n}": p.grad for n, p in model.named_parameters()}
        return result | {f"buffer {n}": b.clone() for n, b in model.named_buffers()}

    judge(run)


def test_statistics_move_once():
    fused, plain = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh()), None
    plain = copy.deepcopy(fused)
    optimize(fused, strict=True)
    for model in (fused, plain):
        torch.manual_seed(0)
        x = torch.randn(9, 5, requires_grad=True)
        (g,) = grad(model(x).sum(), x, create_graph=True)
        g.square().sum().backward()
    for a, b in zip(fused.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, b)
    assert fused[1].num_batches_tracked == 1


class Smoothed(nn.Module):
    """A buffer of the user's that the call replaces, and computes with as it was."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.linspace(-1, 1, 7))

    def forward(self, x):
        y = torch.tanh(x) * torch.exp(self.mean)
        self.mean.mul_(0.5).add_(0.5 * x.detach().mean(0))
        return y * torch.cos(self.mean)


def test_a_buffer_as_it_was():
    """Kept as a copy: the call replaces it."""
    x = torch.randn(5, 7)

    def run(optimized, exact, nudge):
        model = Smoothed().double() if exact else Smoothed()
        model = optimized(model, strict=True, second_derivatives=True)
        (leaf,) = leaves([x], exact, nudge)
        y = model(leaf)
        model(leaf.detach() * 2)  # moves it on
        (g,) = grad(y.sum(), leaf, create_graph=True)
        return {"first": g, "second": grad(g.square().sum(), leaf)[0], "buffer": model.mean.clone()}

    judge(run)


def test_dropout_masks_are_those_of_the_forward():
    model = nn.Sequential(nn.Linear(6, 33), nn.Tanh(), nn.Dropout(0.4), nn.Linear(33, 5), nn.SiLU(), nn.Dropout(0.2))
    x = torch.randn(7, 6)

    def run(optimized, exact, nudge):
        ours = copy.deepcopy(model)
        ours = optimized(ours.double() if exact else ours, second_derivatives=True)
        (leaf,) = leaves([x], exact, nudge)
        torch.manual_seed(5)
        y = ours(leaf)
        torch.rand(3)  # the generator moves on
        (g,) = grad(y.sum(), leaf, create_graph=True)
        g.square().sum().backward()
        return {"y": y, "g": g, "x": leaf.grad} | {n: p.grad for n, p in ours.named_parameters()}

    def same_masks(optimized, exact, nudge):
        # Dropout draws by elements: the same seed gives float64 the same mask on a CPU, which the outputs show.
        return run(optimized, exact, nudge)

    judge(same_masks)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    """The rerun has the forward's state, though the backward runs outside of it."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(9, 33), nn.LayerNorm(33), nn.GELU(), nn.Linear(33, 3))
    x = torch.randn(7, 9)

    def run(optimized, exact, nudge):
        ours = copy.deepcopy(model)
        ours = optimized(ours.double() if exact else ours, strict=True, second_derivatives=True)
        (leaf,) = leaves([x], exact, nudge)
        with torch.autocast("cpu", dtype, enabled=not exact):
            y = ours(leaf)
        (g,) = grad(y.double().sum(), leaf, create_graph=True)
        g.square().sum().backward()
        result = {"y": y, "g": g, "x": leaf.grad} | {n: p.grad for n, p in ours.named_parameters()}
        # Results that passed through 16 bits are judged as such.
        return {n: t if exact or t is None else t.to(dtype) for n, t in result.items()}

    judge(run)


# ---- PyTorch's own ways to call a backward -------------------------------------------------------------------------


@pytest.mark.parametrize("vectorize", [False, True])
def test_hessian(vectorize):
    w = torch.randn(6, 6)

    def fn(x):
        return (torch.tanh(x @ w.to(x.dtype)) * x).sum().square()

    def run(optimized, exact, nudge):
        (x,) = leaves([torch.randn(6)], exact, nudge)
        ours = optimized(fn, strict=True, second_derivatives=True)
        hessian = torch.autograd.functional.hessian(ours, x.detach(), vectorize=vectorize)
        _, product = torch.autograd.functional.hvp(ours, x.detach(), torch.ones_like(x))
        return {"hessian": hessian, "product": product}

    judge(run)


def test_batches_of_gradients():
    fast, x = optimize(lambda x: torch.tanh(x) * 2, strict=True), torch.randn(3, requires_grad=True)
    rows = torch.randn(4, 3)
    (first,) = grad(fast(x), x, rows, is_grads_batched=True, create_graph=True)
    torch.testing.assert_close(first, rows * 2 * (1 - torch.tanh(x) ** 2))
    y = torch.tanh(x)
    torch.testing.assert_close(grad(first.sum(), x)[0], (rows * -4 * y * (1 - y**2)).sum(0))
    # Transforms of torch.func reach a backward, too.
    y = fast(x)
    vectors = torch.func.vmap(lambda g: grad(y, x, g, retain_graph=True)[0])(rows)
    torch.testing.assert_close(vectors, first.detach())


def test_maml():
    """Three inner steps; the outer gradient goes through all of them."""
    torch.manual_seed(3)
    start = [torch.randn(1, 21) * 0.5, torch.randn(21) * 0.1, torch.randn(21, 21) * 0.2, torch.randn(21) * 0.1]
    start.append(torch.randn(21, 1) * 0.2)
    x, y = torch.rand(10, 1) * 4 - 2, torch.randn(10, 1)

    def net(x, w1, b1, w2, b2, w3):
        return torch.tanh(torch.tanh(x @ w1 + b1) @ w2 + b2) @ w3

    def run(optimized, exact, nudge):
        ours = optimized(net, strict=True, second_derivatives=True)
        slow = leaves(start, exact, nudge)
        inputs, wanted = (t.double() if exact else t for t in (x, y))
        fast = slow
        for _ in range(3):
            loss = F.mse_loss(ours(inputs, *fast), wanted)
            fast = [w - 0.1 * g for w, g in zip(fast, grad(loss, fast, create_graph=True), strict=True)]
        outer = F.mse_loss(ours(inputs, *fast), wanted)
        return {"loss": outer} | {f"gradient {i}": g for i, g in enumerate(grad(outer, slow))}

    judge(run)


def physics_loss(net, points):
    """u_t + u u_x = 0.01 u_xx, all by create_graph."""
    u = net(points)
    (du,) = grad(u.sum(), points, create_graph=True)
    (dux,) = grad(du[:, 0].sum(), points, create_graph=True)
    residual = du[:, 1:] + u * du[:, :1] - 0.01 * dux[:, :1]
    return residual.square().mean()


def physics_net(width):
    layers = [nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def test_a_physics_informed_network(capsys):
    torch.manual_seed(4)
    net, points = physics_net(32), torch.rand(65, 2)

    def run(optimized, exact, nudge):
        ours = copy.deepcopy(net)
        ours = optimized(ours.double() if exact else ours, strict=True)
        (leaf,) = leaves([points], exact, nudge)
        loss = physics_loss(ours, leaf)
        loss.backward()
        return {"loss": loss} | {n: p.grad for n, p in ours.named_parameters()}

    judge(run)
    net, points = physics_net(64), torch.rand(2048, 2, requires_grad=True)
    fused = optimize(copy.deepcopy(net), strict=True)

    def seconds(model):
        times = []
        for _ in range(6):
            start = time.perf_counter()
            physics_loss(model, points).backward()
            times.append(time.perf_counter() - start)
        return min(times[1:])

    with capsys.disabled():
        print(
            f"\na step of a physics-informed network: {seconds(fused) * 1e3:.1f} ms, eager {seconds(net) * 1e3:.1f} ms"
        )


@pytest.mark.parametrize("options", [{}, {"second_derivatives": True}])
def test_checkpoint(options):
    """Without re-entry: what the backward unpacks is computed again."""
    model = nn.Sequential(nn.Linear(5, 33), nn.LayerNorm(33), nn.Tanh(), nn.Dropout(0.3), nn.Linear(33, 5), nn.GELU())
    x = torch.randn(4, 5)

    def run(optimized, exact, nudge):
        ours = copy.deepcopy(model)
        ours = optimized(ours.double() if exact else ours, **options)
        (leaf,) = leaves([x], exact, nudge)
        torch.manual_seed(5)
        y = checkpoint(ours, leaf * 1, use_reentrant=False)
        (g,) = grad(y.square().sum(), leaf, create_graph=True)
        return {"y": y, "g": g, "second": grad(g.square().sum(), leaf)[0]}

    if options:
        judge(run)
        return
    # The first gradient is right with and without a graph, whatever is kept.
    for create_graph in (False, True):
        torch.manual_seed(0)
        results = []
        for optimized in (optimize, lambda f: f):
            leaf = x.clone().requires_grad_()
            torch.manual_seed(5)
            y = checkpoint(optimized(copy.deepcopy(model)), leaf * 1, use_reentrant=False)
            results.append(grad(y.square().sum(), leaf, create_graph=create_graph)[0].detach())
        torch.testing.assert_close(*results)


def test_saved_tensor_hooks():
    """They pack what is kept and are asked for it; what is computed once more is packed as in eager."""
    fn, shapes = FUNCTIONS["layer_norm"]

    def run(optimized, exact, nudge):
        inputs = leaves([torch.randn(shape) for shape in shapes], exact, nudge)
        packed = []

        def pack(t):
            packed.append(t)
            return len(packed) - 1, t.clone()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda pair: pair[1]):
            y = optimized(fn, strict=True)(*inputs)
            first = grad(y.square().sum(), inputs, create_graph=True)
            second = grad(sum(g.square().sum() for g in first), inputs)
        assert packed
        return {f"first {i}": g for i, g in enumerate(first)} | {f"second {i}": g for i, g in enumerate(second)}

    judge(run)
    with torch.autograd.graph.save_on_cpu():
        x = torch.randn(3, 5, requires_grad=True)
        (g,) = grad(optimize(lambda x: torch.tanh(x) * x, strict=True)(x).sum(), x, create_graph=True)
        g.sum().backward()


def test_a_tracer_records_pytorchs_operators():
    from torch.fx.experimental.proxy_tensor import make_fx

    fused = optimize(lambda x: torch.tanh(x) * x, strict=True)
    x = torch.randn(3, 5)
    given, run = [], fusewright._core.run_region
    try:
        fusewright._core.run_region = lambda *call: given.append(call) or run(*call)
        fused(x)
    finally:
        fusewright._core.run_region = run
    ((handle, _, scalars),) = given

    def second(x):
        leaf = x.detach().requires_grad_()
        (y,) = torch.ops.fusewright.run(handle, [leaf], scalars)
        (g,) = grad(y.sum(), leaf, create_graph=True)
        return grad(g.square().sum(), leaf)[0]

    traced = make_fx(second)(x)
    torch.testing.assert_close(traced(x * 0.5), second(x * 0.5))
    assert any(node.target is torch.ops.aten.tanh.default for node in traced.graph.nodes)


def test_the_backend_takes_the_option():
    x = torch.randn(4, 129, requires_grad=True)
    compiled = torch.compile(softmax_of, backend="fusewright", options={"second_derivatives": True})
    (g,) = grad(compiled(x * 1).square().sum(), x, create_graph=True)
    g.sum().backward()
    with pytest.raises(Exception, match="unknown options.*known: strict, tune, second_derivatives"):
        torch.compile(softmax_of, backend="fusewright", options={"thrice": True})(x * 1)


# ---- forward mode and torch.func -----------------------------------------------------------------------------------


def scalar_function(x):
    return (torch.tanh(x) * F.softplus(x)).sum()


def rows_function(x):
    return F.layer_norm(torch.sin(x), x.shape[-1:])


TRANSFORMS = {
    "grad": lambda f, g, x: torch.func.grad(f)(x[0]),
    "hessian": lambda f, g, x: torch.func.hessian(f)(x[0]),
    "jacrev": lambda f, g, x: torch.func.jacrev(g)(x[0]),
    "jacfwd": lambda f, g, x: torch.func.jacfwd(g)(x[0]),
    "jvp": lambda f, g, x: torch.stack(torch.func.jvp(g, (x,), (torch.cos(x),))),
    "vjp": lambda f, g, x: torch.func.vjp(g, x)[1](torch.cos(x))[0],
    "vmap": lambda f, g, x: torch.func.vmap(g)(x),
    "gradients of samples": lambda f, g, x: torch.func.vmap(torch.func.grad(f))(x),
    "dual": lambda f, g, x: _dual(g, x),
    "forward over reverse": lambda f, g, x: _dual(lambda x: grad(f(x), x, create_graph=True)[0], x.requires_grad_()),
}


def _dual(f, x):
    with torch.autograd.forward_ad.dual_level():
        y = f(torch.autograd.forward_ad.make_dual(x, torch.cos(x.detach())))
        primal, tangent = torch.autograd.forward_ad.unpack_dual(y)
        return torch.stack([primal, tangent])


@pytest.mark.parametrize("captured", [False, True], ids=["first", "captured"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_run_pytorchs_operators(name, captured):
    torch.manual_seed(6)
    x = torch.randn(4, 33)
    fast, rows = optimize(scalar_function, strict=True), optimize(rows_function, strict=True)
    if captured:
        fast(x[0]), rows(x[0]), rows(x)
    before = stats()
    ours = TRANSFORMS[name](fast, rows, x.clone())
    after = stats()
    assert after["fallback_calls"] > before["fallback_calls"] and after["region_calls"] == before["region_calls"]
    exact = TRANSFORMS[name](scalar_function, rows_function, x.double())
    torch.testing.assert_close(ours, TRANSFORMS[name](scalar_function, rows_function, x.clone()), rtol=0, atol=0)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4)


def test_transforms_of_a_model(caplog):
    """Gradients of samples, by functional_call; the model stays optimised, and the log says it once."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 1))
    plain, x = copy.deepcopy(model), torch.randn(6, 5)
    optimize(model, strict=True)

    def loss(model):
        return lambda state, x: torch.func.functional_call(model, state, (x,)).square().sum()

    results = []
    for m in (model, plain):
        state = {n: p.detach() for n, p in m.named_parameters()}
        with caplog.at_level(logging.INFO, "fusewright"):
            results.append(torch.func.vmap(torch.func.grad(loss(m)), in_dims=(None, 0))(state, x))
    torch.testing.assert_close(*results)
    lines = [r.message for r in caplog.records if "torch.func" in r.message]
    assert len(lines) == 1 and stats()["fallback_calls"] >= 1
    model(x)
    assert stats()["region_calls"] == 1
