"""Losses: output and gradients against eager and float64, what is written to memory, and classes that do not exist."""

import pytest
import torch
import torch.nn.functional as F
from check import check, place
from torch import nn

import fusewright

pytestmark = pytest.mark.real_core

CLASSES = 37


def logits(*shape):
    return torch.randn(shape) * 3


def target(*shape, ignored=None):
    classes = torch.randint(0, CLASSES, shape)
    return classes if ignored is None else torch.where(torch.rand(shape) < 0.3, ignored, classes)


WEIGHT = torch.rand(CLASSES) + 0.5
bce = F.binary_cross_entropy_with_logits
ROWS, IMAGES = (33, CLASSES), (3, CLASSES, 5, 4)

OF_CLASSES = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "smoothed": {"label_smoothing": 0.1},
    "smoothed_sum": {"label_smoothing": 0.1, "reduction": "sum"},
}


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("shape", [ROWS, IMAGES], ids=["rows", "images"])
@pytest.mark.parametrize("name", OF_CLASSES)
def test_cross_entropy(name, shape, weighted):
    weight = place(WEIGHT) if weighted else None

    def f(x, t):
        return F.cross_entropy(x * 1.5, t, weight.to(x.dtype) if weighted else None, **OF_CLASSES[name])

    check(f, [logits(*shape), target(shape[0], *shape[2:])], layouts=["contiguous"])


@pytest.mark.parametrize("ignored", [-100, 2, 255])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_classes_that_are_ignored(ignored, smoothing):
    f = lambda x, t: F.cross_entropy(x * 2, t, ignore_index=ignored, label_smoothing=smoothing)  # noqa: E731
    check(f, [logits(*ROWS), target(ROWS[0], ignored=ignored)], layouts=["contiguous"])


def test_ignored_and_weighted():
    weight = place(WEIGHT)
    f = lambda x, t: F.cross_entropy(x * 2, t, weight.to(x.dtype), ignore_index=3, label_smoothing=0.1)  # noqa: E731
    check(f, [logits(*ROWS), target(ROWS[0], ignored=3)], layouts=["contiguous"])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [ROWS, IMAGES, (CLASSES,)], ids=["rows", "images", "one"])
def test_nll_loss(shape, reduction):
    weight = place(WEIGHT)
    classes = target(shape[0], *shape[2:]) if len(shape) > 1 else target()
    f = lambda x, t: F.nll_loss((x * 2).sin(), t, weight.to(x.dtype), ignore_index=1, reduction=reduction)  # noqa: E731
    check(f, [logits(*shape), classes], layouts=["contiguous"])


def test_one_row():
    check(lambda x, t: F.cross_entropy(x * 2, t), [logits(CLASSES), target()], layouts=["contiguous"])


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_of_probabilities(smoothing, reduction):
    weight = place(WEIGHT)

    def f(x, t):
        p = t.softmax(1)
        return F.cross_entropy(x * 2, p, weight.to(x.dtype), reduction=reduction, label_smoothing=smoothing)

    check(f, [logits(*ROWS), logits(*ROWS)], layouts=["contiguous"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_other_types(dtype):
    f = lambda x, t: F.cross_entropy(x * 2, t, label_smoothing=0.1)  # noqa: E731
    check(f, [logits(*ROWS).to(dtype), target(ROWS[0])], layouts=["contiguous"])


def test_sizes_that_change():
    def inputs(size):
        return [logits(size, CLASSES), target(size)]

    check(lambda x, t: F.cross_entropy(x * 2, t), inputs, layouts=["contiguous"], dynamic=True)


class LanguageModel(nn.Module):
    """The end of a decoder: the class of each position is the next token."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, CLASSES)

    def forward(self, x, tokens):
        scores = self.head(self.norm(x)).float()
        return F.cross_entropy(scores[:, :-1].reshape(-1, CLASSES), tokens[:, 1:].reshape(-1))


def test_the_end_of_a_language_model():
    check(LanguageModel(), [torch.randn(4, 9, 16), target(4, 9)], layouts=["contiguous"])


def test_confident_rows_keep_their_small_loss():
    """log(sum) - logit, with the maximum left in both, would be 0."""
    x = torch.zeros(4, CLASSES)
    x[:, 3] = 1000.0
    x[:, 5] = 990.0
    t = torch.full((4,), 3)
    f = lambda x, t: F.cross_entropy(x * 1.0, t)  # noqa: E731
    expected = F.cross_entropy(x.double(), t)
    assert expected > 0
    torch.testing.assert_close(fusewright.optimize(f, strict=True)(x, t).double(), expected, rtol=2e-3, atol=0)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_special_logits(value):
    """In other classes than the right one, in it, and in a row that is ignored."""
    x = logits(6, CLASSES)
    x[0, 1] = x[1, 2] = x[2, 5] = value
    x[3] = value
    t = torch.tensor([1, 3, -100, 4, 5, -100])
    f = lambda x, t: F.cross_entropy(x * 1.0, t, reduction="none")  # noqa: E731
    torch.testing.assert_close(fusewright.optimize(f, strict=True)(x, t), f(x, t), equal_nan=True)


def test_no_row_counts():
    x, t = logits(5, CLASSES), torch.full((5,), -100)
    f = lambda x, t: F.cross_entropy(x * 2, t)  # noqa: E731
    assert fusewright.optimize(f, strict=True)(x, t).isnan() and f(x, t).isnan()


def test_logits_are_read_and_nothing_of_their_size_is_written():
    """In the forward; the backward writes the gradient alone."""
    x, t = logits(64, 512).requires_grad_(), torch.randint(0, 512, (64,))
    report = fusewright.explain(lambda x, t: F.cross_entropy(x, t), x, t)
    assert not report.fallbacks
    written = {
        phase: sum(k.bytes_written for k in report.kernels if k.phase == phase) for phase in ("forward", "backward")
    }
    size = x.numel() * x.element_size()
    assert written["forward"] < size / 8
    assert size <= written["backward"] < size * 1.125
    assert sum(k.bytes_read for k in report.kernels if k.phase == "backward") < size * 1.125


@pytest.mark.parametrize("missing", [CLASSES, -1, 10**12])
@pytest.mark.parametrize("through_a_view", [False, True], ids=["input", "view"])
def test_a_class_that_does_not_exist_raises_eagers_exception(missing, through_a_view):
    def f(x, t):
        return F.cross_entropy(x * 2, t.reshape(-1) if through_a_view else t)

    optimized = fusewright.optimize(f)
    x, t = logits(6, CLASSES), target(6)
    torch.testing.assert_close(optimized(x, t), f(x, t))
    t = t.clone()
    t[4] = missing
    with pytest.raises(IndexError, match="out of bounds"):
        optimized(x, t)
    t[4] = 1
    before = fusewright.stats()
    torch.testing.assert_close(optimized(x, t), f(x, t))
    assert fusewright.stats()["region_calls"] == before["region_calls"] + 1  # fused again


def test_a_computed_class_that_does_not_exist_is_no_number():
    """Nobody looks at it before the kernel: the loss and its gradient are NaN."""
    f = lambda x, t: F.cross_entropy(x * 2, (t.float() * 2).long(), reduction="none")  # noqa: E731
    x, t = logits(3, CLASSES).requires_grad_(), torch.tensor([1, CLASSES, 2])
    result = fusewright.optimize(f, strict=True)(x, t)
    assert result.isnan().tolist() == [False, True, False]
    result.sum().backward()
    assert x.grad.isnan().tolist() == [[row == 1] * CLASSES for row in range(3)]


def test_second_derivatives():
    x, t = logits(5, 7).double().requires_grad_(), torch.randint(0, 7, (5,))
    f = fusewright.optimize(lambda x, t: F.cross_entropy(x.tanh() * 2, t, label_smoothing=0.1), strict=True)
    assert torch.autograd.gradgradcheck(lambda x: f(x, t), [x])


# ---- losses of elements -------------------------------------------------------------------------------------------

OF_ELEMENTS = {
    "smooth_l1": lambda x, t: F.smooth_l1_loss(x * 2, t),
    "smooth_l1_beta": lambda x, t: F.smooth_l1_loss(x * 2, t, beta=0.3, reduction="sum"),
    "smooth_l1_no_beta": lambda x, t: F.smooth_l1_loss(x * 2, t, beta=0.0, reduction="none"),
    "huber": lambda x, t: F.huber_loss(x * 2, t, delta=0.7),
    "huber_none": lambda x, t: F.huber_loss(x * 2, t, reduction="none"),
    "bce_with_logits": lambda x, t: bce(x * 5, t.sigmoid()),
    "bce_weighted": lambda x, t: bce(x * 2, t.sigmoid(), t[0].exp().detach(), reduction="sum"),
    "bce_positive": lambda x, t: bce(x * 2, t.sigmoid(), pos_weight=t[0].exp().detach()),
    "bce_none": lambda x, t: bce(x * 2, t.sigmoid(), reduction="none"),
    "kl_div": lambda x, t: F.kl_div((x * 2).log_softmax(1), t.softmax(1), reduction="batchmean"),
    "kl_div_of_logs": lambda x, t: F.kl_div((x * 2).log_softmax(1), t.log_softmax(1), reduction="sum", log_target=True),
    "kl_div_none": lambda x, t: F.kl_div((x * 2).log_softmax(1), t.softmax(1), reduction="none"),
}


@pytest.mark.parametrize("name", OF_ELEMENTS)
def test_losses_of_elements(name):
    check(OF_ELEMENTS[name], [torch.randn(9, 33), torch.randn(9, 33)], layouts=["contiguous", "transposed"])


def test_bce_where_the_logit_is_0_or_large():
    """Eager's own difference of logit and logarithm is less exact there."""
    x = torch.tensor([0.0, -0.0, 30.0, -30.0, 200.0, -200.0]).repeat_interleave(2).requires_grad_()
    t = torch.tensor([0.0, 1.0]).repeat(6)
    f = lambda x, t: bce(x * 1.0, t, reduction="none")  # noqa: E731
    result, exact = fusewright.optimize(f, strict=True)(x, t), x.detach().double()
    loss = (exact.relu() - exact * t) + torch.log1p(torch.exp(-exact.abs()))
    torch.testing.assert_close(result.double(), loss, rtol=1e-6, atol=1e-30)
    slope = torch.where(t == 1, -torch.sigmoid(-exact), torch.sigmoid(exact))
    torch.testing.assert_close(torch.autograd.grad(result.sum(), x)[0].double(), slope, rtol=1e-6, atol=1e-30)


def test_kl_div_of_a_probability_of_0():
    x, t = torch.randn(4, 5).log_softmax(1).requires_grad_(), torch.eye(4, 5)
    f = lambda x, t: F.kl_div(x * 1.0, t, reduction="sum")  # noqa: E731
    result = fusewright.optimize(f, strict=True)(x, t)
    torch.testing.assert_close(result, f(x, t))
    result.backward()
    torch.testing.assert_close(x.grad, -t)
