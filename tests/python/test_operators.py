"""Every row of src/ops/ops.def, reached from PyTorch: forward and backward against float64, in every floating type.

A row without an entry fails, and so does an entry whose graphs do not hold the operation it stands for.
"""

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F
from check import all_at_once, check, place
from torch import nn

from fusewright import _core
from fusewright.capture.backend import Session, Stop
from fusewright.capture.capture import capture

pytestmark = pytest.mark.real_core

OPERATIONS = {name: kind for name, kind, _ in _core.operations()} if hasattr(_core, "operations") else {}


def positive():
    return [torch.rand(31, 33) * 2 + 0.25]


def anything():
    """Both signs, away from the kinks of piecewise functions, where two dtypes may stand on different sides."""
    x = torch.randn(31, 33) * 2
    kinks = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 0.75, 1.0, 3.0])
    near = (x[..., None] - kinks).abs().amin(-1) < 0.04
    return [torch.where(near, x + 0.1, x)]


def pair():
    return [torch.rand(31, 33) + 0.25, torch.rand(33) + 1.5]


def images(*size):
    # Distinct values far enough apart to keep their order in 16 bits.
    def make():
        count = 2 * 3 * torch.Size(size).numel()
        return [(torch.randperm(count).view(2, 3, *size) % 509) / 64 - 4]

    return make


def matrix(*size):
    return lambda: [torch.randn(size)]


def three(*columns):
    return lambda: [torch.randn(7, n) for n in columns]


def norm(module):
    """The module with parameters and statistics that are not 0 and 1."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape) + 0.5)
    return module


def after(module):
    return nn.Sequential(module, nn.Tanh())


# Functions of one tensor of any shape, without parameters: those of one line share a kernel in the 16-bit and 64-bit
# runs below, since all of them read the same -(-x).
UNARY = {
    "neg": (lambda x: -x, anything),
    "abs": (torch.abs, anything),
    "sign": (lambda x: x * torch.sign(x), anything),
    "exp": (torch.exp, anything),
    "expm1": (torch.expm1, anything),
    "log": (torch.log, positive),
    "log1p": (torch.log1p, positive),
    "erf": (torch.erf, anything),
    "normal_cdf": (lambda x: F.gelu(2 * x), anything),  # what gelu is made of
    "tanh": (torch.tanh, anything),
    "sigmoid": (torch.sigmoid, anything),
    "sin": (torch.sin, anything),
    "cos": (torch.cos, anything),
    "sqrt": (torch.sqrt, positive),
    "rsqrt": (torch.rsqrt, positive),
    "reciprocal": (torch.reciprocal, positive),
    "square": (torch.square, anything),
    "floor": (lambda x: x * torch.floor(x), anything),
    "ceil": (lambda x: x * torch.ceil(x), anything),
    "round": (lambda x: x * torch.round(x), anything),
    "trunc": (lambda x: x * torch.trunc(x), anything),
    "isnan": (lambda x: torch.where(torch.isnan(x), 1.5, x), anything),
    "logical_not": (lambda x: torch.where(torch.logical_not(x > 0.5), x, 2 * x), anything),
    "stop_gradient": (lambda x: x * (x * 2).detach(), anything),
    "constant": (lambda x: x + 1.5, anything),
    "relu": (F.relu, anything),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.1), anything),
    "gelu": (F.gelu, anything),
    "silu": (F.silu, anything),
    "mish": (F.mish, anything),
    "softplus": (lambda x: F.softplus(x, 2, 3), anything),
    "hardswish": (F.hardswish, anything),
    "hardsigmoid": (F.hardsigmoid, anything),
    "hardtanh": (lambda x: F.hardtanh(x, -0.5, 0.75), anything),
    "clamp": (lambda x: x.clamp(-0.5, 0.75), anything),
    "elu": (lambda x: F.elu(x, 0.7), anything),
    "log_sigmoid": (F.logsigmoid, anything),
    "softsign": (F.softsign, anything),
}

OTHERS = {
    "input": (torch.mul, pair),
    "scalar_input": (lambda x, s: x.sin() * s, lambda: [*positive(), 1.75]),
    "extent": (lambda x: x.mean(1), anything),
    "iota": (lambda x: (x * 2).argmax(1), images(5)),
    "cast": (lambda x: (x * 2).to(torch.float64) + x, anything),
    "add": (torch.add, pair),
    "sub": (torch.sub, pair),
    "mul": (lambda x, y: torch.mul(y, x), pair),
    "div": (torch.div, pair),
    "pow": (torch.pow, pair),
    "maximum": (torch.maximum, lambda: [*anything(), *anything()]),
    "minimum": (torch.minimum, lambda: [*anything(), *anything()]),
    "lt": (lambda x, y: torch.where(x < y, x * y, x - y), pair),
    "le": (lambda x, y: torch.where(x <= y, x * y, x - y), pair),
    "gt": (lambda x, y: torch.where(y > x, x * y, x - y), pair),
    "ge": (lambda x, y: torch.where(y >= x, x * y, x - y), pair),
    "eq": (lambda x, y: torch.where(x == y, x * y, x - y), lambda: [x := torch.rand(31, 33), x.round() + (x > 0.5)]),
    "ne": (lambda x, y: torch.where(x != y, x * y, x - y), lambda: [x := torch.rand(31, 33), x.clone()]),
    "logical_and": (lambda x, y: torch.where((x > 0.5) & (y > 2), x, y), pair),
    "logical_or": (lambda x, y: torch.where((x > 0.5) | (y > 2), x, y), pair),
    "select": (lambda x, y: torch.where(x > 0.75, x, y), pair),
    "sum": (lambda x: x.sum(0), anything),
    "amax": (lambda x: x.amax(-1), images(5)),
    "amin": (lambda x: x.amin((0, 2)), images(5)),
    "prod": (lambda x: (1 + x / 64).prod(1), anything),
    "max_pool": (lambda x: F.max_pool2d(x * 2, 3, 2, 1), images(7, 9)),
    "max_pool_index": (lambda x: F.max_pool1d(x * 2, 2, dilation=2), images(11)),
    "max_pool_grad": (lambda x: F.max_pool3d(x * 2, 2, ceil_mode=True), images(3, 4, 5)),
    "avg_pool": (lambda x: F.avg_pool2d(x * 2, 3, 2, 1), images(7, 9)),
    "avg_pool_grad": (lambda x: F.avg_pool1d(x * 2, 3, 1, 1, count_include_pad=False), images(11)),
    "matmul": (lambda a, b: (a @ b).tanh(), lambda: [torch.randn(31, 7), torch.randn(7, 5)]),
    "linear": (after(nn.Linear(7, 5)), matrix(33, 7)),
    "conv": (after(nn.Conv2d(3, 4, 3, padding=1, bias=False)), images(7, 9)),
    "conv_input_grad": (after(nn.Conv1d(3, 4, 3, stride=2)), images(11)),
    "conv_weight_grad": (after(nn.ConvTranspose2d(3, 2, 3, stride=2, output_padding=1)), images(5, 4)),
    "convolution": (after(nn.Conv3d(3, 2, 2)), images(3, 4, 5)),
    "reshape": (lambda x: (x * 2).reshape(11, -1).softmax(1), matrix(31, 33)),
    "permute": (lambda x: (x * 2).t().softmax(1) + 1, matrix(31, 33)),
    "shift": (lambda x: ((x * 2)[:, 3:29] + 1).exp(), matrix(31, 33)),
    "pick": (lambda x: F.nll_loss(x * 2, x.argmin(1)), matrix(31, 33)),
    "cat": (lambda x, y, z: torch.tanh(torch.cat([x * 2, y, z.exp()], 1)), three(5, 33, 2)),
    "expand": (lambda x: x.sum(1, keepdim=True).expand(31, 33) * x, matrix(31, 33)),
    "mean": (lambda x: x.mean(0), anything),
    "var": (lambda x: x.var(1), anything),
    "stddev": (lambda x: x.std(1), anything),
    "vector_norm": (lambda x: torch.linalg.vector_norm(x, dim=1), anything),
    "argmax": (lambda x: (x * 2).argmax(0), images(5)),
    "argmin": (lambda x: (x * 2).argmin(2, keepdim=True), images(5)),
    "logsumexp": (lambda x: x.logsumexp(1), matrix(31, 33)),
    "softmax": (lambda x: x.softmax(1), matrix(31, 33)),
    "log_softmax": (lambda x: x.log_softmax(0), matrix(31, 33)),
    "group_norm": (norm(nn.GroupNorm(3, 33)), matrix(31, 33)),
    "instance_norm": (norm(nn.InstanceNorm2d(3, affine=True)), images(5, 4)),
    "layer_norm": (norm(nn.LayerNorm(33)), matrix(31, 33)),
    "rms_norm": (norm(nn.RMSNorm(33, eps=1e-5)), matrix(31, 33)),
    "batch_norm": (norm(nn.BatchNorm1d(33)), matrix(31, 33)),
    "batch_norm_inference": (norm(nn.BatchNorm1d(33)).eval(), matrix(31, 33)),
    "batch_norm_running_mean": (norm(nn.BatchNorm1d(3)), images(5)),
    "batch_norm_running_var": (norm(nn.BatchNorm2d(3, momentum=0.25)), images(5, 4)),
}
ENTRIES = UNARY | OTHERS
# Not every pair of row and dtype (a compilation each), but every way to read, accumulate and call in every dtype.
OTHER_DTYPES = {
    torch.bfloat16: "mul div pow maximum lt sum prod amax max_pool avg_pool linear conv mean var argmax logsumexp "
    "softmax log_softmax group_norm rms_norm batch_norm_inference",
    torch.float16: "div sum max_pool conv layer_norm batch_norm_running_mean",
    torch.float64: "pow mean max_pool matmul conv_weight_grad logsumexp batch_norm",
}
# How a source is printed; F.softsign is spelt out before it reaches us, so that row is for users of the core.
PRINTED = {"input": "graph(%", "scalar_input": "scalar", "softsign": "div("}


def test_every_row_has_an_entry():
    assert set(OPERATIONS) == set(ENTRIES)


def in_dtype(inputs, dtype):
    return [x.to(dtype) if isinstance(x, torch.Tensor) else x for x in inputs]


@pytest.mark.parametrize("name", ENTRIES)
def test_operation(name):
    fn, inputs = ENTRIES[name]
    fn, inputs = place(fn), [place(x) for x in inputs()]
    dynamic = True if name == "scalar_input" else None  # else the first value of a float is a constant
    check(fn, inputs, layouts=["contiguous"], dynamic=dynamic)
    session = Session(name, record=True)
    leaves = [x.requires_grad_() if isinstance(x, torch.Tensor) else x for x in inputs]
    captured = capture(fn._call_impl if isinstance(fn, nn.Module) else fn, session, dynamic)
    with contextlib.suppress(Stop):
        captured(*leaves)
    if name == "scalar_input":  # torch 2.6 makes a float an argument at its second value, whatever `dynamic` says
        with contextlib.suppress(Stop):
            captured(*[x + 0.5 if isinstance(x, float) else x for x in leaves])
    text = ""
    for region in session.captured[-1].regions:
        report = region.compiled.report(True)
        text += str(region.imported.graph) + report["forward"] + report["backward"]
    assert PRINTED.get(name, f"= {name}(") in text, text


# Float16 differs in its rounding only, which test_numerics holds to every pattern.
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("inputs", [positive, anything], ids=lambda f: f.__name__)
def test_unary_in_other_dtypes(inputs, dtype):
    group = {name: fn for name, (fn, made) in UNARY.items() if made is inputs}
    check(all_at_once(group), in_dtype(inputs(), dtype), layouts=["contiguous"])


@pytest.mark.parametrize(
    "dtype, name", [(dtype, name) for dtype in OTHER_DTYPES for name in OTHER_DTYPES[dtype].split()]
)
def test_other_dtypes(name, dtype):
    fn, inputs = ENTRIES[name]
    fn = copy.deepcopy(fn).to(dtype) if isinstance(fn, nn.Module) else fn
    check(fn, in_dtype(inputs(), dtype), layouts=["contiguous"])
