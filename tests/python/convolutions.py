"""Random convolutions that our own kernels compute, against float64. Shared by the emulator's tests and the GPU's."""

import random

import torch
import torch.nn.functional as F

import fusewright
from fusewright import optimize, stats


def draw(rng, longest, batches, channels):
    """A convolution of random geometry: the function's name, the sizes of image and weight, its options."""
    rank = rng.choice([1, 2, 2, 2, 3])
    transposed = rng.random() < 0.4
    groups = rng.choice([1, 1, 1, 2, 3])
    per_group = [rng.choice(channels) for _ in range(2)]
    kernel = [rng.choice([1, 2, 3, 3, 4, 5]) for _ in range(rank)]
    options = {
        "stride": [rng.choice([1, 1, 2, 3]) for _ in range(rank)],
        "padding": [rng.randrange(0, k) for k in kernel],
        "dilation": [rng.choice([1, 1, 2]) for _ in range(rank)],
        "groups": groups,
    }
    space = [rng.randrange(9, longest[rank]) for _ in range(rank)]
    if transposed:
        reach = [max(s, d) for s, d in zip(options["stride"], options["dilation"], strict=True)]
        options["output_padding"] = [rng.randrange(0, r) for r in reach]
        weight = [per_group[0] * groups, per_group[1], *kernel]
    else:
        weight = [per_group[1] * groups, per_group[0], *kernel]
    image = [rng.choice(batches), per_group[0] * groups, *space]
    return f"conv{'_transpose' if transposed else ''}{rank}d", image, weight, options


def error(x, exact):
    return ((x.double() - exact).norm() / exact.norm()).item()


def check_convolution(seed, device, longest=None, batches=(1, 2, 5, 17), channels=(1, 3, 4, 8, 13, 16, 40, 64)):
    """The result and all gradients of a drawn convolution are ours, and within twice eager's error."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    name, image, weight, options = draw(rng, longest or {1: 300, 2: 40, 3: 14}, batches, channels)
    convolution = getattr(F, name)
    dtype = rng.choice([torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16])
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(image))
    x = torch.randn(image, device=device, dtype=dtype)
    if form is not None and rng.random() < 0.4:
        x = x.to(memory_format=form)
    w = torch.randn(weight, device=device, dtype=dtype) / 4
    b = torch.randn(weight[1] * options["groups"] if "transpose" in name else weight[0], device=device, dtype=dtype)
    inputs = [t.requires_grad_() for t in (x, w, b)]

    def model(x, w, b):
        return convolution(x, w, b, **options) * 1.5

    dy = torch.randn(model(*inputs).shape, device=device, dtype=dtype)

    def run(function, given):
        result = function(*given)
        return [result, *torch.autograd.grad(result, given, dy.to(result.dtype))]

    optimised = optimize(model, tune=False, strict=True)
    run(optimised, inputs)
    fusewright._core.finish_compiling()
    before = stats()["convolutions"]
    ours = run(optimised, inputs)
    assert stats()["convolutions"] == before + 3
    exact = run(model, [t.detach().double().requires_grad_() for t in inputs])
    eager = run(model, inputs)
    floor = 6e-4 if dtype == torch.float32 else 4e-3  # of operands with 11 bits, or 8
    for which, ours_, exact_, eager_ in zip(("y", "dx", "dw", "db"), ours, exact, eager, strict=True):
        assert ours_.shape == eager_.shape
        bound = max(2 * error(eager_, exact_), floor)
        assert error(ours_, exact_) <= bound, (which, name, image, weight, options, dtype)
