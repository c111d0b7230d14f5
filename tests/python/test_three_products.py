"""bench/three_products.py: its roundings are those it names, and its products lose what they should lose."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
from three_products import DATA, METHODS, Method, split, to_bf16, to_fp16, to_tf32, towards_zero

pytestmark = pytest.mark.real_core  # bench/common.py imports the package


def all_exponents(count=20_000):
    """Normal floats of every size, and such that lie halfway between two numbers of 11 bits."""
    x = torch.ldexp(torch.rand(count) + 1, torch.randint(-120, 120, (count,))) * torch.randn(count).sign()
    halfway = (x.view(torch.int32) & ~0x1FFF | 0x1000).view(torch.float32)
    return torch.cat([x, halfway])


def test_rounding_to_tf32():
    x = all_exponents()
    mantissa, exponent = torch.frexp(x.double())
    nearest = torch.ldexp(torch.round(mantissa * 2**11), exponent - 11)  # 11 bits, ties to even
    assert torch.equal(to_tf32(x).double(), nearest)
    odd = torch.tensor([torch.inf, -torch.inf, 0.0, -0.0])
    assert torch.equal(to_tf32(odd), odd) and to_tf32(torch.tensor([torch.nan])).isnan().all()


def test_rounding_towards_zero():
    x = all_exponents().double() * (1 + torch.rand(40_000, dtype=torch.float64) / 2**23)
    y = towards_zero(x).double()
    further = torch.nextafter(y.float(), (x.sign() * torch.inf).float()).double()
    assert (y.abs() <= x.abs()).all() and (further.abs() > x.abs()).all()


@pytest.mark.parametrize(
    "round_, count, bits", [(to_bf16, 2, 16), (to_bf16, 3, 24), (to_tf32, 2, 22), (to_fp16, 2, 21)]
)
def test_parts_add_up(round_, count, bits):
    x = torch.rand(10_000) + 0.5
    total = sum(part.double() for part in split(x, round_, count))
    assert ((total - x.double()).abs() <= x.double() * 2.0**-bits).all()


def test_errors():
    """Each part more is worth its bits; products of float32 itself are as exact as PyTorch's."""
    torch.manual_seed(0)
    a, b = DATA["normal"](64)
    exact = a.double() @ b.double()
    error = {name: ((f(a, b).double() - exact).norm() / exact.norm()).item() for name, f in METHODS.items()}
    for kind, unit in (("bf16", 2.0**-8), ("tf32", 2.0**-11)):
        assert 0.1 * unit < error[f"2 {kind}: only a is split"] < error[f"1 {kind}"] < unit
    assert 2.0**-19 < error["3 bf16"] < 2.0**-16
    plain = error["float32, PyTorch on this CPU"]
    for name in ("3 tf32", "6 bf16: three parts", "3 fp16, scaled rows", "float32, one accumulator (FMA)"):
        assert error[name] < 2 * plain, name


def test_promotion():
    """Sums towards zero lose with K, unless a fresh accumulator begins now and then; K need not be a multiple."""
    torch.manual_seed(0)
    a, b = DATA["positive"](1000)
    exact = a.double() @ b.double()
    plain, promoted = (
        (Method(step=8, accumulate=towards_zero, promoted=promoted)(a, b).double() / exact - 1).mean().item()
        for promoted in (0, 64)
    )
    assert plain < 4 * promoted < 0
