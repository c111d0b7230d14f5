"""Tensors on a GPU, captured without one: fake tensors go through everything up to the regions."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from fusewright import UnsupportedError, _core, core, optimize, reasons
from fusewright.capture.backend import Session, Stop
from fusewright.capture.capture import capture
from fusewright.capture.normalize import _make_masks_dense


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(_core, "cuda_available", lambda: True)


def captured(fn, *inputs, strict=False):
    """Regions (device and operators) and fallbacks of a function of tensors with these shapes, devices and dtypes."""
    session = Session("fake", record=True, strict=strict)
    with FakeTensorMode():
        tensors = [torch.empty(shape, device=device, dtype=dtype) for shape, device, dtype in inputs]
        with contextlib.suppress(Stop):
            capture(fn, session, None)(*tensors)
    assert not session.failures
    (graph,) = session.captured
    regions = [(str(r.imported.device), [n.target.overloadpacket.__name__ for n in r.members]) for r in graph.regions]
    return regions, graph.fallbacks, [str(r.imported.graph) for r in graph.regions]


X = ((4, 6), "cuda", torch.float32)


def test_a_chain_is_one_region(gpu):
    regions, fallbacks, _ = captured(lambda x: F.gelu(F.leaky_relu(x * 2, 0.1)), X)
    assert regions == [("cuda:0", ["mul", "leaky_relu", "gelu"])] and not fallbacks


def test_no_runtime_is_one_reason_for_the_graph(monkeypatch):
    monkeypatch.setattr(_core, "cuda_available", lambda: False)
    monkeypatch.setattr(_core, "cuda_unavailable_because", lambda: "libcuda.so.1 was looked for in nowhere")
    regions, fallbacks, _ = captured(lambda x: F.gelu(x * 2).sum(), X)
    assert not regions
    (fallback,) = fallbacks
    assert fallback.reason == reasons.NO_GPU_RUNTIME == "no_gpu_runtime"
    assert "libcuda.so.1 was looked for in nowhere" in str(fallback)
    with pytest.raises(UnsupportedError, match="no_gpu_runtime"), FakeTensorMode():
        optimize(lambda x: F.gelu(x * 2), strict=True)(torch.empty(4, 6, device="cuda"))


def test_a_number_on_the_cpu_is_an_argument(gpu):
    """Eager takes a 0-d tensor of the CPU beside tensors of a GPU; types are promoted as for tensors."""
    number = ((), "cpu", torch.float64)
    regions, fallbacks, (graph,) = captured(lambda x, s: torch.minimum(F.gelu(x * 2), s), X, number)
    assert regions == [("cuda:0", ["mul", "gelu", "minimum"])] and not fallbacks
    assert "scalar f64[]" in graph and "f32[d0, d1] = minimum" in graph
    regions, fallbacks, _ = captured(lambda x: torch.min(F.gelu(x), torch.tensor(0.5)) * torch.tensor(3.0), X)
    assert regions == [("cuda:0", ["gelu", "min", "mul"])] and not fallbacks
    regions, fallbacks, _ = captured(lambda x, s: F.gelu(x * 2) * s, X, ((), "cpu", torch.int64))
    assert [(f.operator, f.reason) for f in fallbacks] == [("aten.mul.Tensor", reasons.DEVICE)]


def test_masks_of_attention_are_dense():
    """PyTorch's fused attention on a GPU reads no mask that is expanded in its last dimension."""
    attention = torch.ops.aten.scaled_dot_product_attention.default
    graph = fx.Graph()
    q, expanded, dense, short = (graph.placeholder(name) for name in ("q", "expanded", "dense", "short"))
    with FakeTensorMode():
        q.meta["val"] = torch.empty(2, 3, 8, 16, device="cuda")
        expanded.meta["val"] = torch.empty(2, 1, 8, 1, device="cuda", dtype=torch.bool).expand(2, 1, 8, 8)
        dense.meta["val"] = torch.empty(8, 8, device="cuda")
        short.meta["val"] = torch.empty(2, 1, 8, 1).expand(2, 1, 8, 8)  # on a processor they may stay what they are
    calls = [graph.call_function(attention, (q, q, q, mask)) for mask in (expanded, expanded, dense, short)]
    graph.output(calls)
    _make_masks_dense(graph)
    graph.lint()
    first, second, *others = (call.args[3] for call in calls)
    assert first is second and first.target is torch.ops.aten.clone.default and first.args == (expanded,)
    assert first.meta["val"].stride() == (64, 64, 8, 1) and others == [dense, short]


def test_a_copy_to_another_device_cuts_and_is_no_news(gpu):
    regions, fallbacks, _ = captured(lambda x: F.gelu(x * 2).to("cpu").sin() * 2, X)
    assert regions == [("cuda:0", ["mul", "gelu"]), ("cpu", ["sin", "mul"])] and not fallbacks
    regions, fallbacks, _ = captured(lambda x: F.gelu(x * 2).to("cpu", torch.float64).sin() * 2, X)
    assert regions == [("cuda:0", ["mul", "gelu"]), ("cpu", ["sin", "mul"])] and not fallbacks


def test_two_gpus_are_two_regions(gpu):
    def f(x, y):
        return F.gelu(x * 2), F.gelu(y * 2)

    regions, fallbacks, _ = captured(f, X, ((4, 6), "cuda:1", torch.float32))
    assert regions == [("cuda:0", ["mul", "gelu"]), ("cuda:1", ["mul", "gelu"])] and not fallbacks


def test_autocast_of_cuda_computes_norms_in_float32(gpu):
    def f(x):
        with torch.autocast("cuda", torch.float16):
            y = F.linear(x, x)
            return F.softmax(y * 2, 1), F.relu(y)

    _, fallbacks, (text,) = captured(f, X)
    assert not fallbacks
    assert (
        ": f16[d0, d0] = linear(" in text and ": f32[d0, d0] = softmax(" in text and ": f16[d0, d0] = relu(" in text
    ), text


def test_autocast_of_another_device_is_none_of_ours(gpu):
    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(x, x).relu()

    _, _, (text,) = captured(f, X)
    assert "bf16" not in text


def test_library_directories_exist():
    directories = core.library_directories()
    assert any(directory.endswith("torch/lib") for directory in directories)
