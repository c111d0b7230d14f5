"""Autograd and state: what is differentiated, what is kept, what is computed, and what a user may change in between."""

import copy
import threading

import pytest
import showcase
import torch
import torch.nn.functional as F
from torch import nn

import fusewright
from fusewright import explain, is_optimized, optimize, restore, stats

pytestmark = pytest.mark.real_core


def chain(x, w):
    return F.gelu(x * w) + x


# ---- derivatives -------------------------------------------------------------------------------------------------


def conv_pool(x, w):
    return F.max_pool2d(F.leaky_relu(F.conv2d(x, w), 0.2), 2)


def normed(x, w):
    return F.silu(F.layer_norm(x, x.shape[1:], w))


def batch_normed(x, w):
    return F.batch_norm(x, None, None, w, training=True).sigmoid()


@pytest.mark.parametrize(
    "fn, shapes",
    [
        (chain, [(3, 5), (5,)]),
        (conv_pool, [(2, 2, 6, 5), (3, 2, 3, 2)]),
        (normed, [(3, 7), (7,)]),
        (batch_normed, [(5, 3), (3,)]),
        (lambda x, w: (x @ w).softmax(1), [(3, 4), (4, 5)]),
        (lambda x, w: torch.logsumexp(x * w, 0), [(4, 3), (3,)]),
    ],
    ids=["chain", "conv_pool", "normed", "batch_normed", "matmul_softmax", "logsumexp"],
)
def test_gradcheck(fn, shapes):
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(optimize(fn, strict=True), inputs)
    assert stats()["region_calls"] > 1


def test_backward_twice():
    x, w = torch.randn(3, 5, requires_grad=True), torch.randn(5)
    y = optimize(chain, strict=True)(x, w).sum()
    (a,) = torch.autograd.grad(y, x, retain_graph=True)
    (b,) = torch.autograd.grad(y, x)
    assert torch.equal(a, b)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, x)


def test_gradients_accumulate():
    model = showcase.make(showcase.GROUP_NORM)
    plain = copy.deepcopy(model)
    optimize(model, strict=True)
    for _ in range(3):
        x = showcase.inputs(showcase.GROUP_NORM)
        for m in (model, plain):
            m(x).sum().backward()
    for (name, a), b in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


# ---- what is computed ----------------------------------------------------------------------------------------------


def products_in_backward(model, x):
    """How many matrix products and convolutions a backward pass runs, by the profiler."""
    y = model(x).sum()
    with torch.autograd.profiler.profile() as profile:
        y.backward()
    names = [event.name for event in profile.function_events]
    return sum(name in ("aten::mm", "aten::matmul", "aten::convolution_backward") for name in names if "::" in name)


def test_frozen_parameters_compute_nothing():
    name = showcase.GROUP_NORM
    model = optimize(showcase.make(name), strict=True)
    assert products_in_backward(model, showcase.inputs(name).requires_grad_()) == 2
    assert products_in_backward(model, showcase.inputs(name)) == 1  # no gradient of the input
    model.linear.weight.requires_grad_(False)
    assert products_in_backward(model, showcase.inputs(name)) == 0
    assert model.multiplier.grad is not None
    for parameter in model.parameters():
        parameter.grad = None
    model.linear.requires_grad_(False)
    model.group_norm.requires_grad_(False)
    model(showcase.inputs(name)).sum().backward()
    assert {n for n, p in model.named_parameters() if p.grad is not None} == {"multiplier"}
    model.requires_grad_(True)
    assert products_in_backward(model, showcase.inputs(name).requires_grad_()) == 2


def test_explain_shows_what_is_frozen():
    name = showcase.CONV
    model, x = showcase.make(name), showcase.inputs(name)
    backward = lambda *args: sorted(c.operator for c in explain(*args).library if c.phase == "backward")  # noqa: E731
    assert backward(model, x.clone().requires_grad_()) == ["conv_input_grad", "conv_weight_grad"]
    assert backward(model, x) == ["conv_weight_grad"]
    model.conv.weight.requires_grad_(False)
    assert backward(model, x) == []


def test_no_gradient_wanted_none_prepared():
    name = showcase.CONV
    model = optimize(showcase.make(name), strict=True)
    x = showcase.inputs(name)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            y = model(x)
        assert not y.requires_grad and y.is_inference() == isinstance(context, torch.inference_mode)
    y = model(x)
    assert y.requires_grad
    model.requires_grad_(False)
    assert not model(x).requires_grad
    assert model(x.clone().requires_grad_()).requires_grad
    model.requires_grad_(True)
    model(x).sum().backward()
    assert model.multiplier.grad is not None and stats()["fallback_calls"] == 0


def test_inference_tensors_can_be_read():
    with torch.inference_mode():
        x = torch.randn(3, 5)
    w = torch.randn(5)
    torch.testing.assert_close(optimize(chain, strict=True)(x, w), chain(x, w))


# ---- what is kept ----------------------------------------------------------------------------------------------------


def saved_bytes(run):
    """Memory that autograd keeps between forward and backward, each storage once."""
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = (tensor.nbytes if tensor.numel() else 0, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = run()
    return sum(size for size, _ in storages.values()), y


@pytest.mark.parametrize("name", showcase.NAMES)
def test_no_more_memory_is_kept_than_eager_keeps(name):
    model, x = showcase.make(name), torch.randn(64, *showcase.SIZES[name][0][1:])
    eager, _ = saved_bytes(lambda: model(x))
    optimize(model, strict=True)(x)
    ours, y = saved_bytes(lambda: model(x))
    assert 0 < ours <= eager, f"{ours} bytes, eager keeps {eager}"
    y.sum().backward()  # through the hooks
    assert model.multiplier.grad is not None if hasattr(model, "multiplier") else model.bias.grad is not None


def test_saved_tensors_are_checked_for_changes():
    def fn(read, not_read):
        return (read * read).tanh() + not_read

    for f in (fn, optimize(fn, strict=True)):
        leaf = torch.randn(5, requires_grad=True)
        a, b = leaf * 1, leaf * 2
        y = f(a, b)
        b.add_(1)  # the gradient of a sum needs no operand
        y.sum().backward(retain_graph=True)
        a.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_parameters_changed_before_backward():
    model = optimize(nn.Sequential(nn.Linear(5, 5), nn.Tanh()), strict=True)
    y = model(torch.randn(3, 5, requires_grad=True))
    with torch.no_grad():
        model[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_an_output_changed_in_place():
    """tanh's eager derivative reads its result; ours reads the input: both answers are right, neither is silent."""
    x = torch.randn(5, requires_grad=True)
    y = optimize(lambda x: torch.tanh(x * 2), strict=True)(x)
    expected = torch.autograd.grad(torch.tanh(x * 2).sum(), x)[0]
    y.detach().mul_(0)
    try:
        found = torch.autograd.grad(y.sum(), x)[0]
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
    else:
        torch.testing.assert_close(found, expected)
    y = optimize(lambda x: torch.tanh(x * 2), strict=True)(x)
    y += 1  # in autograd
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], expected)


def test_softmax_keeps_its_result_alone():
    """As eager does: its result may not change before the backward. One that is written out may, and is recomputed."""

    def written_out(x):
        e = (x - x.amax(1, keepdim=True)).exp()
        return e / e.sum(1, keepdim=True)

    x, weight = torch.randn(33, 65, requires_grad=True), torch.randn(33, 65)
    for fn in (lambda x: torch.softmax(x * 0.5 + 1, 1), written_out):
        fused = optimize(fn, strict=True)
        kept, y = saved_bytes(lambda fused=fused: fused(x))
        expected = torch.autograd.grad((fn(x.double()) * weight).sum(), x)[0]
        found = torch.autograd.grad((y * weight).sum(), x)[0]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        if fn is written_out:
            y = fused(x)
            y += 1
            torch.testing.assert_close(torch.autograd.grad((y * weight).sum(), x)[0], expected, rtol=1e-5, atol=1e-6)
            continue
        assert kept == y.nbytes
        for run in (fn, fused):
            y = run(x)
            y += 1
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()


def test_results_that_eager_does_not_keep():
    """The value may be softmax's, the tensor is another operator's: it may change in place before the backward."""
    a, b = (torch.randn(7, 9, requires_grad=True) for _ in range(2))
    for fn in (
        lambda a, b: torch.sigmoid(a + b).neg().neg(),
        lambda a, b: torch.softmax(a + b, 1) ** 1.0,
        lambda a, b: torch.where(a > 0, y := torch.softmax(a + b, 1), y),
        lambda a, b: torch.sigmoid(a + b).unsqueeze(0).sum(0),
    ):
        results = []
        for run in (fn, optimize(fn, strict=True)):
            y = run(a, b)
            with torch.no_grad():
                y.mul_(3)
            results.append(torch.autograd.grad(y.sin().sum(), (a, b)))
        torch.testing.assert_close(results[1], results[0])


# ---- state -----------------------------------------------------------------------------------------------------------


def test_norm_and_dropout_over_train_and_eval():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.SiLU())
    plain = copy.deepcopy(model)
    optimize(model)
    for train in (True, False, True, False):
        x = torch.randn(31, 6)
        results = []
        for m in (model.train(train), plain.train(train)):
            torch.manual_seed(5)
            results.append(m(x))
        torch.testing.assert_close(*results)
        torch.testing.assert_close(model.state_dict(), plain.state_dict())


def test_dropout_mask_is_the_same_in_both_directions():
    fn = optimize(lambda x: F.dropout(torch.sigmoid(x * 3), 0.5) * 2)
    x = torch.randn(1025, requires_grad=True)
    y = fn(x)
    y.sum().backward()
    assert torch.equal(y == 0, x.grad == 0) and 0.4 < (y == 0).float().mean() < 0.6


def test_shared_parameters():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(7, 5))
            self.scale = self.same_scale = nn.Parameter(torch.rand(5) + 0.5)

        def forward(self, x):
            h = F.gelu(x @ self.table * self.scale)
            return (h * self.same_scale) @ self.table.t()

    model = Tied()
    plain = copy.deepcopy(model)
    optimize(model, strict=True)
    pairs = [(m, torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9)) for m in (model, plain)]
    for _ in range(4):
        x = torch.randn(3, 7)
        for m, optimizer in pairs:
            optimizer.zero_grad()
            m(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=1e-4, atol=1e-5)
    assert model.scale is model.same_scale and stats()["captures"] == 1


def test_load_state_dict_is_seen():
    name = showcase.BATCH_NORM
    model, other, x = (
        optimize(showcase.make(name).eval(), strict=True),
        showcase.make(name).eval(),
        showcase.inputs(name),
    )
    before = model(x)
    model.load_state_dict(other.state_dict())
    torch.testing.assert_close(model(x), other(x))
    assert not torch.allclose(before, other(x)) and stats()["captures"] == 1
    model.load_state_dict(showcase.make(name).state_dict(), assign=True)  # other tensors
    torch.testing.assert_close(model(x), restore(copy.deepcopy(model))(x))


def test_a_copy_trains_on_its_own():
    name = showcase.GROUP_NORM
    model = optimize(showcase.make(name), strict=True)
    model(showcase.inputs(name)).sum().backward()
    twin = copy.deepcopy(model)
    assert not is_optimized(twin)
    optimize(twin, strict=True)
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    twin(showcase.inputs(name)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    x = showcase.inputs(name)
    torch.testing.assert_close(twin(x), restore(copy.deepcopy(twin))(x))
    assert not torch.allclose(twin(x), model(x))


class Attributes(nn.Module):
    def __init__(self):
        super().__init__()
        self.slope, self.squash, self.power = 0.1, False, 2
        self.act = nn.LeakyReLU(0.1)

    def forward(self, x):
        x = self.act(F.leaky_relu(x, self.slope) * self.power)
        return torch.tanh(x) if self.squash else x + 1


def test_a_changed_attribute_is_respected():
    model, plain = optimize(Attributes(), strict=True), Attributes()
    x = torch.randn(31)
    changes = [("slope", 0.3), ("squash", True), ("power", 3), ("slope", 0.7), ("squash", False), ("slope", 0.1)]
    for name, value in changes:
        setattr(model, name, value)
        setattr(plain, name, value)
        torch.testing.assert_close(model(x), plain(x), msg=lambda m, n=name, v=value: f"{n} = {v}: {m}")
    model.act, plain.act = nn.Softplus(), nn.Softplus()
    torch.testing.assert_close(model(x), plain(x))
    plain.act.beta = model.act.beta = 2.5
    torch.testing.assert_close(model(x), plain(x))
    assert stats()["fallback_calls"] == 0


def test_sixteen_threads_at_the_first_call():
    """Forward and backward, each thread with its own input and its own gradient."""
    fn = optimize(lambda x, w: torch.sigmoid(x * w).sum(1).sin(), strict=True)
    start, results, errors = threading.Barrier(16), [None] * 16, []

    def work(i):
        try:
            x = (torch.arange(31 * 33).view(31, 33) / 1000 + i).requires_grad_()
            start.wait()
            y = fn(x, torch.full((33,), 0.01))
            results[i] = y, torch.autograd.grad(y.sum(), x)[0], x
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    for y, gradient, x in results:
        expected = torch.sigmoid(x * 0.01).sum(1).sin()
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), x)[0], rtol=1e-4, atol=1e-6)
    assert stats()["region_calls"] == 16


class Gates(nn.Module):
    """Several parameters of different shapes whose gradients are the same sum."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(4, 6)
        self.row, self.column = nn.Parameter(torch.randn(1, 6)), nn.Parameter(torch.randn(6, 1))

    def forward(self, x):
        return torch.tanh(self.a(x) + self.b(x) + self.row + self.column.view(6))


@pytest.mark.parametrize("rows", [5, 1])
def test_gradients_add_up_apart(rows):
    """Autograd adds the second gradient to the first one in place."""
    model, x, g = Gates(), torch.randn(rows, 4), torch.randn(rows, 6)
    plain, fast, given = copy.deepcopy(model), optimize(model), g.clone()
    for _ in range(3):
        plain(x).backward(g)
        fast(x).backward(given)
    assert torch.equal(given, g), "the caller's gradient is not ours to add to"
    for (name, ours), (_, eager) in zip(fast.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(ours.grad, eager.grad, msg=lambda m, name=name: f"{name}: {m}")
    assert len({p.grad.data_ptr() for p in fast.parameters()}) == 6


def test_a_gradient_that_goes_straight_through_is_not_the_callers():
    """With one row the bias's gradient is the incoming one in another shape."""
    w = torch.randn(6, requires_grad=True)
    fast = optimize(lambda x, w: x * 2 + w, strict=True)
    g = torch.randn(1, 6)
    given = g.clone()
    for _ in range(2):
        fast(torch.randn(1, 6), w).backward(given)
    assert torch.equal(given, g)
    torch.testing.assert_close(w.grad, 2 * g[0])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: x.tanh() + (x * w).detach(),
        lambda x, w: torch.where(x > w, x, x * 2),
        lambda x, w: x * (w > 0),
        lambda x, w: (x + w.argmax()) * 2,
        lambda x, w: x * torch.floor(w),  # a zero, and not none
        lambda x, w: x.exp() + 0 * w,
        lambda x, w: (x > w) * 2.0,  # none at all
    ],
    ids=["detach", "where", "mask", "argmax", "floor", "zero", "nothing"],
)
def test_what_no_gradient_reaches_has_none(fn):
    """And not zeros, which an optimizer with weight decay would take for a gradient."""
    x, w = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    ours, eager = optimize(fn, strict=True)(x, w), fn(x, w)
    assert ours.requires_grad == eager.requires_grad
    if not eager.requires_grad:
        return
    wanted = torch.autograd.grad(eager.sum(), (x, w), allow_unused=True)
    for found, expected in zip(torch.autograd.grad(ours.sum(), (x, w), allow_unused=True), wanted, strict=True):
        assert (found is None) == (expected is None)
        if expected is not None:
            torch.testing.assert_close(found, expected)


def test_an_unused_head_has_no_gradient():
    """Zeros would be moved by momentum and weight decay."""

    def heads(x, v, w):
        h = torch.tanh(x)
        return h * v + 1, torch.sigmoid(h * w)

    fast = optimize(heads, strict=True)
    for used in (0, 1):
        given = [torch.randn(3, 4, requires_grad=True), *(torch.randn(4, requires_grad=True) for _ in range(2))]
        found = torch.autograd.grad(fast(*given)[used].sum(), given, allow_unused=True)
        expected = torch.autograd.grad(heads(*given)[used].sum(), given, allow_unused=True)
        assert found[2 - used] is None is expected[2 - used]
        torch.testing.assert_close(found[0], expected[0])
        torch.testing.assert_close(found[1 + used], expected[1 + used])


def test_a_hook_of_an_unused_head_is_handed_a_tensor():
    def heads(x, w):
        h = torch.tanh(x)
        return h * 2, torch.sigmoid(h * w)

    w = torch.randn(4, requires_grad=True)
    w.register_hook(lambda g: g.clamp(-1, 1))
    optimize(heads, strict=True)(torch.randn(3, 4, requires_grad=True), w)[0].sum().backward()


def test_batched_gradients():
    w = torch.randn(3, requires_grad=True)

    def fn(x):
        return torch.tanh(x * w) * 2

    fast, x = optimize(fn, strict=True), torch.randn(3, requires_grad=True)
    rows = torch.randn(4, 3)
    for ours, eager in zip(
        torch.autograd.grad(fast(x), (x, w), rows, is_grads_batched=True),
        torch.autograd.grad(fn(x), (x, w), rows, is_grads_batched=True),
        strict=True,
    ):
        torch.testing.assert_close(ours, eager)
    jacobian = torch.autograd.functional.jacobian
    torch.testing.assert_close(jacobian(fast, x, vectorize=True), jacobian(fn, x, vectorize=True))


@pytest.mark.parametrize(
    "fn",
    [
        lambda y: (torch.exp(y), torch.exp(y)),
        lambda y: (torch.exp(y), torch.exp(y.detach())),
        lambda y: (y.detach() * 2 + 1, y * 2 + 1),
        lambda y: (torch.exp(y), torch.exp(y).detach()),
    ],
)
def test_results_of_one_value_are_results_of_their_own(fn):
    x = torch.randn(5, requires_grad=True)
    ours, eager = optimize(lambda x: fn(torch.tanh(x)))(x), fn(torch.tanh(x))
    assert [y.requires_grad for y in ours] == [y.requires_grad for y in eager]
    wanted = torch.autograd.grad(sum(y.sum() for y in eager), x)
    torch.testing.assert_close(torch.autograd.grad(sum(y.sum() for y in ours), x), wanted)
    one, other = (y.detach() for y in ours)
    if eager[0].data_ptr() != eager[1].data_ptr():
        one.add_(1)
        torch.testing.assert_close(other, eager[1].detach())


def test_a_gradient_that_a_rewrite_takes_away_is_zero():
    """Only the bias is trained, and batch norm takes it away again."""
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, affine=False), nn.ReLU())
    model[0].weight.requires_grad_(False)
    y = optimize(model, strict=True)(torch.randn(2, 2, 6, 6))
    assert y.requires_grad
    y.sum().backward()
    assert model[0].bias.grad.abs().max() < 1e-4


class Checkpointed(nn.Module):
    def __init__(self, dropout, use_reentrant):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.dropout, self.use_reentrant = dropout, use_reentrant

    def body(self, x):
        return F.dropout(torch.tanh(self.norm(self.linear(x))), self.dropout, self.training) * 2

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=self.use_reentrant) * 3


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_checkpoints_inside_a_model_are_eagers(dropout, use_reentrant, caplog):
    """The same masks when activations are computed again, and buffers that move as in eager."""
    plain = Checkpointed(dropout, use_reentrant)
    fast = optimize(copy.deepcopy(plain))
    x = torch.randn(5, 4)
    for seed in range(3):
        for model in (plain, fast):
            torch.manual_seed(seed)
            model.zero_grad()
            model.x = x.clone().requires_grad_()
            model.y = model(model.x)
            model.y.sum().backward()
        torch.testing.assert_close(fast.y, plain.y)
        torch.testing.assert_close(fast.x.grad, plain.x.grad)
        for ours, eager in zip(fast.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, eager.grad)
        torch.testing.assert_close(dict(fast.named_buffers()), dict(plain.named_buffers()))
    assert any(fusewright.reasons.CHECKPOINT in record.getMessage() for record in caplog.records)


def test_checkpoints_notice_what_eagers_notice():
    """An argument that is changed before the backward, and not a parameter."""
    plain = Checkpointed(0.0, False)
    fast = optimize(copy.deepcopy(plain))
    for model in (plain, fast):
        x = torch.randn(5, 4)
        y = model(x)
        x.copy_(torch.randn(5, 4))  # the next batch, into a static input
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        y = model(torch.randn(5, 4))
        with torch.no_grad():
            model.linear.weight.mul_(0.5)
        y.sum().backward()


def test_detached_parts_get_no_gradient():
    def fn(x, w):
        return (x * w.detach()).tanh() + (x.detach() * w)

    x, w = torch.randn(3, 5, requires_grad=True), torch.randn(5, requires_grad=True)
    ours = torch.autograd.grad(optimize(fn, strict=True)(x, w).sum(), (x, w))
    torch.testing.assert_close(ours, torch.autograd.grad(fn(x, w).sum(), (x, w)))


def test_hooks_on_tensors_and_the_profiler():
    seen = []
    x = torch.randn(3, 5, requires_grad=True)
    h = x * 1
    h.register_hook(lambda g: seen.append(g.clone()))
    y = optimize(chain, strict=True)(h, torch.rand(5))
    with torch.autograd.profiler.profile() as profile:
        y.sum().backward()
    assert len(seen) == 1 and torch.equal(seen[0], x.grad)
    assert any("chain" in event.name for event in profile.function_events), "a region has a name in the profile"


def test_functional_call_and_other_parameters():
    name = showcase.GROUP_NORM
    model = showcase.make(name)
    other = {key: value + 1 for key, value in model.state_dict().items()}
    x = showcase.inputs(name)
    expected = torch.func.functional_call(model, other, (x,))
    optimize(model)
    torch.testing.assert_close(torch.func.functional_call(model, other, (x,)), expected)
    assert fusewright.is_optimized(model)


@pytest.mark.parametrize("name", ["floor", "ceil", "round", "trunc", "sign"])
def test_gradients_that_are_zero_may_be_written_to(name):
    """A hook that scales its gradient, on an input and on an intermediate."""
    x = torch.randn(3, 4, requires_grad=True)
    x.register_hook(lambda g: g.mul_(0.5).add_(1))
    z = x * 2.0
    z.register_hook(lambda g: g.mul_(0.5).add_(torch.arange(4.0)))
    optimize(lambda z: getattr(torch, name)(z * 1.5), strict=True)(z).sum().backward()
    assert torch.equal(x.grad, (torch.arange(4.0) * 2 * 0.5 + 1).expand(3, 4))


def test_gradients_without_memory():
    """PyTorch hands on zeros that have no memory as a gradient, here of sgn."""
    x = torch.randn(3, 4, requires_grad=True)
    torch.compile(lambda x: torch.sgn(x * 1.5), backend="fusewright")(x).sum().backward()
    assert torch.equal(x.grad, torch.zeros(3, 4))
    y = torch.randn(3, 4, requires_grad=True)
    optimize(lambda y: torch.exp(y * 1.5))(y).backward(torch._efficientzerotensor((3, 4)))
    assert torch.equal(y.grad, torch.zeros(3, 4))


@pytest.mark.parametrize("name", ["atanh_", "asinh_", "mul_"])
def test_in_place_where_eager_refuses_the_backward(name):
    """docs/capture.md, Gradients: the gradient is that of what the forward computes."""

    def fn(x, in_place):
        y = x * 0.5
        if in_place:
            getattr(y, name)(*[y] * (name == "mul_"))
        else:
            y = y * y if name == "mul_" else getattr(y, name.rstrip("_"))()
        return torch.tanh(y) + y

    x = torch.rand(33, requires_grad=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(fn(x, True).sum(), x)
    (ours,) = torch.autograd.grad(optimize(fn)(x, True).sum(), x)
    exact = x.detach().double().requires_grad_()
    torch.testing.assert_close(
        ours.double(), torch.autograd.grad(fn(exact, False).sum(), exact)[0], rtol=1e-5, atol=1e-6
    )
    assert stats()["region_calls"] >= 1
