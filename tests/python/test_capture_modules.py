"""optimize, restore and what a user may do with an optimised model."""

import copy
import dataclasses
import gc
import io
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from check import check
from torch import nn

import fusewright
from fusewright import UnsupportedError, is_optimized, optimize, restore, stats
from fusewright.capture import assemble


class Net(nn.Module):
    """A small net with everything that has state."""

    def __init__(self, width=8):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.scale = nn.Parameter(torch.rand(width, 1, 1))

    def forward(self, x):
        return F.gelu(F.leaky_relu(self.norm(self.conv(x)) * self.scale, 0.1))


def images(n=2, size=6):
    return torch.randn(n, 3, size, size)


def test_in_place_and_undone():
    model = Net()
    keys, parameters = list(model.state_dict()), list(model.parameters())
    plain = copy.deepcopy(model)
    assert optimize(model) is model and is_optimized(model)
    x = images()
    torch.testing.assert_close(model(x), plain(x))
    assert stats()["captures"] == 1 and stats()["region_calls"] == 1 and stats()["fallback_calls"] == 0
    assert list(model.state_dict()) == keys and all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert restore(model) is model and not is_optimized(model)
    torch.testing.assert_close(model(x), plain(x))
    assert stats()["region_calls"] == 1


def test_the_oracle():
    check(Net(), [images()])


def test_bare_sequential():
    model = nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(2, 8), nn.SiLU())
    check(model, [torch.randn(4, 8)])


def test_submodule_only():
    model = nn.Sequential(Net(), nn.AdaptiveAvgPool2d(1))
    optimize(model[0])
    model(images())
    assert stats()["region_calls"] == 1 and not is_optimized(model)


def test_function():
    def swish(x, slope=1.0):
        "doc"
        return x * torch.sigmoid(x * slope)

    fast = optimize(swish)
    x = torch.randn(5)
    torch.testing.assert_close(fast(x, slope=2.0), swish(x, slope=2.0))
    assert is_optimized(fast) and not is_optimized(swish) and restore(fast) is swish
    assert fast.__name__ == "swish" and fast.__doc__ == "doc" and stats()["region_calls"] == 1


def test_builtin_and_method():
    x = torch.randn(5)
    torch.testing.assert_close(optimize(torch.tanh)(x), torch.tanh(x))
    model = Net().eval()
    torch.testing.assert_close(optimize(model.forward)(images(1)).shape, model(images(1)).shape)
    assert stats()["region_calls"] == 2


def test_twenty_models_of_one_class():
    models = [optimize(Net()) for _ in range(20)]
    for size in (5, 6, 7):
        for model in models:
            model(images(size=size))
    assert stats()["region_calls"] == 60 and stats()["fallback_calls"] == 0


def test_a_deleted_model_takes_its_regions_along():
    """Dynamo keeps captures on a code object, where no garbage is looked for."""

    def regions():
        gc.collect()  # the model
        gc.collect()  # what it let go of
        return sum(type(thing) is assemble.Region for thing in gc.get_objects())

    before = regions()
    model, x = optimize(Net().eval()), images(2)
    model(x)
    loss = model.train()(x).square().mean()
    assert regions() == before + 2
    del model
    loss.backward()
    assert regions() == before


def test_optimising_twice_is_optimising_once():
    model = optimize(optimize(Net()))
    model(images())
    assert stats()["captures"] == 1
    assert not is_optimized(restore(model))


@pytest.mark.parametrize("what", [3, None, "model", nn.Linear, torch.zeros(2)], ids=str)
def test_no_module(what):
    with pytest.raises(TypeError, match="optimize: expected a torch.nn.Module or a function"):
        optimize(what)


def test_copies_are_plain_models():
    model = optimize(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    x = torch.randn(2, 4)
    y = model(x)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)):
        assert not is_optimized(twin) and is_optimized(model)
        torch.testing.assert_close(twin(x), y)
    assert stats()["region_calls"] == 1
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    twin = optimize(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    twin.load_state_dict(torch.load(file))
    torch.testing.assert_close(twin(x), y)


def test_load_state_dict_and_optimizer_steps_are_seen():
    torch.manual_seed(3)
    model, plain = Net(), Net()
    plain.load_state_dict(model.state_dict())
    optimize(model)
    pairs = [(m, torch.optim.SGD(m.parameters(), lr=0.1)) for m in (model, plain)]
    for _ in range(5):
        x, losses = images(), []
        for m, optimizer in pairs:
            optimizer.zero_grad()
            loss = m(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses)
    torch.testing.assert_close(model.state_dict(), plain.state_dict())
    assert stats()["captures"] == 1


@dataclasses.dataclass
class Result:
    value: torch.Tensor
    count: int
    extra: dict


class Structured(nn.Module):
    def forward(self, x, *, scale=2.0, skip=None):
        y = torch.relu(x) * scale
        return {"y": y, "pair": (y + 1, None), "n": x.shape[0], "list": [y.sum(), "text"], "skip": skip}


class WithDataclass(nn.Module):
    def forward(self, x):
        y = torch.relu(x) * 2
        return Result(y, x.shape[0], {"sum": y.sum()})


def test_structured_outputs():
    model, x = optimize(Structured()), torch.randn(3, 4)
    result, expected = model(x, scale=3.0), Structured()(x, scale=3.0)
    assert result.keys() == expected.keys() and result["n"] == 3 and result["skip"] is None
    assert result["pair"][1] is None and result["list"][1] == "text"
    torch.testing.assert_close(result["pair"][0], expected["pair"][0])
    result = optimize(WithDataclass())(x)
    assert isinstance(result, Result) and result.count == 3
    torch.testing.assert_close(result.extra["sum"], WithDataclass()(x).extra["sum"])
    assert stats()["region_calls"] >= 2 and stats()["fallback_calls"] == 0


MODES = {
    "batch 1": lambda m: m(images(1)),
    "other sizes": lambda m: m(images(5, 9)),
    "again": lambda m: m(images(3, 7)),
    "eval": lambda m: m.eval()(images()),
    "train": lambda m: m.train()(images()),
    "no_grad": torch.no_grad()(lambda m: m(images())),
    "inference_mode": torch.inference_mode()(lambda m: m(images())),
    "channels_last": lambda m: m(images().contiguous(memory_format=torch.channels_last)),
    "autocast": torch.autocast("cpu", torch.bfloat16)(lambda m: m(images())),
    "frozen": lambda m: m.requires_grad_(False)(images()),
    "thawed": lambda m: m.requires_grad_(True)(images()),
    "double": lambda m: m.double()(images().double()),
    "bfloat16": lambda m: m.bfloat16()(images().bfloat16()),
}


def test_one_model_through_every_mode():
    model = Net()
    plain = copy.deepcopy(model)
    optimize(model, strict=True)
    for name, call in MODES.items():
        before = stats()
        results = []
        for m in (model, plain):
            torch.manual_seed(5)
            results.append(call(m))
        ours, eager = results
        assert stats()["region_calls"] == before["region_calls"] + 1, name
        assert ours.dtype is eager.dtype and ours.requires_grad == eager.requires_grad, name
        assert ours.stride() == eager.stride(), name
        low = name in ("autocast", "bfloat16")  # a rounding to 16 bits may fall the other way
        torch.testing.assert_close(ours, eager, atol=0.1 if low else 1e-5, rtol=0.05 if low else 1e-4, msg=name)
        torch.testing.assert_close(dict(model.named_buffers()), dict(plain.named_buffers()), atol=1e-2, rtol=1e-2)
    assert stats()["fallback_calls"] == 0


def test_state_follows_eager_over_train_and_eval():
    model = Net()
    plain = copy.deepcopy(model)
    optimize(model)
    for train in (True, False, True, True, False):
        x = images()
        torch.testing.assert_close(model.train(train)(x), plain.train(train)(x))
        torch.testing.assert_close(dict(model.named_buffers()), dict(plain.named_buffers()))


def test_frozen_parameters_get_no_gradient():
    model = optimize(Net())
    model.conv.weight.requires_grad_(False)
    model(images()).sum().backward()
    assert model.conv.weight.grad is None and model.scale.grad is not None


def test_shared_parameters():
    layer = nn.Linear(6, 6)
    check(nn.Sequential(layer, nn.Tanh(), layer, nn.SiLU()), [torch.randn(3, 6)], layouts=["contiguous"])


def test_the_same_tensor_twice():
    x = torch.randn(4, 4, requires_grad=True)
    f = lambda a, b: torch.sigmoid(a) * b  # noqa: E731
    optimize(f)(x, x).sum().backward()
    ours, x.grad = x.grad, None
    f(x, x).sum().backward()
    torch.testing.assert_close(ours, x.grad)


@pytest.mark.parametrize("n", [0, 1])
def test_empty_and_single_batches(n):
    check(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()), [torch.randn(n, 4)], layouts=["contiguous"])


def test_many_threads_at_the_first_call():
    model = optimize(Net().eval())
    x = images()
    expected, results = restore(copy.deepcopy(model))(x), [None] * 8

    def call(i):
        results[i] = model(x)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        torch.testing.assert_close(result, expected)


def test_torch_compile_backend():
    from fusewright.capture.backend import fusewright_backend

    model = Net().eval()
    x = images()
    torch.testing.assert_close(torch.compile(model, backend=fusewright_backend)(x), model(x))
    assert stats()["captures"] == 1 and stats()["region_calls"] == 1
    strict = torch.compile(lambda x: torch.sort(x)[0], backend=fusewright_backend, options={"strict": True})
    with pytest.raises(Exception, match="aten.sort") as caught:
        strict(x)
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), UnsupportedError)


@pytest.mark.real_core
@pytest.mark.skipif("fusewright" not in torch._dynamo.list_backends(), reason="the package is not installed")
def test_torch_compile_backend_by_name():
    model = Net().eval()
    x = images()
    torch.testing.assert_close(torch.compile(model, backend="fusewright")(x), model(x))
    assert fusewright.stats()["region_calls"] == 1
