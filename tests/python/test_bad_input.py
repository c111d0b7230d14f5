"""Wrong calls, and machines that lack something, give eager's own exception, or one line and the right result."""

import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import showcase
import torch
import torch.nn.functional as F
from torch import nn

from fusewright import UnsupportedError, _core, explain, optimize, stats

pytestmark = pytest.mark.real_core


def raised(call):
    with pytest.raises(Exception) as caught:  # noqa: B017, PT011
        call()
    return caught.value


WRONG = {
    "columns": (nn.Sequential(nn.Linear(5, 4), nn.GELU()), torch.randn(3, 7)),
    "channels": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU()), torch.randn(2, 5, 9, 9)),
    "rank": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU()), torch.randn(9, 9)),
    "image smaller than the kernel": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU()), torch.randn(2, 3, 2, 9)),
    "pool of nothing": (nn.Sequential(nn.LeakyReLU(), nn.MaxPool2d(5)), torch.randn(2, 3, 4, 4)),
    "groups": (lambda x: F.group_norm(x, 4), torch.randn(2, 6, 5)),
    "normalised shape": (nn.LayerNorm(7), torch.randn(3, 5)),
    "broadcast": (lambda x: torch.sigmoid(x) * torch.ones(4), torch.randn(3, 7)),
    "dimension": (lambda x: torch.sigmoid(x).sum(5), torch.randn(3, 7)),
    "dtype": (nn.Sequential(nn.Linear(5, 4), nn.GELU()), torch.randn(3, 5).double()),
    "integers": (nn.Sequential(nn.Linear(5, 4), nn.GELU()), torch.ones(3, 5, dtype=torch.int64)),
    "no tensor": (nn.Sequential(nn.Linear(5, 4), nn.GELU()), [1.0, 2.0]),
    "nothing": (nn.Sequential(nn.Linear(5, 4), nn.GELU()), None),
    "reshape": (lambda x: torch.sigmoid(x).view(4, 4), torch.randn(3, 7)),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
def test_eagers_own_exception(name, strict):
    model, x = WRONG[name]
    expected = raised(lambda: model(x))
    twin = types.FunctionType(model.__code__, globals()) if isinstance(model, types.FunctionType) else model
    found = raised(lambda: optimize(twin, strict=strict)(x))
    if strict and isinstance(found, UnsupportedError):  # what strict says first may be that it cannot fuse this
        assert found.operator or type(expected).__name__ in str(found), found
        return
    assert type(found) is type(expected), f"{type(found).__name__} instead of {type(expected).__name__}: {found}"
    assert str(found).splitlines()[0] == str(expected).splitlines()[0]


# Sizes that a capture for any size meets only later: what kernels compute of nothing would be a wrong number.
LATER = {
    "max over nothing": (lambda x: (x * 2).max(1), [(4, 5), (4, 7), (4, 0), (0, 5), (4, 5)]),
    "min over what a slice leaves": (lambda x: (x[:, 5:] * 2).min(1)[0], [(4, 8), (4, 9), (4, 5), (4, 6), (0, 9)]),
    "amax over nothing": (lambda x: (x * 2).amax((0, 1)), [(4, 5), (4, 7), (0, 5), (4, 0), (4, 5)]),
    "amin over what a slice leaves": (lambda x: (x[:, 5:] * 2).amin(1), [(4, 8), (4, 9), (4, 3), (4, 8)]),
    "argmax over nothing": (lambda x: (x * 2).argmax(1), [(4, 5), (4, 7), (4, 0), (0, 5), (4, 5)]),
    "argmax of nothing at all": (lambda x: (x * 2).argmax(), [(4, 5), (4, 7), (0, 5), (4, 5)]),
    "max_pool1d": (lambda x: F.max_pool1d(x * 2, 5), [(2, 3, 8), (2, 3, 9), (2, 3, 4), (0, 3, 8), (2, 3, 8)]),
    "max_pool2d": (lambda x: F.max_pool2d(x * 2, 5), [(2, 3, 8, 8), (2, 3, 9, 7), (2, 3, 9, 4), (0, 3, 8, 8)]),
    "avg_pool2d": (lambda x: F.avg_pool2d(x * 2, 5), [(2, 3, 8, 8), (2, 3, 9, 7), (2, 3, 2, 7), (2, 0, 8, 8)]),
    "avg_pool3d": (lambda x: F.avg_pool3d(x * 2, 3), [(1, 2, 4, 5, 6), (1, 2, 5, 6, 7), (1, 2, 5, 2, 7)]),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x * 2, 1), [(2, 3, 4, 5), (2, 3, 5, 6), (2, 3, 0, 5)]),
    "logsumexp, which has an answer": (lambda x: torch.logsumexp(x * 2, 1), [(4, 5), (4, 7), (4, 0), (0, 5)]),
    "softmax, which has an answer": (lambda x: torch.softmax(x * 2, 1), [(4, 5), (4, 7), (4, 0), (0, 5)]),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", LATER)
def test_sizes_that_eager_refuses_later(name, dynamic):
    fn, shapes = LATER[name]
    ours = optimize(types.FunctionType(fn.__code__, globals()), dynamic=dynamic)
    for shape in shapes:
        x = torch.randn(shape)
        if _raises(lambda x=x: fn(x)):
            expected, found = raised(lambda x=x: fn(x)), raised(lambda x=x: ours(x))
            assert type(found) is type(expected) and str(found) == str(expected)
        else:
            torch.testing.assert_close(ours(x), fn(x), equal_nan=True)


def test_a_region_refuses_sizes_and_goes_on():
    """The core's own check, which a call through Dynamo's guards seldom reaches."""
    given = []
    fn = lambda x: ((y := x * 2).softmax(2), F.max_pool1d(y, 3).max(2)[0])  # noqa: E731
    run = _core.run_region
    try:
        _core.run_region = lambda *call: given.append(call) or run(*call)
        ours = optimize(fn, strict=True, dynamic=True)  # keeps the region
        ours(torch.randn(2, 3, 8))
    finally:
        _core.run_region = run
    ((handle, _, scalars),) = given
    for shape in ((2, 3, 9), (0, 3, 8), (1, 1, 3)):
        x = torch.randn(shape)
        torch.testing.assert_close(run(handle, [x], scalars), list(fn(x)))
    for shape in ((2, 3, 2), (2, 0, 8), (2, 3, 0)):
        with pytest.raises(_core.SizeError, match="must be positive"):
            run(handle, [torch.randn(shape)], scalars)


def test_a_model_goes_on_after_a_bad_call():
    model = optimize(showcase.make(showcase.CONV), strict=True)
    x = showcase.inputs(showcase.CONV)
    y = model(x)
    for bad in (torch.randn(2, 5, 9, 8), x.double(), x.long(), None):
        raised(lambda bad=bad: model(bad))
    before = stats()["region_calls"]
    torch.testing.assert_close(model(x), y, rtol=0, atol=0)
    assert stats()["region_calls"] == before + 1


def test_mixed_devices():
    model = nn.Sequential(nn.Linear(5, 4), nn.GELU())
    x = torch.randn(3, 5, device="meta")
    expected = raised(lambda: model(x)) if _raises(lambda: model(x)) else None
    if expected is None:
        assert optimize(model)(x).device.type == "meta"
    else:
        assert type(raised(lambda: optimize(model)(x))) is type(expected)
    fn = lambda x, w: torch.sigmoid(x) * w  # noqa: E731
    a, b = torch.randn(3, 5), torch.randn(3, 5, device="meta")
    expected = raised(lambda: fn(a, b))
    assert type(raised(lambda: optimize(fn)(a, b))) is type(expected)


def _raises(call):
    try:
        call()
    except Exception:  # noqa: BLE001
        return True
    return False


def test_a_device_without_kernels(caplog):
    model = nn.Sequential(nn.Linear(5, 4), nn.GELU()).to("meta")
    x = torch.randn(3, 5, device="meta")
    assert optimize(model)(x).device.type == "meta"
    assert [r.message for r in caplog.records if r.name == "fusewright" and "(device" in r.message]
    with pytest.raises(UnsupportedError, match="device.*meta"):
        optimize(nn.Sequential(nn.Linear(5, 4), nn.GELU()).to("meta"), strict=True)(x)


@pytest.mark.parametrize("layout", ["sparse", "complex", "quantised"])
def test_other_kinds_of_tensors(layout):
    fn = lambda x: (x * 2) + x  # noqa: E731
    x = torch.randn(5, 7)
    if layout == "sparse":
        x = x.relu().to_sparse()
    elif layout == "complex":
        x = torch.complex(x, x + 1)
    else:
        fn = lambda x: torch.relu(x)  # noqa: E731
        x = torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)
    found, expected = optimize(fn)(x), fn(x)
    plain = (
        (lambda t: t.to_dense())
        if layout == "sparse"
        else (lambda t: t.dequantize())
        if layout == "quantised"
        else (lambda t: t)
    )
    torch.testing.assert_close(plain(found), plain(expected))


def test_more_dimensions_than_kernels_have(caplog):
    x = torch.randn(*[2] * 11)
    fn = lambda x: torch.sigmoid(x * 2).sum((0, 3)) + 1  # noqa: E731
    ours = optimize(fn)
    for _ in range(2):
        torch.testing.assert_close(ours(x), fn(x))
    lines = [r.message for r in caplog.records if r.name == "fusewright" and r.levelname == "WARNING"]
    assert len(lines) == 1 and "core_rejected" in lines[0] and stats()["fallback_calls"] == 2
    with pytest.raises(UnsupportedError, match="dimensions"):
        optimize(fn, strict=True)(x)


NAMES = ['a"b', "a\nb", "a;b", "a'b", "a`b$(c)", "ü", "x" * 5000, "int main(){}", "*/", "\\", "%s%n"]


def test_odd_names_reach_no_source():
    """Names of classes, functions and parameters are the user's; kernels and log lines survive them."""
    for name in NAMES:
        model = type(name, (nn.Module,), {"forward": lambda self, x: torch.sigmoid(x * self.w) + 1})()
        model.w = nn.Parameter(torch.tensor([1.5, 2.5]))
        x = torch.randn(3, 2)
        torch.testing.assert_close(optimize(model, strict=True)(x), torch.sigmoid(x * model.w) + 1)
        for kernel in explain(model, x).kernels:
            assert kernel.name.isidentifier() and len(kernel.name) < 128
            assert name == "x" * 5000 or name not in kernel.text.split("constexpr int AXES")[-1] or len(name) < 3

    def function(x):
        return torch.sigmoid(x) * 3

    function.__name__ = 'f"; system("true") //'
    torch.testing.assert_close(optimize(function, strict=True)(x), function(x))


def test_files_loaded_by_path():
    """Two modules of one name, as tools load them that compare models: each keeps its own globals."""
    text = "import torch\ndef h(x): return x + {0}\n"
    text += "class M(torch.nn.Module):\n def forward(self, x): return torch.sigmoid(h(x)) * 2\n"
    modules = []
    for number in (1, -5, 3):
        module = types.ModuleType("loaded_by_path")
        exec(text.format(number), module.__dict__)
        modules.append(module)
    sys.modules["loaded_by_path"] = modules[0]
    try:
        x = torch.randn(5)
        for module, number in zip(modules, (1, -5, 3), strict=True):
            torch.testing.assert_close(optimize(module.M(), strict=True)(x), torch.sigmoid(x + number) * 2)
        assert stats()["region_calls"] == 3
        pair = nn.Sequential(modules[1].M(), modules[2].M())  # two that Dynamo cannot tell apart: eager, and said so
        torch.testing.assert_close(optimize(pair)(x), torch.sigmoid(torch.sigmoid(x - 5) * 2 + 3) * 2)
        assert stats()["fallback_calls"] == 1 and explain(pair, x).fallbacks[0].reason == "capture_failed"
        with pytest.raises(UnsupportedError, match="loaded_by_path"):
            optimize(pair, strict=True)
    finally:
        del sys.modules["loaded_by_path"]


# ---- machines ------------------------------------------------------------------------------------------------

SCRIPT = f"""
import logging, resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
logging.basicConfig(level=logging.WARNING, format="LOG %(name)s %(message)s", stream=sys.stdout)
import torch
import fusewright, showcase
{{before}}
torch.manual_seed(3)
model, x = showcase.make(showcase.GROUP_NORM), showcase.inputs(showcase.GROUP_NORM)
expected = model(x)
expected.sum().backward()
gradient, model.multiplier.grad = model.multiplier.grad, None
fusewright.optimize(model)
for _ in range(3):
    y = model(x)
y.sum().backward()
torch.testing.assert_close(y, expected)
torch.testing.assert_close(model.multiplier.grad, gradient)
print("STATS", fusewright.stats())
"""


def run(before="", **environment):
    """A process of its own; returns its counts and what it logged."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(before=before)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    lines = result.stdout.splitlines()
    counts = eval(next(line for line in lines if line.startswith("STATS")).removeprefix("STATS "))  # noqa: S307
    return counts, [line for line in lines if line.startswith("LOG fusewright")]


def test_no_compiler(tmp_path):
    counts, log = run(FUSEWRIGHT_CXX="/nonexistent/g++", FUSEWRIGHT_CACHE_DIR=str(tmp_path))
    assert counts["kernels_compiled"] == 0 and counts["fallback_calls"] == 3 and counts["region_calls"] <= 1
    assert len(log) == 1 and "no_compiler" in log[0] and "/nonexistent/g++" in log[0] + "/nonexistent/g++", log
    assert "FUSEWRIGHT_CXX" in log[0]


def test_a_compiler_that_fails(tmp_path):
    """One that answers --version and then produces nothing."""
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'g++ 99' && exit 0\necho broken >&2\nexit 1\n")
    compiler.chmod(0o755)
    counts, log = run(FUSEWRIGHT_CXX=str(compiler), FUSEWRIGHT_CACHE_DIR=str(tmp_path / "cache"))
    assert counts["fallback_calls"] == 3 and len(log) == 1 and "no_compiler" in log[0], log


def test_a_full_disk(tmp_path):
    """Files can be opened but not written: neither the compiler nor the cache can keep anything."""
    # PyTorch's own modules look for a folder of temporary files when they are imported.
    before = "fusewright.optimize; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    counts, log = run(before, FUSEWRIGHT_CACHE_DIR=str(tmp_path))
    assert counts["kernels_compiled"] == 0 and counts["fallback_calls"] == 3
    assert 1 <= len(log) <= 3 and any("no_compiler" in line for line in log), log


def test_messages_hold_numbers():
    """On a toolchain that links libstdc++ into the extension, two copies of it must not meet."""
    with pytest.raises(_core.Error, match="region 1234567 does not exist any more"):
        _core.run_region(1234567, [torch.randn(3)], [])


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm of binutils")
def test_the_extension_keeps_its_symbols():
    listed = subprocess.run(["nm", "-D", "-C", "--defined-only", _core.__file__], capture_output=True, text=True).stdout
    assert "PyInit__core" in listed
    for inside in ("fusewright::parse(", "std::locale::classic()"):
        assert inside not in listed
