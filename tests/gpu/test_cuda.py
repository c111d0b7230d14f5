"""CUDA itself: streams, graphs, several devices, huge tensors, autocast lists, the profiler, errors."""

import contextlib
import copy
import threading

import pytest
import showcase
import torch
import torch.nn.functional as F
from test_bad_input import test_messages_hold_numbers, test_the_extension_keeps_its_symbols  # noqa: F401
from torch import nn

import fusewright
from fusewright import optimize, stats

pytestmark = pytest.mark.cuda


def chain(x, m):
    return F.gelu(F.leaky_relu(x * m, 0.01))


def normed(x, m):
    return F.silu(F.group_norm(x, 8)) * m


# ---- streams ---------------------------------------------------------------------------------------------------------


def test_side_stream_forward_and_backward():
    """Kernels go to the current stream, and the backward to the forward's."""
    x, m = torch.randn(64, 256, requires_grad=True), torch.randn(256, requires_grad=True)
    ours = optimize(normed, strict=True)
    expected = torch.autograd.grad(normed(x, m).sum(), (x, m))
    ours(x, m).sum().backward()  # compiled before
    x.grad = m.grad = None
    stream = torch.cuda.Stream()
    for _ in range(10):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
            y = ours(x * 1, m)
            found = torch.autograd.grad(y.sum(), (x, m))
        torch.cuda.current_stream().wait_stream(stream)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_the_current_stream_is_the_one_that_works():
    """A side stream is kept busy: what is launched there cannot have ended, and nothing waits for it."""
    x, m = torch.randn(256, 256), torch.randn(256)
    ours = optimize(chain, strict=True)
    ours(x, m)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        y = ours(x, m)
    assert not stream.query(), "the call waited, or ran elsewhere"
    stream.synchronize()
    torch.testing.assert_close(y, chain(x, m))


def test_streams_of_several_threads():
    ours = optimize(normed, strict=True)
    x, m = torch.randn(64, 256), torch.randn(256)
    expected = normed(x, m)
    ours(x, m)
    torch.cuda.synchronize()
    errors = []

    def work():
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(50):
                    y = ours(x, m)
                stream.synchronize()
            torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_first_call_from_many_threads():
    ours = optimize(chain, strict=True)
    x, m = torch.randn(64, 256), torch.randn(256)
    expected, found = chain(x, m), []
    threads = [threading.Thread(target=lambda: found.append(ours(x, m))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for y in found:
        torch.testing.assert_close(y, expected)


def test_no_synchronisation():
    """A call that waited for the device would take as long as what is queued before it."""
    model = optimize(showcase.make(showcase.GROUP_NORM).cuda(), strict=True)
    x = showcase.inputs(showcase.GROUP_NORM).cuda().requires_grad_()
    model(x).sum().backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        model(x).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


# ---- CUDA graphs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", showcase.NAMES)
def test_graph_of_a_forward(name):
    model = optimize(showcase.make(name).cuda().eval(), strict=True)
    plain = showcase.make(name).cuda().eval()
    plain.load_state_dict(model.state_dict())
    x = showcase.inputs(name).cuda()
    with torch.no_grad():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                model(x)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        for _ in range(3):
            x.copy_(torch.randn_like(x))
            graph.replay()
            torch.testing.assert_close(y, plain(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", showcase.NAMES)
def test_graph_of_a_whole_step(name):
    """Forward, backward and optimizer in one graph, beside eager."""
    torch.manual_seed(3)
    plain = showcase.make(name).cuda()
    model = optimize(copy.deepcopy(plain), strict=True)
    x = showcase.inputs(name).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    reference = torch.optim.SGD(plain.parameters(), lr=0.05)

    def step(model, optimizer):
        optimizer.zero_grad(set_to_none=True)
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(model, optimizer)
    torch.cuda.current_stream().wait_stream(stream)
    for _ in range(3):
        step(plain, reference)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        captured = step(model, optimizer)
    for number in range(5):
        x.copy_(torch.randn_like(x))
        graph.replay()
        loss = step(plain, reference)
        torch.testing.assert_close(captured, loss, rtol=1e-3, atol=1e-4, msg=lambda m, n=number: f"step {n}: {m}")
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(buffer, plain.get_buffer(name), rtol=1e-3, atol=1e-4)


def test_compiling_while_capturing_is_refused():
    ours = optimize(lambda x: torch.tanh(x * 3) + 1, strict=True)
    x = torch.randn(64, 64)
    refused = pytest.raises(RuntimeError, match="call the model once before capturing")
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        ours(x)
    torch.cuda.synchronize()
    torch.testing.assert_close(ours(x), torch.tanh(x * 3) + 1)


# ---- devices ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif("torch.cuda.device_count() < 2")
def test_two_devices():
    ours = optimize(normed, strict=True)
    for index in (0, 1, 0, 1):
        x, m = torch.randn(64, 256, device=f"cuda:{index}"), torch.randn(256, device=f"cuda:{index}")
        x.requires_grad_()
        y = ours(x, m)
        y.sum().backward()
        assert y.device == x.device and torch.cuda.current_device() == 0
        torch.testing.assert_close(y, normed(x, m), rtol=1e-5, atol=1e-5)
    x, m = torch.randn(64, 256, device="cuda:0"), torch.randn(256, device="cuda:1")
    with pytest.raises(RuntimeError, match="same device"):
        optimize(normed)(x, m)


def test_mixed_devices_raise_as_eager():
    x, m = torch.randn(64, 256), torch.randn(256, device="cpu")
    with pytest.raises(RuntimeError) as eager:
        chain(x, m)
    with pytest.raises(RuntimeError) as ours:
        optimize(chain)(x, m)
    assert str(ours.value) == str(eager.value)


def test_a_number_on_the_cpu():
    """0-d tensors of the CPU beside tensors of the GPU: legal in eager, and the chain around them is fused."""

    def f(x, s):
        return torch.tanh(F.gelu(x * 2) * s)

    x, s = torch.randn(64, 256, requires_grad=True), torch.tensor(1.5, device="cpu", requires_grad=True)
    found = []
    for g in (f, optimize(f)):
        x.grad = s.grad = None
        y = g(x, s)
        y.sum().backward()
        found.append((y.detach(), x.grad, s.grad))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-3)
    assert stats()["region_calls"] >= 1


def test_a_model_that_moves():
    model = nn.Sequential(nn.Linear(32, 64), nn.GroupNorm(8, 64), nn.SiLU()).to("cpu")
    plain = copy.deepcopy(model)
    optimize(model, strict=True)
    x = torch.randn(16, 32, device="cpu")
    for device in ("cpu", "cuda", "cpu", "cuda"):
        y = model.to(device)(x.to(device))
        assert y.device.type == device
        torch.testing.assert_close(y.cpu(), plain(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [32, 1024, 20_000])
def test_values_of_columns_lie_as_they_like(rows):
    """x is read by vectors of columns; of weights, one for each column, neither neighbours nor memory are given."""

    def norm(x, w, b):
        return F.silu(F.batch_norm(x, None, None, w, b, training=True))

    x, w, b = torch.randn(rows, 64, requires_grad=True), torch.randn(64, 3)[:, 1], torch.randn(1).expand(64)
    expected = norm(x.double(), w.double(), b.double())
    y = optimize(norm, strict=True)(x, w, b)
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-5)
    g = torch.randn_like(y)
    (found,), (exact,) = torch.autograd.grad(y, [x], g), torch.autograd.grad(expected, [x], g.double())
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "norm, shape",
    [
        (lambda: nn.GroupNorm(4, 32), (5, 32, 95, 96)),  # few rows, too long for a block
        (lambda: nn.GroupNorm(32, 256), (9, 256, 23, 31)),  # few rows that blocks hold
        (lambda: nn.InstanceNorm2d(24, affine=True), (3, 24, 129, 257)),  # a number for each row
        (lambda: nn.InstanceNorm2d(24, affine=True), (6, 24, 160, 132)),  # held by clusters of blocks, on sm_90
        (lambda: nn.GroupNorm(4, 32), (9, 32, 64, 64)),
        (lambda: nn.LogSoftmax(1), (333, 50_000)),
        (lambda: nn.LayerNorm((3, 131, 129)), (21, 3, 131, 129)),  # weights as large as a row
        (lambda: nn.LayerNorm(768), (1111, 768)),
        (lambda: nn.BatchNorm2d(24), (7, 24, 129, 65)),  # a pass that leaves no sums, in many blocks
        (lambda: nn.BatchNorm1d(136), (40_001, 136)),
        (lambda: nn.Softmax(1), (3, 21, 65, 67)),  # few rows of columns
        (lambda: nn.Softmax(1), (2, 16, 64, 64)),
    ],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else type(value()).__name__,
)
def test_norms_of_images(norm, shape):
    """Rows of all lengths and numbers, and the gradients of their weights."""
    plain = nn.Sequential(norm(), nn.SiLU())
    for parameter in plain.parameters():
        nn.init.normal_(parameter)
    exact, ours = copy.deepcopy(plain).double(), optimize(plain, strict=True)
    x = torch.randn(shape, requires_grad=True)
    y, expected = ours(x), exact(x.double())
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-5)
    g = torch.randn_like(y)
    found = torch.autograd.grad(y, [x, *ours.parameters()], g)
    wanted = torch.autograd.grad(expected, [x, *exact.parameters()], g.double())
    for one, other in zip(found, wanted, strict=True):
        scale = other.abs().max().item()
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-5 * max(scale, 1))


@pytest.mark.parametrize(
    "model, shape",
    [
        (lambda: nn.GroupNorm(8, 64), (4, 64, 65, 64)),
        (lambda: nn.GroupNorm(1, 48), (3, 48, 97, 95)),
        (lambda: nn.InstanceNorm2d(24, affine=True), (3, 24, 129, 130)),
        (lambda: nn.Softmax(1), (3, 33, 65, 67)),
        (lambda: nn.BatchNorm2d(40), (5, 40, 63, 64)),
    ],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else type(value()).__name__,
)
@pytest.mark.parametrize("across", [False, True])
def test_norms_of_channels_last(model, shape, across):
    """Results lie as eager's, row-major for most of these; gradients arrive in either order."""
    plain = nn.Sequential(model(), nn.SiLU())
    for parameter in plain.parameters():
        nn.init.normal_(parameter)
    exact, ours = copy.deepcopy(plain).double(), optimize(plain, strict=True)
    x = torch.randn(shape).to(memory_format=torch.channels_last).requires_grad_()
    y, expected = ours(x), exact(x.double())
    assert y.stride() == plain(x).stride()
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-5)
    g = torch.randn_like(y)
    if across:
        g = g.contiguous(memory_format=torch.channels_last if g.is_contiguous() else torch.contiguous_format)
    found = torch.autograd.grad(y, [x, *ours.parameters()], g)
    wanted = torch.autograd.grad(expected, [x, *exact.parameters()], g.double())
    for one, other in zip(found, wanted, strict=True):
        scale = max(other.abs().max().item(), 1)
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-5 * scale)


# ---- huge tensors ----------------------------------------------------------------------------------------------------


@pytest.mark.big
def test_more_than_2_to_the_31_elements():
    """Values at the ends and around 2^31; the fused result is compared in pieces, so that memory holds out."""
    count = 2**31 + 4099
    x = torch.empty(count, dtype=torch.bfloat16).uniform_(-3, 3)
    fn = lambda x: F.gelu(x * 2) + 1  # noqa: E731
    y = optimize(fn, strict=True)(x)
    for start in (0, 2**30, 2**31 - 2048, 2**31, count - 4096):
        piece = slice(start, start + 4096)
        torch.testing.assert_close(y[piece], fn(x[piece]))
    assert (y == 0).sum(dtype=torch.int64) < count // 4  # nothing was left unwritten in between


@pytest.mark.big
@pytest.mark.parametrize("rows, columns", [(2**16 + 1, 2**15 + 64), (3, 2**30)], ids=str)
def test_rows_beyond_2_to_the_31(rows, columns):
    x = torch.empty(rows, columns, dtype=torch.bfloat16).uniform_(-3, 3).requires_grad_()
    fn = lambda x: (x * 2).softmax(1) if columns < 2**20 else (x * 2).sum(1)  # noqa: E731
    y = optimize(fn, strict=True)(x)
    gradient = x.detach() if y.shape == x.shape else torch.ones_like(y)
    y.backward(gradient)
    for row in (0, rows // 2, rows - 1):
        piece = x[row : row + 1].detach().requires_grad_()
        want = fn(piece)
        torch.testing.assert_close(y[row : row + 1], want, rtol=2e-2, atol=1e-6)
        want.backward(gradient[row : row + 1])
        torch.testing.assert_close(x.grad[row : row + 1], piece.grad, rtol=5e-2, atol=1e-5)


# ---- autocast, profiler, errors --------------------------------------------------------------------------------------


def autocast_cases():
    from test_capture_autocast import CASES

    return CASES


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", autocast_cases())
def test_autocast_lists_are_eagers(name, dtype, monkeypatch):
    import test_capture_autocast as cases

    monkeypatch.setattr(cases, "W2", cases.W2.cuda())
    monkeypatch.setattr(cases, "W3", cases.W3.cuda())
    f, x = cases.CASES[name]
    cases.agrees_under_autocast(f, x.cuda().to(dtype), torch.float16)


def test_alternating_autocast():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.SiLU())
    plain = copy.deepcopy(model)
    optimize(model, strict=True)
    x = torch.randn(32, 6)
    for enabled in (True, False, True, False):
        results = []
        for m in (model, plain):
            with torch.autocast("cuda", torch.float16, enabled=enabled):
                y = m(x)
            m.zero_grad()
            y.float().square().sum().backward()
            results.append((y, m[0].weight.grad, m[1].weight.grad))
        assert results[0][0].dtype is results[1][0].dtype
        torch.testing.assert_close(*results, rtol=0.05, atol=0.05)


def test_kernels_carry_their_names():
    x, m = torch.randn(64, 256, requires_grad=True), torch.randn(256)
    ours = optimize(normed, strict=True)
    ours(x, m).sum().backward()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        ours(x, m).sum().backward()
        torch.cuda.synchronize()
    names = {event.name for event in profile.events()}
    assert any(name.startswith("fw_") and "group_norm" in name for name in names), sorted(names)
    assert any(name.endswith("_backward") and name.startswith("normed") for name in names), sorted(names)


@pytest.mark.parametrize("shape", [(64, 256), (1 << 16, 64), (8, 64, 32, 32)], ids=str)
def test_running_statistics_have_no_launches_of_their_own(shape):
    norm = nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d
    # Where all variants are there by the second call, it would time them, and what PyTorch does instead.
    model = optimize(nn.Sequential(norm(shape[1]), nn.SiLU()), strict=True, tune=False)
    x = torch.randn(shape, requires_grad=True)
    model(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        model(x)
        torch.cuda.synchronize()
    launched = [e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    assert launched and all("fw_" in name for name in launched), launched
    assert int(model[0].num_batches_tracked) == 2


def test_out_of_memory_is_pytorchs_own():
    """The allocator is PyTorch's, and so is its exception; afterwards the model still runs."""
    ours = optimize(lambda x: torch.tanh(x * 2), strict=True)
    x = torch.randn(2, 2**20)
    expected = ours(x)
    huge = torch.zeros(2**24).expand(64, -1)
    ours(huge[:3])
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + 2**28) / total))
    try:
        with pytest.raises(torch.OutOfMemoryError):
            ours(huge)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(ours(x), expected)


def test_launch_errors_name_the_kernel():
    launch = getattr(fusewright._core, "test_launch_error", None)
    if launch is None:
        pytest.skip("the extension has no way to make one; tests/runtime does, with a driver of its own")
    with pytest.raises(RuntimeError, match="fw_.*blocks"):
        launch()


def test_opcheck():
    """Schema, fake kernel and autograd of the operator, on this device."""
    from fusewright.capture.backend import Session, Stop
    from fusewright.capture.capture import capture

    session = Session("op", record=True)
    x, m = torch.randn(8, 16, requires_grad=True), torch.randn(16, requires_grad=True)
    with contextlib.suppress(Stop):
        capture(chain, session, None)(x, m)
    (region,) = session.captured[0].regions
    order = [x if node.meta["val"].shape == x.shape else m for node in region.imported.inputs]
    utils = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(torch.ops.fusewright.run.default, (region.compiled.handle, order, []), test_utils=utils)
