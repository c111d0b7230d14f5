"""certify: what is right passes, a planted fault fails, and the certificate says what was asked."""

import hashlib
import json
import random
import threading

import pytest
import torch
from test_cli import MODEL, fusewright
from torch import nn

from fusewright import InputError, certify, optimize
from fusewright.judge import oracle
from fusewright.judge.certify import LAYOUTS, SPECIALS, _with_special
from fusewright.judge.oracle import judge

pytestmark = pytest.mark.real_core

QUICK = {"seeds": 1, "dtypes": (), "batches": (0, 1, 33), "layouts": ("strided", "misaligned"), "specials": ("nan",)}


class Swish(torch.autograd.Function):
    """A hand-written one, with a switch for each fault."""

    @staticmethod
    def forward(ctx, x, fault):
        ctx.save_for_backward(x)
        ctx.fault = fault
        if fault == "NaN swallowed":
            x = torch.nan_to_num(x, nan=0.0)
        if fault == "raises for a batch of one" and len(x) == 1:
            raise RuntimeError("invalid launch")
        if fault == "contiguous only":
            return (x.as_strided(x.shape, torch.empty(x.shape).stride()) * torch.sigmoid(x)).contiguous()
        y = x * torch.sigmoid(x)
        if fault == "one element":
            y[-1:, -1:] += 1e-3
        return y.double() if fault == "another dtype" else y

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        d = gradient * (s + x * s * (1 - s))
        return (d * 1.001 if ctx.fault == "gradient off by 1e-3" else d).to(x.dtype), None


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return nn.functional.silu(self.norm(x)) * self.weight


class ByHand(Model):
    fault = ""

    def forward(self, x):
        if self.fault == "statistics stand still" and self.training:
            x = nn.functional.batch_norm(x, None, None, self.norm.weight, self.norm.bias, True)
            self.norm.num_batches_tracked += 1
        else:
            x = self.norm(x)
        y = Swish.apply(x, self.fault)
        return y if self.fault == "weight forgotten" else y * self.weight.to(y.dtype)


def by_hand(fault):
    model = ByHand()
    model.fault = fault
    return model


FAULTS = {
    "one element": ("inference, float32, seed 0", "output"),
    "gradient off by 1e-3": ("train, float32, seed 0", "d input 0"),
    "NaN swallowed": ("eval, float32, nan", "NaN or infinity"),
    "statistics stand still": ("train, float32, seed 0", "norm.running_mean"),
    "weight forgotten": ("train, float32, seed 0", "d weight"),
    "another dtype": ("train, float32, seed 0", "torch.float64"),
    "raises for a batch of one": ("eval, float32, dimension 0 of 1", "RuntimeError: invalid launch"),
}


def test_a_right_model_by_hand():
    certificate = certify(by_hand(""), Model(), torch.randn(5, 6), **QUICK)
    assert certificate.ok, certificate
    assert str(certificate).endswith(f"right: {len(certificate.cases)} of {len(certificate.cases)} cases")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault(fault):
    certificate = certify(by_hand(fault), Model(), torch.randn(5, 6), **QUICK)
    case, what = FAULTS[fault]
    wrong = sum(not case.ok for case in certificate.cases)
    assert not certificate.ok and str(certificate).endswith(f"WRONG: {wrong} of {len(certificate.cases)} cases")
    assert any(case in problem and what in problem for problem in certificate.problems), certificate
    assert json.loads(certificate.to_json())["verdict"] == "wrong"


def test_a_fault_that_only_a_layout_shows():
    def wrong(x):
        return Swish.apply(x, "contiguous only")

    certificate = certify(wrong, nn.functional.silu, torch.randn(5, 6), **QUICK)
    assert {problem.split(",")[2] for problem in certificate.problems} == {" strided"}, certificate


class CubingRsqrt(torch.autograd.Function):
    """Its derivative holds the cube of the result, which is no normal float where the spread is large."""

    @staticmethod
    def forward(ctx, x):
        y = x.rsqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * (y * y * y * -0.5)


class Normed(nn.Module):
    def __init__(self, inverse_root):
        super().__init__()
        self.linear, self.inverse_root = nn.Linear(6, 4), inverse_root

    def forward(self, x):
        y = self.linear(x)
        away = y - y.mean(0)
        return away * self.inverse_root((away * away).mean(0) + 1e-5)


def test_a_fault_that_only_huge_numbers_show():
    options = QUICK | {"batches": (), "layouts": (), "specials": SPECIALS}
    by_hand, reference = Normed(CubingRsqrt.apply), Normed(lambda x: 1 / x.sqrt())
    certificate = certify(by_hand, reference, torch.randn(8, 6), **options)
    assert {case.question.special for case in certificate.cases if not case.ok} == {"huge"}, certificate


def test_where_all_is_rounding():
    """Ten times as much noise as eager has is no fault, a hundred times as much is one."""

    def noise(x):
        return x * 0.3 - (x * 0.1 + x * 0.2)

    options = QUICK | {"modes": ["inference"], "batches": (), "layouts": (), "specials": ["huge"]}
    certificate = certify(lambda x: noise(x) * 5, noise, torch.randn(5, 6), **options)
    assert certificate.ok and "all rounding in eager; ours 5.0 times it" in certificate.notes[0], certificate
    certificate = certify(lambda x: noise(x) * 100, noise, torch.randn(5, 6), **options)
    assert not certificate.ok and [problem.split(":")[0] for problem in certificate.problems] == [
        "inference, float32, huge, seed 1"
    ]


def test_where_eager_and_float64_differ_in_kind():
    """As eager has it, or as float64 has it; a finite number, or another infinity, is neither."""
    nan, inf = float("nan"), float("inf")
    eager, exact = torch.tensor([nan, nan, inf, 1.0]), torch.tensor([inf, nan, inf, 1.0], dtype=torch.float64)
    for found, right in [
        ([nan, nan, inf, 1.0], True),
        ([inf, nan, inf, 1.0], True),
        ([-inf, nan, inf, 1.0], False),
        ([0.0, nan, inf, 1.0], False),
        ([inf, inf, inf, 1.0], False),
        ([inf, nan, 3e38, 1.0], False),
        ([inf, nan, inf, inf], False),
    ]:
        assert judge("x", torch.tensor(found), eager, exact).ok is right, found


def test_an_optimised_model():
    """Everything that is asked by default but the 16-bit types, whose kernels take long to compile."""
    model = nn.Sequential(nn.Linear(7, 12), nn.BatchNorm1d(12), nn.SiLU())
    certificate = certify(model, torch.randn(6, 7), dtypes=[])
    assert certificate.ok, certificate
    result = json.loads(certificate.to_json())
    assert result["verdict"] == "right" and result["versions"]["torch"] == torch.__version__
    asked = result["cases"]
    assert all(case["fused_calls"] and not case["fallback_calls"] for case in asked if case["inputs"][9:11] != "0,")
    assert {case["mode"] for case in asked} == {"train", "eval", "inference"}
    assert {case["layout"] for case in asked} == {"contiguous", *LAYOUTS} - {"channels_last"}
    names = {value["name"] for value in asked[0]["results"]}
    assert names == {
        "output", "d input 0", "d 0.weight", "d 0.bias", "d 1.weight", "d 1.bias", "1.running_mean", "1.running_var",
        "1.num_batches_tracked",
    }  # fmt: skip
    refused = {row["case"]: row["reason"] for row in result["refused"]}
    assert "Expected more than 1 value" in refused["train, float32, dimension 0 of 1, seed 3"]
    assert "cannot be multiplied" in refused["train, float32, dimension 1 of 8, seed 3"]
    assert any(case["size"] == [0, 1] and case["mode"] == "eval" for case in asked)
    # The effect of shift_cancels_in_norm is allowed, and noted.
    assert any("0.bias is exactly 0" in note for note in result["notes"])


def test_an_optimised_model_and_its_reference():
    """It is the optimised one that is judged, not a plain copy of it."""
    model = nn.Sequential(nn.Linear(7, 12), nn.Tanh())
    options = {"seeds": 1, "modes": ["inference"], "dtypes": [torch.bfloat16], "batches": [], "specials": []}
    certificate = certify(optimize(model), nn.Sequential(nn.Linear(7, 12), nn.Tanh()), torch.randn(6, 7), **options)
    assert certificate.ok and all(case.fused_calls for case in certificate.cases)
    assert "bfloat16" in str(certificate.cases[-1].question)


def test_nothing_moves():
    model = Model()
    model.norm.requires_grad_(False)
    x = torch.randn(5, 6, requires_grad=True)
    model(x).sum().backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients, states = (x.grad, model.weight.grad), (torch.random.get_rng_state(), random.getstate())
    certify(by_hand(""), model.eval(), x, **QUICK)
    assert not model.training and all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert (x.grad, model.weight.grad) == gradients and model.norm.weight.grad is None
    assert torch.equal(torch.random.get_rng_state(), states[0]) and random.getstate() == states[1]


def test_integers_stay_what_they_are():
    """Indices are drawn from those given, so that they are in range; special values are for floating point."""
    model = nn.Embedding(9, 4)
    certificate = certify(model, nn.Embedding(9, 4), torch.tensor([[1, 8], [0, 3], [7, 7]]), **QUICK)
    assert certificate.ok and any(reason == "no input is floating-point" for _, reason in certificate.refused)


def test_random_models():
    """The same seed gives the same mask; a mask that float64 does not share cannot be judged, and is no pass."""
    dropout = nn.Dropout(0.5)
    x = torch.randn(40, 6)
    options = {**QUICK, "batches": (), "specials": (), "modes": ("train", "eval")}
    assert certify(dropout, nn.Dropout(0.5), x, **options).ok

    class ByDtype(nn.Module):
        def forward(self, x):
            return torch.rand(3, *x.shape)[0 if x.dtype is torch.float64 else 1].to(x) * x if self.training else x

    certificate = certify(ByDtype(), ByDtype(), x, **options)
    assert certificate.ok and {case.question.mode for case in certificate.cases} == {"eval"}
    assert any("draws random numbers" in reason for _, reason in certificate.refused)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ((nn.Linear(3, 4),), "no inputs"),
        ((nn.Linear(3, 4), nn.Linear(3, 5), torch.randn(2, 3)), "different states: weight"),
        ((nn.Linear(3, 4), nn.Linear(3, 4), torch.randn(2, 5)), "refuses the inputs"),
        ((lambda x: None, lambda x: None, 3), "nothing to compare"),
    ],
)
def test_what_cannot_be_certified(arguments, expected):
    with pytest.raises(InputError, match=expected):
        certify(*arguments)


def test_what_is_not_asked_is_said():
    with pytest.raises(ValueError, match="no 'diagonal'; there are channels_last"):
        certify(nn.Tanh(), torch.randn(2), layouts=["diagonal"])
    options = {"seeds": 1, "modes": ["inference"], "dtypes": [], "layouts": [], "specials": [], "batches": [1, 33]}
    certificate = certify(nn.Tanh(), nn.Tanh(), torch.randn(1).expand(2, 1 << 20), **options)
    assert certificate.ok and any("dimension 0 of 33" in note for note in certificate.notes)


def test_a_model_that_cannot_be_copied():
    model = nn.Linear(3, 4)
    model.lock = threading.Lock()
    with pytest.raises(InputError, match="cannot be copied: TypeError"):
        certify(model, torch.randn(2, 3))


def test_the_command(capsys, tmp_path):
    """Two files: the fault is found, the certificate is written all the same, and names what it is about."""
    reference, right, wrong = (tmp_path / f"{name}.py" for name in ("model", "right", "wrong"))
    reference.write_text(MODEL)
    by_hand = MODEL[: MODEL.index("def get_inputs")].replace("class Model", "class ModelNew")
    right.write_text(by_hand)
    wrong.write_text(by_hand.replace("* 2", "* 2.001"))
    for path, status in ((right, 0), (wrong, 1)):
        output = tmp_path / "certificate.json"
        options = ["--class", "ModelNew", "--reference", str(reference), "--seeds", "1", "-o", str(output)]
        found, out, err = fusewright(capsys, "certify", str(path), *options)
        assert found == status and out.endswith("cases\n"), err
        assert f"{path.stem}.ModelNew: train, float32, seed 0" in err.splitlines()
        certificate = json.loads(output.read_text())
        assert certificate["verdict"] == ("wrong" if status else "right")
        assert certificate["sha256"][path.name] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert certificate["sha256"][reference.name] == hashlib.sha256(reference.read_bytes()).hexdigest()
        assert {case["dtype"] for case in certificate["cases"]} == {"float32", "bfloat16", "float16"}


def test_default_device_of_the_user():
    """Numbers are drawn by a generator of the processor, whatever device new tensors go to."""
    with torch.device("meta"):
        moved = _with_special(torch.ones(33, device="cpu"), "nan", torch.Generator("cpu").manual_seed(0))
    assert moved.isnan().sum() == 1


def test_biases_apart():
    """The same numbers as eager's operators one after the other, gradients included."""
    layers = [
        (nn.Linear(7, 5), torch.randn(3, 7), lambda m, x: torch.mm(x, m.weight.t()) + m.bias),
        (
            nn.Conv2d(2, 3, 3, padding=1),
            torch.randn(2, 2, 5, 6),
            lambda m, x: nn.functional.conv2d(x, m.weight, padding=1) + m.bias.view(3, 1, 1),
        ),
        (
            nn.ConvTranspose3d(2, 3, 2),
            torch.randn(1, 2, 3, 3, 3),
            lambda m, x: nn.functional.conv_transpose3d(x, m.weight) + m.bias.view(3, 1, 1, 1),
        ),
    ]
    for model, x, apart in layers:
        with oracle.BiasesApart() as mode:
            found = model(x)
            gradients = torch.autograd.grad(found.sum(), model.parameters())
        assert mode.met and torch.equal(found, apart(model, x))
        assert all(map(torch.equal, gradients, torch.autograd.grad(apart(model, x).sum(), model.parameters())))
        model.bias = None
        with oracle.BiasesApart() as mode:
            model(x)
        assert not mode.met


class Coarse(nn.Linear):
    """Its product is a little off, as another algorithm's would be."""

    off = 2**-16

    def forward(self, x):
        return nn.functional.linear(x, self.weight) * (1 + self.off) + self.bias


def test_a_library_that_multiplies_otherwise(monkeypatch):
    """As exact as eager is where eager, too, gets the product from that algorithm; no more is forgiven."""

    class CoarseApart(oracle.BiasesApart):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.addmm.default:
                self.met = True
                return torch.mm(*args[1:]) * (1 + Coarse.off) + args[0]
            return super().__torch_dispatch__(func, types, args, kwargs)

    question = {"seeds": 1, "modes": ("inference",), "dtypes": (), "batches": (), "layouts": (), "specials": ()}
    ask = lambda: certify(Coarse(64, 32), nn.Linear(64, 32), 9 * torch.randn(5, 64), **question)
    assert not ask().ok
    with monkeypatch.context() as patch:
        patch.setattr(oracle, "BiasesApart", CoarseApart)
        assert ask().ok, ask()
        patch.setattr(Coarse, "forward", lambda self, x: 1.0001 * nn.Linear.forward(self, x))
        assert not ask().ok
