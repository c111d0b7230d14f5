"""The four models of examples/showcase at sizes for tests: how each is made, and inputs for it."""

import importlib.util
from pathlib import Path

import torch

FOLDER = Path(__file__).parents[2] / "examples" / "showcase"
CONV, CONV_TRANSPOSE, BATCH_NORM, GROUP_NORM = NAMES = (
    "conv2d_mul_leakyrelu_gelu",
    "convtranspose3d_leakyrelu_mul_leakyrelu_maxpool",
    "linear_batchnorm_bias_divide_swish",
    "linear_groupnorm_swish_mul_swish",
)
ARGUMENTS = {
    CONV: (3, 5, 3, (5, 1, 1)),
    CONV_TRANSPOSE: (3, 5, 3, 2, 1, 1, (5, 1, 1, 1)),
    BATCH_NORM: (7, 12),
    GROUP_NORM: (7, 12, 4, (12,)),
}
# A first size, then others: batch and space, odd and prime.
SIZES = {
    CONV: [(4, 3, 9, 8), (7, 3, 9, 8), (4, 3, 13, 11), (1, 3, 9, 8), (1, 3, 33, 3), (31, 3, 5, 5)],
    CONV_TRANSPOSE: [
        (4, 3, 3, 4, 5),
        (7, 3, 3, 4, 5),
        (4, 3, 5, 3, 7),
        (1, 3, 3, 4, 5),
        (1, 3, 1, 1, 1),
        (3, 3, 2, 5, 3),
    ],
    BATCH_NORM: [(6, 7), (31, 7), (33, 7), (2, 7), (1025, 7), (127, 7)],
    GROUP_NORM: [(6, 7), (31, 7), (33, 7), (1, 7), (1025, 7), (127, 7)],
}


def load(name):
    """The file as users of such files load it: by path, unknown to sys.modules."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make(name, *arguments):
    """The model, its norm's parameters and statistics away from 0 and 1."""
    model = load(name).Model(*(arguments or ARGUMENTS[name]))
    with torch.no_grad():
        for key, tensor in (*model.named_parameters(), *model.named_buffers()):
            if "norm" in key and tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape) + 0.5)
    return model


def inputs(name, size=0):
    return torch.randn(SIZES[name][size])
