"""Sixty models that nobody chose: 30 with a convolution, 10 with a linear layer of a round size, and 20 with one of any
size, drawn by a seed.

    python bench/model_list.py           prints the list, which stands in bench/results/gpu_models_list.txt

A row is a contraction with what models put around it: pointwise chains, norms, pooling, reductions, softmax. Sizes are
drawn too; the batch follows from a rough estimate of what a training step costs eager on an H200, so that a step takes
some milliseconds and little of the device's memory. The estimate decides nothing else.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

SEED = 26
CONVOLUTIONS = ("Conv2d", "ConvTranspose2d", "Conv3d", "Conv2d", "ConvTranspose3d", "ConvTranspose2d")  # in turns
CONVOLUTION_MODELS, LINEAR_MODELS, PRODUCT_MODELS = 30, 10, 20
STEP_SECONDS = (2e-3, 16e-3)  # what the estimate is aimed at
MOST_BYTES = 6e9  # of all layers' results together
BANDWIDTH, ARITHMETIC = 3.5e12, {"2d": 80e12, "3d": 30e12, "ar": 40e12}  # of the estimate, by the layer's last letters

# ---- layers that torch.nn does not have ------------------------------------------------------------------------------


class Pointwise(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor], *numbers: float):
        super().__init__()
        self.function, self.numbers = function, numbers

    def forward(self, x):
        return self.function(x, *self.numbers)


class ByParameter(nn.Module):
    """x with a parameter: a number for each channel, or one for all."""

    def __init__(self, function: Callable[..., torch.Tensor], *sizes: int):
        super().__init__()
        self.function = function
        self.parameter = nn.Parameter(torch.randn(sizes) * 0.5 + 1)

    def forward(self, x):
        return self.function(x, self.parameter)


class PoolFeatures(nn.Module):
    def __init__(self, pool: nn.Module):
        super().__init__()
        self.pool = pool

    def forward(self, x):
        return self.pool(x.unsqueeze(1)).squeeze(1)


def swish(x):
    return x * torch.sigmoid(x)


def min_with_scalar_tensor(x, number):
    return torch.min(x, torch.tensor(number))  # on the CPU, as users write it


def max_with_scalar_tensor(x, number):
    return torch.max(x, torch.tensor(number))


def gate(x):
    return x * torch.sigmoid(x.mean(tuple(range(2, x.dim())), keepdim=True))


def pointwise(function: Callable[..., torch.Tensor]) -> Callable[..., nn.Module]:
    return lambda *numbers: Pointwise(function, *numbers)


def by_channel(function: Callable[..., torch.Tensor]) -> Callable[..., nn.Module]:
    return lambda channels, axes: ByParameter(function, channels, *[1] * axes)


LAYERS: dict[str, Callable[..., nn.Module]] = {
    **{name: getattr(nn, name) for name in (
        "Linear", "ReLU", "LeakyReLU", "GELU", "SiLU", "Mish", "Hardswish", "Hardtanh", "Tanh", "Sigmoid", "Softplus",
        "ELU", "GroupNorm", "LayerNorm", "BatchNorm1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d",
        *(f"{kind}{axes}d" for axes in (2, 3)
          for kind in ("Conv", "ConvTranspose", "BatchNorm", "InstanceNorm", "MaxPool", "AvgPool")),
    )},
    "Swish": pointwise(swish),
    "Add": pointwise(torch.add),
    "Subtract": pointwise(torch.sub),
    "Multiply": pointwise(torch.mul),
    "Divide": pointwise(torch.div),
    "Clamp": pointwise(torch.clamp),
    "MinWithScalarTensor": pointwise(min_with_scalar_tensor),
    "MaxWithScalarTensor": pointwise(max_with_scalar_tensor),
    "AddItsTanh": pointwise(lambda x: x + torch.tanh(x)),
    "Gate": pointwise(gate),
    "ScaleChannels": by_channel(torch.mul),
    "AddToChannels": by_channel(torch.add),
    "ScaleByParameter": lambda: ByParameter(torch.mul),
    "MinOverChannels": pointwise(lambda x: torch.min(x, dim=1, keepdim=True).values),
    "MaxOverChannels": pointwise(lambda x: torch.max(x, dim=1, keepdim=True).values),
    "SumOverChannels": pointwise(lambda x: torch.sum(x, dim=1, keepdim=True)),
    "MeanOverChannels": pointwise(lambda x: torch.mean(x, dim=1, keepdim=True)),
    "LogSumExpOverChannels": pointwise(lambda x: torch.logsumexp(x, dim=1, keepdim=True)),
    "SoftmaxOverChannels": pointwise(lambda x: F.softmax(x, dim=1)),
    "AvgPoolFeatures": lambda size: PoolFeatures(nn.AvgPool1d(size)),
    "MaxPoolFeatures": lambda size: PoolFeatures(nn.MaxPool1d(size)),
}  # fmt: skip


@dataclass(frozen=True)
class Layer:
    name: str
    arguments: tuple = ()
    options: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        shown = [*(f"{a:g}" if isinstance(a, float) else str(a) for a in self.arguments)]
        return f"{self.name}({', '.join(shown + [f'{key}={value}' for key, value in self.options])})"

    def build(self) -> nn.Module:
        return LAYERS[self.name](*self.arguments, **dict(self.options))


@dataclass(frozen=True)
class Model:
    name: str
    layers: tuple[Layer, ...]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}  {'x'.join(map(str, self.shape))}: {' -> '.join(map(str, self.layers))}"

    def build(self) -> nn.Module:
        """With parameters of its own seed, which is its name."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(self.name[-2:]))
            return nn.Sequential(*(layer.build() for layer in self.layers))

    def small_batch(self) -> Model:
        """Which float64 can be asked about."""
        return replace(self, shape=(min(self.shape[0], 64 if len(self.shape) == 2 else 2), *self.shape[1:]))


# ---- what is drawn ---------------------------------------------------------------------------------------------------


class Draw:
    """Choices by a seed: one random number for each, so that what was chosen before decides nothing but itself."""

    def __init__(self, seed: str, tiny: bool):
        self.random = random.Random(seed)
        self.tiny = tiny

    def one(self, options: Sequence):
        return options[int(self.random.random() * len(options))]

    def weighted(self, options: dict[object, float]):
        at = self.random.random() * sum(options.values())
        for value, weight in options.items():
            at -= weight
            if at < 0:
                return value
        return value

    def number(self, low: float, high: float) -> float:
        return round(low + (high - low) * self.random.random(), 2)

    def channels(self, options: Sequence[int]) -> int:
        chosen = self.one(options)
        return min(chosen, 3 + chosen // 32) if self.tiny else chosen

    def groups_of(self, channels: int) -> int:
        return math.gcd(channels, self.one((4, 8, 16, 32)))


ACTIVATIONS = ("ReLU", "LeakyReLU", "GELU", "SiLU", "Swish", "Mish", "Hardswish", "Hardtanh", "Tanh", "Sigmoid",
               "Softplus", "ELU")  # fmt: skip


def activation(draw: Draw) -> Layer:
    name = draw.one(ACTIVATIONS)
    slope = draw.number(0.01, 0.3)
    return Layer(name, (slope,) if name == "LeakyReLU" else ())


def arithmetic(draw: Draw, channels: int, axes: int) -> Layer:
    """With a number, a 0-d tensor, or a parameter of the channels."""
    name = draw.one((
        "Add", "Subtract", "Multiply", "Divide", "Clamp", "MinWithScalarTensor", "MaxWithScalarTensor", "ScaleChannels",
        "AddToChannels", "ScaleByParameter", "AddItsTanh",
    ))  # fmt: skip
    number = draw.number(0.3, 2.5)
    if name in ("ScaleChannels", "AddToChannels"):
        return Layer(name, (channels, axes))
    if name in ("ScaleByParameter", "AddItsTanh"):
        return Layer(name)
    return Layer(name, (-number, number) if name == "Clamp" else (number,))


def some_pointwise(draw: Draw, channels: int, axes: int, most: int) -> list[Layer]:
    count = draw.one(range(most + 1))
    return [activation(draw) if draw.one((0, 1)) else arithmetic(draw, channels, axes) for _ in range(count)]


REDUCTIONS = ("MinOverChannels", "MaxOverChannels", "SumOverChannels", "MeanOverChannels", "LogSumExpOverChannels")


def convolution(draw: Draw, kind: str) -> tuple[Layer, int, int, int]:
    """The layer, its channels in and out, and the extent of its input along each axis."""
    volume, transposed = kind.endswith("3d"), "Transpose" in kind
    channels = (3, 8, 16, 32, 48, 64, 96, 128) if volume else (3, 16, 32, 64, 96, 128, 192, 256, 384, 512)
    inputs, outputs = draw.channels(channels), draw.channels(channels[1:])
    if transposed:
        inputs = max(inputs, channels[2] if not draw.tiny else inputs)
    kernel = draw.weighted({1: 1, 2: 1, 3: 5, 4: 2, 5: 2, 7: 0 if volume else 1.5})
    stride = draw.weighted({1: 1, 2: 3, 3: 0.3} if transposed else {1: 4, 2: 1.5, 3: 0.3})
    stride = min(stride, kernel)
    padding = draw.one(range(kernel // 2 + 1))
    bias, depthwise = draw.random.random() < 0.8, draw.random.random() < 0.1
    options = {"stride": stride, "padding": padding}
    if transposed and stride > 1 and draw.one((0, 1)):
        options["output_padding"] = 1
    if depthwise and not transposed:
        outputs = inputs
        options["groups"] = inputs
    if not bias:
        options["bias"] = False
    extents = (8, 12, 16, 24, 32) if volume else (16, 28, 32, 56, 64, 112, 128)
    if not transposed:
        extents = extents[1:] + ((48, 64) if volume else (224, 256))
    extent = min(draw.one(extents), 6 + kernel if draw.tiny else 1 << 20)
    options = {key: value for key, value in options.items() if (key, value) not in (("stride", 1), ("padding", 0))}
    return Layer(kind, (inputs, outputs, kernel), tuple(options.items())), inputs, outputs, extent


def norm(draw: Draw, channels: int, axes: int) -> Layer:
    kind = draw.weighted({"GroupNorm": 3, f"BatchNorm{axes}d": 2, f"InstanceNorm{axes}d": 1.5})
    groups, affine = draw.groups_of(channels), draw.one((True, True, False))
    if kind == "GroupNorm":
        return Layer(kind, (groups, channels))
    if kind.startswith("Instance"):
        return Layer(kind, (channels,), (("affine", True),) if affine else ())
    return Layer(kind, (channels,))


def convolution_model(draw: Draw, name: str, kind: str) -> Model:
    axes = int(kind[-2])
    contraction, inputs, channels, extent = convolution(draw, kind)
    layers = [contraction, *some_pointwise(draw, channels, axes, 2)]
    core = draw.weighted({"norm": 4, "reduction": 2.5, "softmax": 1.2, "gate": 0.6, "none": 1.2})
    if core == "norm":
        layers += [norm(draw, channels, axes), activation(draw)]
    elif core == "reduction":
        layers.append(Layer(draw.one(REDUCTIONS)))
        channels = 1
    elif core == "softmax":
        layers.append(Layer("SoftmaxOverChannels"))
    elif core == "gate":
        layers.append(Layer("Gate"))
    layers += some_pointwise(draw, channels, axes, 3 if core == "none" else 2)
    end = draw.weighted(
        {"pool": 3, "global": 1.5, "reduction": 1.5 if core in ("norm", "gate", "none") else 0, "none": 2}
    )
    if end == "pool":
        layers.append(Layer(draw.one((f"MaxPool{axes}d", f"AvgPool{axes}d")), (draw.one((2, 2, 3)),)))
        if draw.one((0, 0, 1)):
            layers.append(Layer(f"AvgPool{axes}d", (2,)))
    elif end == "global":
        layers.append(Layer(f"AdaptiveAvgPool{axes}d", (1,)))
    elif end == "reduction":
        layers.append(Layer(draw.one(REDUCTIONS)))
        channels = 1
    layers += some_pointwise(draw, channels, axes, 1)
    if len(layers) < 3:
        layers.append(activation(draw))
    return fitted(draw, Model(name, tuple(layers), (2, inputs, *[extent] * axes)))


FEATURES = (512, 1024, 2048, 4096, 8192)


def linear_model(draw: Draw, name: str) -> Model:
    inputs, features = draw.channels(FEATURES), draw.channels(FEATURES)
    layers = [Layer("Linear", (inputs, features)), *some_pointwise(draw, features, 0, 2)]
    core = draw.weighted({"norm": 3, "reduction": 2, "softmax": 1, "pool": 1.5, "linear": 1})
    if core == "norm":
        kind = draw.one(("GroupNorm", "BatchNorm1d", "LayerNorm"))
        groups = draw.groups_of(features)
        layers += [Layer(kind, (groups, features) if kind == "GroupNorm" else (features,)), activation(draw)]
    elif core == "reduction":
        layers.append(Layer(draw.one(REDUCTIONS)))
        features = 1
    elif core == "softmax":
        layers.append(Layer("SoftmaxOverChannels"))
    elif core == "pool":
        layers.append(
            Layer(draw.one(("AvgPoolFeatures", "MaxPoolFeatures")), (2 if draw.tiny else draw.one((2, 4, 16)),))
        )
        features //= layers[-1].arguments[0]
    elif core == "linear":
        after = draw.channels(FEATURES)
        layers += [activation(draw), Layer("Linear", (features, after))]
        features = after
    layers += some_pointwise(draw, features, 0, 3)
    if core in ("norm", "pool", "linear") and draw.one((0, 1)):
        layers.append(Layer(draw.one(REDUCTIONS)))
        features = 1
    layers += some_pointwise(draw, features, 0, 1)
    if len(layers) < 3:
        layers.append(activation(draw))
    return fitted(draw, Model(name, tuple(layers), (2, inputs)))


ROWS, WIDTHS = (128, 16384), (512, 16384)
MOST_OPERATIONS = 1.2e12  # of the product, so that eager takes 25 ms at the most


class Residual(nn.Module):
    """Adds its input to its output."""

    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.layers(x)


LAYERS["ResidualLinear"] = lambda width, inner: Residual(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


def product_model(draw: Draw, name: str) -> Model:
    """A linear layer of any size, with what models put behind it."""

    def size(low: int, high: int) -> int:
        drawn = math.exp(math.log(low) + (math.log(high) - math.log(low)) * draw.random.random())
        step = draw.weighted({64: 3, 8: 2, 1: 1})  # most users choose round sizes
        return 5 + round(drawn) % 29 if draw.tiny else max(low, round(drawn / step) * step)

    rows, inputs, features = size(*ROWS), size(*WIDTHS), size(*WIDTHS)
    while rows > ROWS[0] and 2 * rows * inputs * features > MOST_OPERATIONS:
        rows //= 2
    layers = [Layer("Linear", (inputs, features), () if draw.random.random() < 0.8 else (("bias", False),))]
    layers += some_pointwise(draw, features, 0, 2)
    core = draw.weighted({"norm": 4, "reduction": 1.5, "softmax": 1, "pool": 1, "residual": 1.5, "none": 2})
    if core == "norm":
        kind = draw.one(("GroupNorm", "BatchNorm1d", "LayerNorm"))
        groups = draw.groups_of(features)
        layers += [Layer(kind, (groups, features) if kind == "GroupNorm" else (features,)), activation(draw)]
    elif core == "reduction":
        layers.append(Layer(draw.one(REDUCTIONS)))
        features = 1
    elif core == "softmax":
        layers.append(Layer("SoftmaxOverChannels"))
    elif core == "pool":
        layers.append(
            Layer(draw.one(("AvgPoolFeatures", "MaxPoolFeatures")), (2 if draw.tiny else draw.one((2, 4, 8)),))
        )
        features //= layers[-1].arguments[0]
    elif core == "residual":
        layers.append(Layer("ResidualLinear", (features, max(features // 4, 1))))
    layers += some_pointwise(draw, features, 0, 2)
    if len(layers) < 3:
        layers.append(activation(draw))
    return Model(name, tuple(layers), (rows, inputs))


# ---- how large -------------------------------------------------------------------------------------------------------


def fitted(draw: Draw, model: Model) -> Model:
    """With the batch, and at need smaller images, that make a step take about as long as was drawn."""
    low, high = (math.log(seconds) for seconds in STEP_SECONDS)
    target = math.exp(low + (high - low) * draw.random.random())
    if draw.tiny:
        return replace(model, shape=(3, *model.shape[1:]))
    shape = model.shape
    while True:
        seconds, count = cost(replace(model, shape=shape))
        batch = 2 ** int(math.log2(min(target / seconds, MOST_BYTES / count)))
        if len(shape) == 2:
            return replace(model, shape=(min(max(batch, 64), 65536), *shape[1:]))
        if batch < 8 and shape[-1] > 12:
            extent = shape[-1] * 3 // 4
        elif batch > 256 and shape[-1] < (128 if len(shape) == 4 else 32):
            extent = shape[-1] * 3 // 2
        else:
            return replace(model, shape=(min(max(batch, 4), 256), *shape[1:]))
        shape = (*shape[:2], *[extent] * len(shape[2:]))


def cost(model: Model) -> tuple[float, float]:
    """Roughly: seconds of a training step in eager, and bytes of all layers' results; for one element of the batch."""
    with torch.device("meta"):
        module, x = model.build(), torch.empty(model.shape)
    seconds, count, batch = 0.0, 0.0, model.shape[0]
    for layer in module:
        y = result_on_meta(layer, x)
        seconds += 3 * 4 * (x.numel() + y.numel()) / BANDWIDTH
        if isinstance(layer, nn.Linear) or hasattr(layer, "transposed"):
            of_weight = layer.weight.numel() / layer.weight.shape[0]  # products for each element of one side
            outer = x if getattr(layer, "transposed", False) else y
            seconds += 3 * 2 * outer.numel() * of_weight / ARITHMETIC[type(layer).__name__[-2:]]
        count += 4 * y.numel()
        x = y
    return seconds / batch, count / batch


def result_on_meta(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    if isinstance(layer, Pointwise) and layer.function in (min_with_scalar_tensor, max_with_scalar_tensor):
        return x  # numbers on the CPU go with any device but this one
    return layer(x)


def models(tiny: bool = False, seed: int = SEED) -> list[Model]:
    """All sixty. `tiny`: what they are made of, in sizes for a CPU."""
    found = []
    for number in range(CONVOLUTION_MODELS):
        kind, name = CONVOLUTIONS[number % len(CONVOLUTIONS)], f"conv{number:02}"
        found.append(convolution_model(Draw(f"{seed} {name}", tiny), name, kind))
    for number in range(LINEAR_MODELS):
        name = f"linear{number:02}"
        found.append(linear_model(Draw(f"{seed} {name}", tiny), name))
    for number in range(PRODUCT_MODELS):
        name = f"product{number:02}"
        found.append(product_model(Draw(f"{seed} {name}", tiny), name))
    return found


def listing() -> str:
    return "".join(f"{model}\n" for model in models())


if __name__ == "__main__":
    print(listing(), end="")
