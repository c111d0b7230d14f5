"""Three models as people train them: ResNet-50, six layers of BERT, a U-Net with GroupNorm. Random weights.

torchvision's and transformers' own where these are installed, else the same layers written here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

# ---- ResNet-50 -------------------------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.downsample = None
        if stride != 1 or inputs != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


class ResNet(nn.Sequential):
    def __init__(self, blocks: tuple[int, ...] = (3, 4, 6, 3)):
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        ]  # fmt: skip
        inputs = 64
        for stage, count in enumerate(blocks):
            for block in range(count):
                layers.append(Bottleneck(inputs, 64 << stage, 2 if stage and not block else 1))
                inputs = 4 * (64 << stage)
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def resnet50(tiny: bool) -> tuple[nn.Module, str]:
    if tiny:
        return ResNet((1, 1)), "bench/real_models.py"
    try:
        import torchvision
    except ImportError:
        return ResNet(), "bench/real_models.py"
    return torchvision.models.resnet50(), f"torchvision {torchvision.__version__}"


# ---- BERT ------------------------------------------------------------------------------------------------------------


class BertLayer(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.dense = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = [f(x).view(batch, length, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value)]
        attended = F.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(batch, length, width)
        x = self.norm1(self.dense(attended) + x)
        return self.norm2(self.narrow(F.gelu(self.wide(x))) + x)


class Bert(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, words: int, positions: int):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(positions, width)
        self.norm = nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList(BertLayer(width, heads) for _ in range(layers))

    def forward(self, ids):
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x)
        return x


class LastHiddenState(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(ids).last_hidden_state


def bert(tiny: bool) -> tuple[nn.Module, str]:
    layers, width, heads, words = (1, 32, 2, 100) if tiny else (6, 768, 12, 30522)
    try:
        import transformers
    except ImportError:
        return Bert(layers, width, heads, words, 512), "bench/real_models.py"
    config = transformers.BertConfig(
        vocab_size=words, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.BertModel(config, add_pooling_layer=False)
    return LastHiddenState(model), f"transformers {transformers.__version__}"


# ---- U-Net -----------------------------------------------------------------------------------------------------------


def twice(inputs: int, outputs: int, groups: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.GroupNorm(groups, outputs), nn.SiLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, width: int, depth: int, groups: int):
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(twice(i, o, groups) for i, o in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(wide, narrow, 2, stride=2) for narrow, wide in zip(widths, widths[1:], strict=False)
        )
        self.joined = nn.ModuleList(twice(2 * narrow, narrow, groups) for narrow in widths[:-1])
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        kept = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for level in reversed(range(len(self.up))):
            x = self.joined[level](torch.cat([kept[level], self.up[level](x)], 1))
        return self.last(x)


def unet(tiny: bool) -> tuple[nn.Module, str]:
    return UNet(*((4, 2, 2) if tiny else (64, 4, 8))), "bench/real_models.py"


# ---- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RealModel:
    make: Callable[[bool], tuple[nn.Module, str]]  # of whether it is tiny: the model, and whose code it is
    shape: tuple[int, ...]
    tiny: tuple[int, ...]
    words: int = 0  # the input is of integers below; 0: of normal numbers


REAL = {
    "resnet50": RealModel(resnet50, (64, 3, 224, 224), (2, 3, 32, 32)),
    "bert": RealModel(bert, (16, 256), (2, 8), 100),
    "unet": RealModel(unet, (8, 3, 256, 256), (2, 3, 16, 16)),
}
