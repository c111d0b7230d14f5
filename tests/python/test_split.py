"""Graphs that no trace keeps whole: PyTorch runs what a trace would lose, in its place, and the rest is fused."""

import copy

import pytest
import torch
import torch.nn.functional as F
from check import check
from torch import nn

import fusewright
from fusewright import UnsupportedError, explain, optimize, reasons


def check_pieces(model, inputs, regions, reason=reasons.MUTATION, **options):
    """The results and gradients are eager's, so many regions run, and every operator is explained once."""
    before = fusewright.stats()
    check(model, inputs, fused=False, layouts=["contiguous"], **options)
    after = fusewright.stats()
    assert after["region_calls"] - before["region_calls"] >= regions
    assert after["fallback_calls"] == before["fallback_calls"]
    inputs = [x.requires_grad_() for x in inputs]
    explanation = explain(model, *inputs)
    assert explanation.graphs == 1 and len(explanation.regions) == regions, explanation
    assert reason in {fallback.reason for fallback in explanation.fallbacks}
    assert not {reasons.INTERNAL, reasons.EXPORT_FAILED} & {f.reason for f in explanation.fallbacks}
    assert {f.operator.region for f in explanation.fates if f.what == "fused"} == set(explanation.tensors)
    with pytest.raises(UnsupportedError) as caught:
        optimize(copy.deepcopy(model) if isinstance(model, nn.Module) else model, strict=True)(*inputs)
    assert caught.value.reason == reason
    return explanation


# ---- writes ---------------------------------------------------------------------------------------------------------


class Cache:
    def __init__(self, layers, length):
        self.keys = [torch.zeros(2, 2, length, 4) for _ in range(layers)]
        self.values = [torch.zeros(2, 2, length, 4) for _ in range(layers)]

    def write(self, layer, position, key, value):
        self.keys[layer][:, :, position : position + 1] = key
        self.values[layer].index_copy_(2, torch.tensor([position]), value)
        return self.keys[layer], self.values[layer]


class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.before, self.after = nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.out, self.up, self.down = (nn.Linear(8, n) for n in (24, 8, 16, 8))
        self.down = nn.Linear(16, 8)

    def forward(self, x, cache, position):
        q, k, v = self.qkv(self.before(x)).view(2, 1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        k, v = cache.write(self.number, position, k, v)
        attention = F.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v
        x = x + self.out(attention.transpose(1, 2).reshape(2, 1, 8))
        return x + self.down(F.gelu(self.up(self.after(x))))


class Decoder(nn.Module):
    def __init__(self, layers=3, used=2):
        super().__init__()
        self.used = used
        self.layers = nn.ModuleList(Block(i) for i in range(layers))

    def forward(self, x, cache, position):
        for layer in self.layers[: self.used]:
            x = layer(x, cache, position)
        return x


@torch.no_grad()
def test_a_decoder_with_a_cache(caplog):
    plain = Decoder()
    fast = optimize(copy.deepcopy(plain))
    exact = copy.deepcopy(plain).double()
    caches = [Cache(3, 6) for _ in range(3)]
    for name in ("keys", "values"):
        setattr(caches[2], name, [x.double() for x in getattr(caches[2], name)])
    before = fusewright.stats()
    for position in range(4):
        x = torch.randn(2, 1, 8)
        ours, eager = fast(x, caches[0], position), plain(x, caches[1], position)
        torch.testing.assert_close(ours, eager)
        torch.testing.assert_close(ours, exact(x.double(), caches[2], position).float())
    torch.testing.assert_close(caches[0].keys, caches[1].keys)
    torch.testing.assert_close(caches[0].values, caches[1].values)
    after = fusewright.stats()
    assert after["fallback_calls"] == before["fallback_calls"]
    assert after["region_calls"] - before["region_calls"] >= 4 * 3
    assert "setitem" in caplog.text and "index_copy_" in caplog.text


def test_a_cache_that_is_trained_through():
    """The keys have gradients, and the cache holds their history."""

    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x):
            cache = torch.zeros(3, 4, 6)
            self.kept = cache  # the model hands it out, and so it is no tensor of the call's alone
            for i in range(3):
                cache[i] = torch.tanh(self.linear(x) * (i + 1))
            return F.gelu(cache.sum(0)) * 2

    check(Cached(), [torch.randn(4, 6)], layouts=["contiguous"], fused=False)
    assert fusewright.stats()["fallback_calls"] == 0


class Counter(nn.Module):
    """State that is no buffer: a count, a mean that the model moves, and a list of what it saw."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.count, self.mean = torch.zeros((), dtype=torch.int64), torch.zeros(6, dtype=torch.float64)

    def forward(self, x):
        y = torch.tanh(self.linear(x)) * 2
        self.count += 1
        self.mean.lerp_(y.detach().double().mean(0), 0.1)
        return F.gelu(y - self.mean.to(y.dtype)) * torch.sigmoid(y), self.count * 1, self.mean * 1


def test_counters_and_statistics_that_are_no_buffers():
    check_pieces(Counter(), [torch.randn(4, 6)], regions=4)
    plain = Counter()
    fast = optimize(copy.deepcopy(plain))
    for _ in range(3):
        x = torch.randn(4, 6)
        torch.testing.assert_close(fast(x), plain(x))
    assert fast.count == 3


def into_an_input(x, w):
    y = torch.tanh(x + w) * 2
    x.detach().mul_(0.5)
    return torch.sigmoid(y + x) * w


def into_a_view_of_another_piece(x, w):
    y = (x * w).tanh() * 2
    row = y[1]
    with torch.no_grad():
        y[0].mul_(2)
    row = row * 2
    y[1:] += w
    return torch.sigmoid(y) * row, y


def residual(x, w):
    y = torch.sin(x * w) * 3
    with torch.no_grad():
        (y[:, :2]).add_(1)
    z = torch.cos(y * 2) * 3
    z += y
    y += z
    return torch.sin(z * 2) + y, y[:1]


def saved_and_written(x, w):
    """A region may keep y, which is in memory anyway, to compute y * 2 again; eager keeps y * 2."""
    y = x @ (w[:, None] * w)
    z = torch.sin(y * 2)
    y.detach().zero_()
    return torch.sin(z * 2) * torch.cos(y * 3)


def written_while_detached_parts_live(x, w):
    y = torch.exp(x) * w
    mean = y.detach()
    mean.sub_(1)
    return (y * 2 + mean.tanh()).sigmoid()


def an_offset(x, w):
    y = x * w + 1
    y.data[0] = 3
    z = y.data
    z += 1
    return torch.tanh(y) * 2 + y[0]


WRITES = {
    into_a_view_of_another_piece: 3,
    residual: 3,
    saved_and_written: 2,
    written_while_detached_parts_live: 2,
    an_offset: 2,
}


@pytest.mark.parametrize("f", WRITES, ids=lambda f: f.__name__)
def test_writes_between_regions(f):
    check_pieces(f, [torch.randn(4, 6), torch.randn(6)], regions=WRITES[f])


def test_a_write_into_an_input():
    for _ in range(2):
        x, w = torch.randn(4, 6), torch.randn(6, requires_grad=True)
        other, theirs = x.clone(), w.detach().clone().requires_grad_()
        ours, eager = optimize(into_an_input)(x, w), into_an_input(other, theirs)
        torch.testing.assert_close(ours, eager)
        torch.testing.assert_close(x, other)
        ours.sum().backward()
        eager.sum().backward()
        torch.testing.assert_close(w.grad, theirs.grad)
    assert len(explain(into_an_input, x, w).regions) == 2


def test_buffers_move_in_their_piece_and_between():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = nn.BatchNorm1d(6), nn.Linear(6, 6)
            self.register_buffer("mean", torch.zeros(6))
            self.register_buffer("steps", torch.zeros(()))
            self.last = torch.zeros(4, 6)

        def forward(self, x):
            y = torch.tanh(self.norm(self.linear(x)))
            self.steps += 1
            row = self.mean[:3]
            with torch.no_grad():
                self.mean.lerp_(y.mean(0), 0.5)
            self.last.copy_(y.detach())
            self.steps += 1
            y = F.gelu(y - self.mean) * row.sum() / self.steps
            with torch.no_grad():
                self.mean.mul_(2)
            return y + self.mean

    check_pieces(Both(), [torch.randn(4, 6)], regions=5)


def test_the_order_of_writes():
    def f(x, log):
        log[0] = torch.tanh(x * 2).sum()
        log[1] = log[0] * 2
        y = torch.sigmoid(x + log[1]) * log[0]
        log[0] = y.sum()
        return y * log[0] + log[1]

    x, ours, eager = torch.randn(5), torch.zeros(2), torch.zeros(2)
    fast = optimize(f)
    for _ in range(2):
        torch.testing.assert_close(fast(x, ours), f(x, eager))
        torch.testing.assert_close(ours, eager)
    assert fusewright.stats()["fallback_calls"] == 0


def test_sizes_that_vary_cross_the_cuts():
    def f(x, cache, position):
        n = x.shape[0]
        y = torch.tanh(x * 2).reshape(n * 2, -1)
        cache[position : position + n] = y.reshape(x.shape).detach()
        z = cache[: n + 1] * 2
        return F.gelu(z).sum(0) + y.reshape(n, -1) / n

    fast = optimize(f)
    ours, eager = torch.zeros(20, 6), torch.zeros(20, 6)
    for n in (3, 5, 2, 7, 4):
        x = torch.randn(n, 6, requires_grad=True)
        other = x.detach().clone().requires_grad_()
        y, z = fast(x, ours, n), f(other, eager, n)
        torch.testing.assert_close(y, z)
        y.sum().backward()
        z.sum().backward()
        torch.testing.assert_close(x.grad, other.grad)
        torch.testing.assert_close(ours, eager)
    stats = fusewright.stats()
    assert stats["captures"] <= 3 and stats["fallback_calls"] == 0 and stats["region_calls"] >= 10


# ---- states ---------------------------------------------------------------------------------------------------------


def across_autocast(x, w):
    y = torch.tanh(x @ w) * 2
    with torch.autocast("cpu", torch.bfloat16):
        y = torch.sigmoid(y @ w) + 1
        y.detach().clamp_(max=1.5)
        y = torch.tanh(y @ w) * 2
    return torch.sigmoid(y.float() @ w) * 3


def across_no_grad(x, w):
    y = torch.tanh(x @ w) * 2
    with torch.no_grad():
        scale = torch.sigmoid(y).amax()
        y.mul_(scale)
        shift = torch.cos(y) * 2
    return torch.sigmoid(y + shift) * 3


def across_enabled(x, w):
    with torch.no_grad():
        y = torch.tanh(x @ w) * 2
        with torch.enable_grad():
            z = torch.sin(x @ w) * 2
            z.detach().neg_()
            z = torch.cos(z) * w.sum()
        y = y.exp() * z
    return torch.sigmoid(y * 2) + torch.cos(z)


@pytest.mark.parametrize("f", [across_no_grad, across_enabled], ids=lambda f: f.__name__)
def test_grad_modes_across_cuts(f):
    explanation = check_pieces(f, [torch.randn(4, 6), torch.randn(6, 6)], regions=5 if f is across_enabled else 4)
    assert any(fate.what == "fused" for fate in explanation.fates)


def test_autocast_across_cuts():
    x, w = torch.randn(4, 6), torch.randn(6, 6, requires_grad=True)
    theirs = w.detach().clone().requires_grad_()
    fast = optimize(across_autocast)
    for _ in range(2):
        ours, eager = fast(x, w), across_autocast(x, theirs)
        torch.testing.assert_close(ours, eager, rtol=2e-2, atol=2e-2)
        assert ours.dtype is eager.dtype
        ours.sum().backward()
        eager.sum().backward()
        torch.testing.assert_close(w.grad, theirs.grad, rtol=5e-2, atol=5e-2)
    assert not torch.is_autocast_enabled("cpu")
    explanation = explain(across_autocast, x, w)
    assert len(explanation.regions) >= 3 and fusewright.stats()["fallback_calls"] == 0


def attention(x, w):
    q = (torch.tanh(x @ w) * 2)[None]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        y = F.scaled_dot_product_attention(q, q, q)
        y = torch.sigmoid(y) * 2
    return torch.cos(y) * 3


def test_a_choice_of_attention():
    explanation = check_pieces(attention, [torch.randn(4, 6), torch.randn(6, 6)], regions=3, reason=reasons.STATE)
    (line,) = (f for f in explanation.fallbacks if f.reason == reasons.STATE)
    assert line.operator == "_sdpa_kernel"


def hooked(x, w):
    y = torch.tanh(x @ w) * 2
    y.register_hook(lambda g: g.clamp(-0.1, 0.1))
    return torch.sin(y) * 3


def mapped(x, w):
    y = torch.tanh(x @ w) * 2
    y = torch.func.vmap(lambda row: (row @ w).tanh())(y)
    return torch.sin(y) * 3


def frozen(x, w):
    with torch.inference_mode():
        teacher = (x @ w).tanh()
    return torch.sigmoid(x @ w) * 2 + teacher


@pytest.mark.parametrize(
    "f, regions", [(hooked, 2), (mapped, 2), (frozen, 1)], ids=lambda f: getattr(f, "__name__", "")
)
def test_states_between_regions(f, regions):
    check_pieces(f, [torch.randn(4, 6), torch.randn(6, 6)], regions, reason=reasons.STATE)


def test_a_cut_is_drawn_once():
    """Values that pass from piece to piece are no inputs of the model."""
    outline = explain(residual, torch.randn(4, 6), torch.randn(6)).outlines
    assert len(outline) == 1
    entries = outline[0].operators
    assert [entry.number for entry in entries] == list(range(len(entries)))
    assert sum(entry.kind == "input" for entry in entries) == 2
    assert all(number < entry.number for entry in entries for number in entry.reads)
    assert sum(entry.is_result for entry in entries) == 2
