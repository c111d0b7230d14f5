"""Emitted files on a GPU: built by nvcc, against float64, with other sizes, streams and no gradients."""

import copy
import functools
import shutil
import time

import pytest
import torch
from test_models import PATHS, TF32_ERROR, assert_right

from fusewright import models
from fusewright.emit import emit
from fusewright.emit.measuring import measured
from fusewright.judge.oracle import judge_step

names = pytest.mark.parametrize("name", PATHS)


@functools.cache
def written(name, backend):
    """The model's file, its text, and ModelNew; kernels are built when it first runs."""
    if backend == "cuda" and shutil.which("nvcc") is None:
        pytest.skip("no nvcc")
    file = models.load(PATHS[name])
    text, namespace = emit(file, backend=backend).text, {}
    exec(compile(text, name, "exec"), namespace)
    return file, text, namespace["ModelNew"]


def twins(name, device):
    file, _, new = written(name, device.type)
    model = file.build("small", 0, device)
    made = new(*file.get_init_inputs("small")).to(device)
    made.load_state_dict(model.state_dict())
    return file, model, made


@names
def test_against_float64(name, device):
    file, model, made = twins(name, device)
    for training in (True, False):
        for batch in (None, 1, 3):  # None: as it was written for
            (x,) = file.inputs("small", device)
            x = x if batch is None else x[:batch]
            if training and batch == 1 and "batchnorm" in name:
                continue
            twin = [copy.deepcopy(m).train(training) for m in (made, model, model)]
            gradient = torch.randn_like(copy.deepcopy(twin[1])(x).detach())
            assert_right(judge_step(twin[0], twin[1], twin[2].double(), [x], gradient), TF32_ERROR)


@names
def test_inference_on_another_stream(name, device):
    file, model, made = twins(name, device)
    model.eval(), made.eval()
    with torch.no_grad():
        (x,) = file.inputs("small", device)
        expected = model(x)
        if device.type == "cuda":
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                found = made(x)
            torch.cuda.current_stream().wait_stream(stream)
        else:
            found = made(x)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)


def test_build_time_and_measure(device):
    name = "linear_groupnorm_swish_mul_swish"
    file, text, _ = written(name, device.type)
    begin = time.perf_counter()
    lines = measured(file, text, device, "small", 0, True, seconds=0.2)
    assert time.perf_counter() - begin < 120
    assert any(line.startswith("forward: Model ") for line in lines)
    assert any(line.startswith("training step: Model ") for line in lines)


@pytest.mark.cuda
def test_wrong_device_and_type(device):
    _, model, made = twins("linear_groupnorm_swish_mul_swish", device)
    features = model.linear.in_features
    with pytest.raises(RuntimeError, match="was given one on cpu"):
        made.cpu()(torch.randn(4, features, device="cpu"))
    made = made.to(device)
    with pytest.raises(RuntimeError, match="must be of type Float"):
        made.double()(torch.randn(4, features, device=device, dtype=torch.float64))
