"""CUDA kernels without a GPU: regions of CPU tensors are compiled for a GPU, and the emulator runs their very text.

The operator table and the four models at small sizes meet the same oracle as everywhere. FUSEWRIGHT_TEST_EMULATE=1 does
the same to any other test file: `FUSEWRIGHT_TEST_EMULATE=1 pytest tests/python/test_layouts.py`.
"""

import copy
import os
import subprocess
import sys

import pytest
import showcase
import test_one_number
import torch
from check import all_at_once, check
from convolutions import check_convolution
from test_numerics import test_variance_that_overflows  # noqa: F401
from test_operators import ENTRIES, UNARY, anything, in_dtype, positive

import fusewright
from fusewright import stats

pytestmark = [pytest.mark.real_core, pytest.mark.usefixtures("emulated")]


def test_kernels_are_cuda():
    explanation = fusewright.explain(lambda x: torch.tanh(x * 2), torch.randn(33, 31))
    assert explanation.kernels and all("__global__" in kernel.text for kernel in explanation.kernels)


def test_who_computes_a_product_is_explained():
    """Products of float32 have two variants on a GPU, all others one."""
    for dtype, schedule in ((torch.float32, "matrix_product"), (torch.float64, "library")):
        x, y = torch.randn(4, 5, dtype=dtype), torch.randn(5, 6, dtype=dtype)
        explanation = fusewright.explain(lambda x, y: torch.tanh(x @ y), x, y)
        assert [call.schedule for call in explanation.library] == [schedule]
        assert ("fw_matmul" in str(explanation)) == (schedule == "matrix_product")


@pytest.mark.parametrize("seed", range(12))
def test_convolutions_by_our_kernels(seed, monkeypatch):
    monkeypatch.setenv("FUSEWRIGHT_CONVOLUTION", "own")
    check_convolution(seed, "cpu", {1: 60, 2: 14, 3: 10}, (1, 2, 3), (1, 3, 8, 13, 20))


def test_what_rows_share_where_there_are_none():
    """A root that two kernels need: the one without rows never runs."""
    fn = fusewright.optimize(lambda x, a, z: ((x + torch.sqrt(a)).sum(1), z * torch.sqrt(a)))
    x, a, z = torch.randn(0, 128), torch.tensor([2.0]), torch.randn(5)
    sums, roots = fn(x, a, z)
    assert sums.shape == (0,)
    torch.testing.assert_close(roots, z * torch.sqrt(a))


def test_a_product_of_an_empty_batch():
    fn = fusewright.optimize(lambda a, b, c: torch.tanh(torch.bmm(a, b).sum(0) + c))
    a, b, c = torch.randn(0, 5, 6), torch.randn(0, 6, 7), torch.randn(5, 7)
    torch.testing.assert_close(fn(a, b, c), torch.tanh(c))


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="newer versions of torch have it")
def test_a_product_where_the_newer_setting_allows_tf32():
    """PyTorch's older question raises an error then."""
    script = """
import torch, fusewright
fusewright._core.emulate_cuda(True)
torch.backends.cuda.matmul.fp32_precision = "tf32"
x, y = torch.randn(4, 5), torch.randn(5, 6)
got = fusewright.optimize(lambda x, y: torch.tanh(x @ y), strict=True)(x, y)
torch.testing.assert_close(got, torch.tanh(x @ y))
assert fusewright.stats()["regions"]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [name for name in ENTRIES if name not in UNARY])
def test_operation(name):
    fn, inputs = ENTRIES[name]
    check(fn, inputs(), layouts=["contiguous"], dynamic=True if name == "scalar_input" else None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("inputs", [positive, anything], ids=lambda f: f.__name__)
def test_unary(inputs, dtype):
    """All of them in one region: the emulator's compiler is called once."""
    group = {name: fn for name, (fn, made) in UNARY.items() if made is inputs}
    check(all_at_once(group), in_dtype(inputs(), dtype), layouts=["contiguous"])


@pytest.mark.parametrize("name", showcase.NAMES)
def test_model(name):
    check(showcase.make(name), [showcase.inputs(name)], layouts=["contiguous"])
    model = fusewright.optimize(showcase.make(name))
    compiled = []
    for size in (1, 2, 5):  # a batch of 1 is captured anew
        model(showcase.inputs(name, size).requires_grad_()).sum().backward()
        compiled.append(stats()["kernels_compiled"])
    assert compiled[1:] == compiled[:-1], "another size compiled a kernel"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_maximum_is_one_of_its_elements(dtype):
    test_one_number.test_a_maximum_is_one_of_its_elements("x * 1.5", dtype)


POOLED = [
    ("avg_pool1d", "max of the last"),
    ("max_pool2d", "max of all that is flattened"),
    ("avg_pool3d", "min of what is flattened in part"),
]


@pytest.mark.parametrize(("pool", "over"), POOLED)
def test_an_extremum_of_what_was_pooled(pool, over):
    test_one_number.test_an_extremum_of_what_was_pooled(pool, over)


@pytest.mark.parametrize("name", [showcase.CONV, showcase.CONV_TRANSPOSE])
def test_channels_last(name):
    check(showcase.make(name), [showcase.inputs(name)], layouts=["channels_last"])


def last(x):
    return x.contiguous(memory_format=torch.channels_last)


@pytest.fixture
def races():
    """Every barrier of a tile is needed, and is there."""
    os.environ["FUSEWRIGHT_EMULATOR_RACES"] = "1"
    yield
    del os.environ["FUSEWRIGHT_EMULATOR_RACES"]


# Whole vectors both ways, tails in both axes, few and many channels, more than one tile; vectors along one of the two
# axes alone, and weights, whose taps are fewer than a tile is long.
IMAGES = [(2, 8, 16, 16), (3, 5, 7, 9), (2, 130, 3, 5), (1, 64, 9, 16), (2, 4, 40, 30)]
IMAGES += [(2, 72, 11, 13), (2, 67, 12, 12), (5, 144, 3, 3), (3, 27, 16, 24)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", IMAGES, ids=str)
def test_mixed_layouts(shape, dtype, races):
    """Operands in either order, read or written, one or several, with what does not move along the line."""
    x, y, m = torch.randn(shape).to(dtype), last(torch.randn(shape).to(dtype)), torch.randn(shape[1], 1, 1).to(dtype)
    for fn in (
        lambda x, y, m: torch.sigmoid(x * m) + y,
        lambda x, y, m: (x + y * m, x * 2, y.exp(), (x > y), m.exp()),
    ):
        check(fn, [x, y, m], layouts=["contiguous"], grad=False)
        check(fn, [y, x, m], layouts=["contiguous"], grad=False)


def test_mixed_element_types(races):
    """Vectors are as long as the widest allows, so the narrow operands of a tile have less than 16 bytes."""
    shape = (2, 12, 8, 6)
    x, y = torch.randn(shape), last(torch.randn(shape)).half()
    mask, wide = last(torch.rand(shape) > 0.5), last(torch.randn(shape).double())
    check(lambda x, y, mask: torch.where(mask, x, 0.0) + y.float(), [x, y, mask], layouts=["contiguous"], grad=False)
    check(lambda x, y, wide: (wide * x.double(), y * 2), [x, y, wide], layouts=["contiguous"], grad=False)


def test_tiles_are_compiled_on_demand():
    """Where the graph knows of no other order (a gradient may arrive in any): only for tensors that are worth it."""
    ours = fusewright.optimize(lambda x: torch.sigmoid(x) * 2, strict=True)
    found = []
    for rows, columns, turned in (
        (32, 48, False),
        (32, 48, True),
        (256, 256, False),
        (256, 256, True),
        (260, 256, True),
    ):
        x = torch.randn(rows, columns, requires_grad=True)
        gradient = torch.randn(columns, rows).t() if turned else torch.randn(rows, columns)
        ours(x).backward(gradient)
        s = torch.sigmoid(x.detach())
        torch.testing.assert_close(x.grad, 2 * gradient * s * (1 - s))
        found.append(programs())
    # The first of another size is a capture of its own.
    assert found[1] == found[0] and found[3] == found[2] + 1 and found[4] == found[3]


def programs():
    counts = stats()
    return counts["kernels_compiled"] + counts["cache_hits"] + counts["memory_hits"]


class Convolutions(torch.nn.Module):
    """Convolutions that tensor cores run, and what stands around them."""

    def __init__(self, norm):
        super().__init__()
        self.first = torch.nn.Conv2d(16, 32, 3, padding=1)
        self.norm = norm
        self.second = torch.nn.Conv2d(32, 16, 1)

    def forward(self, x):
        y = torch.nn.functional.silu(self.norm(self.first(torch.relu(x))))
        return y, torch.sigmoid(self.second(y)) * x, torch.nn.functional.max_pool2d(y, 2)


@pytest.mark.parametrize(
    "norm", [torch.nn.Identity, lambda: torch.nn.BatchNorm2d(32), lambda: torch.nn.GroupNorm(4, 32)]
)
def test_convolutions_in_channels_last(norm):
    model = Convolutions(norm())
    check(model, [torch.randn(3, 16, 8, 6)], layouts=["contiguous", "channels_last"])
    check(model, [torch.randn(2, 16, 9, 7)], layouts=["contiguous"])


class PixelNorm(torch.nn.Module):
    """LayerNorm over the channels, as ConvNeXt has it."""

    def __init__(self, channels):
        super().__init__()
        self.norm = torch.nn.LayerNorm(channels)

    def forward(self, x):
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


AROUND_CHANNELS_LAST = {
    "transposed, softmax": (torch.nn.ConvTranspose2d(16, 32, 4, 2, 1), lambda y: torch.softmax(y * 0.3, 1)),
    "transposed, mean": (torch.nn.ConvTranspose2d(16, 20, 3, 2), lambda y: torch.sigmoid(y).mean((2, 3), keepdim=True)),
    "minimum over channels": (torch.nn.Conv2d(16, 32, 3), lambda y: torch.tanh(torch.amin(y, 1, keepdim=True))),
    "sum over height": (torch.nn.Conv2d(16, 32, 3), lambda y: torch.tanh(y).sum(2)),
    "group norm": (torch.nn.Conv2d(16, 64, 3), torch.nn.Sequential(torch.nn.GroupNorm(2, 64), torch.nn.SiLU())),
    "group norm, convolution": (
        torch.nn.Conv2d(16, 64, 3),
        torch.nn.Sequential(torch.nn.GroupNorm(8, 64), torch.nn.SiLU(), torch.nn.Conv2d(64, 32, 3)),
    ),
    "layer norm, convolution": (
        torch.nn.Conv2d(16, 32, 3), torch.nn.Sequential(PixelNorm(32), torch.nn.GELU(), torch.nn.Conv2d(32, 16, 1))
    ),
    "depthwise, group norm, depthwise": (
        torch.nn.Conv2d(64, 64, 3, groups=64),
        torch.nn.Sequential(torch.nn.GroupNorm(4, 64), torch.nn.SiLU(), torch.nn.Conv2d(64, 64, 5, groups=64)),
    ),
    "batch norm, pooling": (
        torch.nn.Conv2d(16, 32, 3),
        torch.nn.Sequential(torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
    ),
    "3-d, logsumexp": (
        torch.nn.ConvTranspose3d(16, 32, 3, 2), lambda y: torch.nn.functional.hardswish(y.logsumexp(1, keepdim=True))
    ),
    "3-d, group norm": (
        torch.nn.ConvTranspose3d(32, 32, 3, 2),
        torch.nn.Sequential(torch.nn.SiLU(), torch.nn.GroupNorm(2, 32), torch.nn.Hardswish()),
    ),
    "3-d, batch norm, pooling": (
        torch.nn.Conv3d(32, 32, 3), torch.nn.Sequential(torch.nn.BatchNorm3d(32), torch.nn.AvgPool3d(2))
    ),
}  # fmt: skip


class Around(torch.nn.Module):
    def __init__(self, convolution, rest):
        super().__init__()
        self.convolution, self.rest = convolution, rest

    def forward(self, x):
        return self.rest(self.convolution(torch.relu(x)))


@pytest.mark.parametrize("name", AROUND_CHANNELS_LAST)
def test_what_stands_around_convolutions_takes_channels_last(name):
    """Images large enough that the order of each kernel with a reduction is chosen, too."""
    convolution, rest = copy.deepcopy(AROUND_CHANNELS_LAST[name])
    model = Around(convolution, rest)
    channels = convolution.in_channels
    x = torch.randn(3, channels, 6, 5, 7) if name.startswith("3-d") else torch.randn(2, channels, 49, 47)
    check(model, [x], layouts=["contiguous", "channels_last"])
    explanation = fusewright.explain(model, x.requires_grad_())
    assert "channels_last" in explanation.rewrites
    operators = [kernel.operators for kernel in explanation.kernels if kernel.phase == "forward"]
    assert ["contiguous"] not in operators or "pooling" in name, "a copy back to row-major"


def test_layout_copies_are_explained():
    model = showcase.make(showcase.CONV, 16, 16, 3, (16, 1, 1))
    x = torch.randn(2, 16, 18, 16)
    check(model, [x], layouts=["contiguous", "channels_last"])
    explanation = fusewright.explain(model, x)
    assert "channels_last" in explanation.rewrites
    forward = [kernel for kernel in explanation.kernels if kernel.phase == "forward"]
    assert [kernel.operators for kernel in forward] == [
        ["channels_last"],
        ["channels_last"],
        ["conv2d_bias", "mul", "leaky_relu", "gelu"],
    ]
    assert [kernel.bytes_written for kernel in forward][:2] == [x.numel() * 4, 16 * 16 * 9 * 4]
    torch.backends.cudnn.allow_tf32 = False
    try:
        assert "channels_last" not in fusewright.explain(model, x).rewrites
    finally:
        torch.backends.cudnn.allow_tf32 = True


class OverChannels(torch.nn.Module):
    """A norm of every pixel; the result lies as it is told."""

    def __init__(self, channels, back):
        super().__init__()
        self.norm, self.back = torch.nn.LayerNorm(channels), back
        torch.nn.init.normal_(self.norm.weight)

    def forward(self, x):
        y = self.norm(x.permute(0, 2, 3, 1))
        return torch.tanh(y.permute(0, 3, 1, 2) if self.back else y)


@pytest.mark.parametrize(
    "model, shape, layout",
    [
        (OverChannels(40, True), (3, 40, 48, 47), "contiguous"),
        (OverChannels(40, False), (3, 40, 48, 48), "contiguous"),
        (torch.nn.Softmax(1), (2, 33, 64, 64), "channels_last"),
        (
            torch.nn.Sequential(torch.nn.InstanceNorm2d(24, affine=True), torch.nn.ReLU()),
            (3, 24, 61, 64),
            "channels_last",
        ),
        (lambda x: torch.softmax(x.transpose(1, 2) * 2, -1), (3, 300, 301), "contiguous"),
    ],
    ids=["result across", "result along", "softmax", "instance norm", "transposed"],
)
def test_reductions_of_mixed_orders(model, shape, layout):
    """Large enough that copies are worth while, and gradients that lie as the result does, and across it."""
    x = torch.randn(shape)
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    explanation = fusewright.explain(model, x.requires_grad_())
    assert "one_memory_order" in explanation.rewrites
    ours, parameters = fusewright.optimize(model, strict=True), []
    exact = copy.deepcopy(model)
    if isinstance(model, torch.nn.Module):
        parameters = [(p, q) for p, q in zip(model.parameters(), exact.double().parameters(), strict=True)]
    y, expected = ours(x), exact(x.double())
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-5)
    assert y.stride() == model(x).stride()
    along = torch.randn_like(y)
    for g in (along, along.transpose(1, -1).contiguous().transpose(1, -1)):
        found = torch.autograd.grad(y, [x, *(p for p, _ in parameters)], g, retain_graph=True)
        wanted = torch.autograd.grad(expected, [x, *(q for _, q in parameters)], g.double(), retain_graph=True)
        for one, other in zip(found, wanted, strict=True):
            scale = max(other.abs().max().item(), 1)
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_gradients_of_pooling(kind, dtype):
    """Windows by the vector where that begins at multiples of the stride, and element by element; edges cut off."""
    for kernel, stride, padding, dilation, ceil in [
        (2, 2, 0, 1, False),
        (3, 2, 1, 1, False),
        (3, 1, 1, 1, False),
        (3, 1, 1, 2, True),
        (2, 4, 1, 1, False),
        (4, 2, 1, 1, True),
        (3, 3, 1, 1, False),
        (4, 4, 2, 1, True),
    ]:
        if kind == "max":
            pool = torch.nn.MaxPool2d(kernel, stride, padding, dilation, ceil_mode=ceil)
        else:
            pool = torch.nn.AvgPool2d(kernel, stride, padding, ceil_mode=ceil, count_include_pad=False)

        def model(x, pool=pool):
            return pool(x * x + 0.5).reciprocal()  # no number where there is no window: 0 / 0

        x = torch.randn(2, 3, 13, 16).to(dtype).requires_grad_()
        y, expected = fusewright.optimize(model, strict=True)(x), model(x.double())
        g = torch.randn_like(y)
        (found,), (wanted,) = torch.autograd.grad(y, [x], g), torch.autograd.grad(expected, [x], g.double())
        bound = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 5e-3, "atol": 5e-3}
        torch.testing.assert_close(found, wanted.to(found.dtype), **bound)


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


class ManyBiases(torch.nn.Module):
    """So many parameters whose gradients are sums beside the rows that no word has a bit for each."""

    def __init__(self, count: int):
        super().__init__()
        self.biases = torch.nn.ParameterList(torch.randn(32) for _ in range(count))

    def forward(self, x):
        for bias in self.biases:
            x = torch.sin(x + bias)
        return torch.softmax(x, -1)


def test_more_sums_on_the_side_than_bits():
    model = ManyBiases(36)
    assert len(fusewright.explain(model, torch.randn(64, 32).requires_grad_()).kernels) == 2
    check(model, [torch.randn(64, 32)], layouts=["contiguous"])
