"""CUDA kernels without a GPU: regions of CPU tensors are compiled for a GPU, and the emulator runs their very text.

The operator table and the four models at small sizes meet the same oracle as everywhere. FUSEWRIGHT_TEST_EMULATE=1 does
the same to any other test file: `FUSEWRIGHT_TEST_EMULATE=1 pytest tests/python/test_layouts.py`.
"""

import os

import pytest
import showcase
import torch
from check import check
from test_operators import ENTRIES, UNARY, anything, in_dtype, positive

import fusewright
from fusewright import _core, stats

pytestmark = pytest.mark.real_core


@pytest.fixture(autouse=True)
def emulated(emulator):
    """Switched on for these tests alone."""
    _core.emulate_cuda(True)
    yield
    _core.emulate_cuda(os.environ.get("FUSEWRIGHT_TEST_EMULATE") == "1")


def test_kernels_are_cuda():
    explanation = fusewright.explain(lambda x: torch.tanh(x * 2), torch.randn(33, 31))
    assert explanation.kernels and all("__global__" in kernel.text for kernel in explanation.kernels)


@pytest.mark.parametrize("name", [name for name in ENTRIES if name not in UNARY])
def test_operation(name):
    fn, inputs = ENTRIES[name]
    check(fn, inputs(), layouts=["contiguous"], dynamic=True if name == "scalar_input" else None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("inputs", [positive, anything], ids=lambda f: f.__name__)
def test_unary(inputs, dtype):
    """All of them in one region: the emulator's compiler is called once."""
    group = {name: fn for name, (fn, made) in UNARY.items() if made is inputs}

    def f(x):
        x = torch.neg(-x)
        return [fn(x) for fn in group.values()]

    check(f, in_dtype(inputs(), dtype), layouts=["contiguous"])


@pytest.mark.parametrize("name", showcase.NAMES)
def test_model(name):
    check(showcase.make(name), [showcase.inputs(name)], layouts=["contiguous"])
    before = stats()["kernels_compiled"]
    check(showcase.make(name), lambda size: [showcase.inputs(name, size)], sizes=[2, 3], layouts=[])
    assert stats()["kernels_compiled"] == before, "another size compiled a kernel"


@pytest.mark.parametrize("name", [showcase.CONV, showcase.CONV_TRANSPOSE])
def test_channels_last(name):
    check(showcase.make(name), [showcase.inputs(name)], layouts=["channels_last"])


@pytest.mark.parametrize("layout", ["transposed", "strided", "offset", "expanded"])
def test_layouts(layout):
    x, y = torch.randn(31, 33), torch.rand(31, 33) + 0.5
    check(lambda x, y: torch.sigmoid(x * y) + x, [x, y], layouts=[layout])
    check(lambda x, y: (x * y).softmax(-1) * y, [x, y], layouts=[layout])
    check(lambda x, y: (x * y - (x * y).mean(0)).tanh(), [x, y], layouts=[layout])


def test_sizes_around_a_warp_and_a_block():
    check(lambda x: (x * 2).softmax(1), lambda n: [torch.randn(3, n)], sizes=(1, 31, 32, 33, 1023, 1025), layouts=[])
    check(lambda x: (x * 2).sum(0), lambda n: [torch.randn(n, 3)], sizes=(1, 31, 32, 33, 1023, 1025), layouts=[])
    check(lambda x: x * 2 + 1, lambda n: [torch.randn(n, 1)], sizes=(2, 31, 32, 33, 1023, 1025), layouts=[])


def test_empty():
    for shape in ((0,), (0, 5), (5, 0)):
        check(lambda x: torch.tanh(x * 2), [torch.randn(shape)], layouts=["contiguous"], fused=False)
