"""The four showcase models become the expected kernels, forward and backward, and other sizes cost none."""

import pytest
import showcase
import torch
from check import check
from showcase import BATCH_NORM, CONV, CONV_TRANSPOSE, GROUP_NORM
from torch import nn

import fusewright
from fusewright import explain, optimize, stats

pytestmark = pytest.mark.real_core

# Kernels as (phase, schedule, operators); calls of the library; rewrites.
EXPECTED = {
    CONV: (
        [
            ("forward", "pointwise", "conv2d_bias mul leaky_relu gelu"),
            ("backward", "row", "conv2d_bias mul leaky_relu gelu"),
        ],
        ["forward conv", "backward conv_input_grad", "backward conv_weight_grad"],
        [],
    ),
    CONV_TRANSPOSE: (
        [
            ("forward", "window", "conv_transpose3d_bias leaky_relu mul leaky_relu max_pool3d"),
            ("backward", "window_row", "conv_transpose3d_bias leaky_relu mul leaky_relu max_pool3d"),
        ],
        ["forward conv", "backward conv_input_grad", "backward conv_weight_grad"],
        [],
    ),
    BATCH_NORM: (
        [
            ("forward", "column", "batch_norm add div sigmoid mul"),
            # Gradients pass through the addition as they are.
            ("backward", "column", "batch_norm div sigmoid mul"),
            ("backward", "row", "add"),
        ],
        ["forward matmul", "backward matmul", "backward matmul"],
        [
            "shift_cancels_in_norm",
            "norm_is_affine",
            "row_constants_leave_sum",
            "distances_sum_to_zero",
            "common_factor_leaves_terms",
            "term_joins_its_multiple",
        ],
    ),
    GROUP_NORM: (
        [
            ("forward", "row", "linear_bias group_norm sigmoid mul mul sigmoid mul"),
            # A rewrite rule joined the derivative of the first product with that of its sigmoid.
            ("backward", "row", "linear_bias group_norm sigmoid mul sigmoid mul"),
        ],
        ["forward matmul", "backward matmul", "backward matmul"],
        [
            "row_constants_leave_sum",
            "distances_sum_to_zero",
            "common_factor_leaves_terms",
            "term_joins_its_multiple",
        ],
    ),
}


@pytest.mark.parametrize("name", showcase.NAMES)
def test_kernels(name):
    found = explain(showcase.make(name), showcase.inputs(name).requires_grad_())
    kernels, library, rewrites = EXPECTED[name]
    assert [(k.phase, k.schedule, " ".join(k.operators)) for k in found.kernels] == kernels
    assert sorted(f"{call.phase} {call.operator}" for call in found.library) == sorted(library)
    assert found.rewrites == rewrites
    assert found.fallbacks == [] and found.graphs == 1 and len(found.regions) == 1
    assert all(any("forward" not in s and ".py:" in s for s in k.sources) for k in found.kernels)
    stops = {stop["reason"] for stop in found.stops} - {"library_call"}
    assert stops == ({"different_iteration_space"} if name == BATCH_NORM else set())


@pytest.mark.parametrize("name", showcase.NAMES)
def test_evaluation(name):
    with torch.no_grad():
        found = explain(showcase.make(name).eval(), showcase.inputs(name))
    schedule = "pointwise" if name == BATCH_NORM else EXPECTED[name][0][0][1]
    assert [(k.phase, k.schedule) for k in found.kernels] == [("forward", schedule)]
    assert len(found.library) == 1 and not found.fallbacks


@pytest.mark.parametrize("name", showcase.NAMES)
def test_bytes(name):
    """Every large tensor is read and written once: nothing between the operators reaches memory."""
    x = torch.randn(64, *showcase.SIZES[name][0][1:])
    model = showcase.make(name)
    found = explain(model, x)
    seen = {}
    layer = next(m for m in model.modules() if hasattr(m, "weight"))
    layer.register_forward_hook(lambda module, args, y: seen.update(product=y.nbytes))
    seen["result"] = model(x).nbytes
    small = 16 * sum(p.nbytes for p in model.parameters())
    [forward] = [k for k in found.kernels if k.phase == "forward"]
    assert seen["product"] <= forward.bytes_read < seen["product"] + small
    assert (
        seen["result"] <= forward.bytes_written < 1.25 * seen["result"] + small
    )  # a pool keeps its indices, one byte each


@pytest.mark.parametrize("name", showcase.NAMES)
def test_other_sizes_compile_nothing(name):
    """The first call compiles; then batch, space and batch 1 change, forward and backward."""
    model = optimize(showcase.make(name), strict=True)
    compiled = captured = None
    for size in range(len(showcase.SIZES[name])):
        for x in (showcase.inputs(name, size), showcase.inputs(name, size)):
            model(x.requires_grad_()).sum().backward()
            if size == 3:  # by now batch and space have changed, and the batch has been 1
                assert stats()["captures"] <= captured + 3
            if compiled is None:
                # memory_hits: another test of this process may have compiled them; none is needed twice.
                compiled, captured = _kernels_asked_for(), stats()["captures"]
                assert captured == 1 and compiled == len(EXPECTED[name][0])
    # The same kernels: whatever was captured again found every one of them loaded.
    assert stats()["kernels_compiled"] + stats()["cache_hits"] <= compiled
    assert stats()["region_calls"] == 2 * len(showcase.SIZES[name]) and stats()["fallback_calls"] == 0


def _kernels_asked_for():
    counts = stats()
    return counts["kernels_compiled"] + counts["cache_hits"] + counts["memory_hits"]


def test_no_grad_keeps_nothing_for_a_backward():
    model, x = showcase.make(CONV_TRANSPOSE), showcase.inputs(CONV_TRANSPOSE)

    def inside(x):
        with torch.no_grad():
            return model(x)

    with torch.no_grad():
        found = [explain(model, x), explain(inside, x)]
    found += [explain(inside, x), explain(model.requires_grad_(False), x)]
    for explanation in found:
        assert [k.phase for k in explanation.kernels] == ["forward"]
        assert len({k.bytes_written for e in found for k in e.kernels}) == 1  # and no indices of the pool


def test_rewrites_have_switches():
    """A rewrite that is switched off does not happen, and the numbers stay right."""
    # In a process of its own: the switch is read from the environment.
    import os
    import subprocess
    import sys

    code = f"""
import sys; sys.path.insert(0, {str(showcase.Path(showcase.__file__).parent)!r})
import torch, showcase, fusewright
from check import check
model, x = showcase.make(showcase.BATCH_NORM), showcase.inputs(showcase.BATCH_NORM)
check(model, [x], layouts=["contiguous"])
print(fusewright.explain(model, x).rewrites)
"""
    environment = os.environ | {"FUSEWRIGHT_DISABLE": "shift_cancels_in_norm"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == (
        "['norm_is_affine', 'row_constants_leave_sum', 'distances_sum_to_zero', 'common_factor_leaves_terms', "
        "'term_joins_its_multiple']"
    )


def test_explain_of_an_optimised_model_is_that_of_the_model():
    model, x = showcase.make(GROUP_NORM), showcase.inputs(GROUP_NORM)
    before = str(explain(model, x))
    fusewright.optimize(model)(x)
    assert str(explain(model, x)) == before


class Residual(nn.Module):
    """x + f(x), so many times. A block of f is a matrix product between activations, or behind a norm."""

    def __init__(self, blocks, norm):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(blocks))
        self.norms = nn.ModuleList(nn.LayerNorm(64) if norm else nn.Identity() for _ in range(blocks))
        self.after = norm == "after"

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(x + layer(x)) if self.after else x + layer(norm(x))
            x = torch.relu(x) if self.after else x
        return x * 2


@pytest.mark.parametrize("norm", ["before", "after", ""])
def test_residual_streams_cost_the_same_in_every_layer(norm):
    """No kernel computes the layers before its own once more: what is read grows with the layers, not their square."""

    def read(blocks):
        explanation = fusewright.explain(Residual(blocks, norm), torch.randn(512, 64).requires_grad_())
        return [
            sum(kernel.bytes_read for kernel in explanation.kernels if kernel.phase == phase)
            for phase in ("forward", "backward")
        ]

    few, more, many = (read(blocks) for blocks in (3, 6, 9))
    for a, b, c in zip(few, more, many, strict=True):
        assert abs((c - b) - (b - a)) <= 0.1 * (b - a), (few, more, many)


@pytest.mark.parametrize("norm", ["before", "after", ""])
def test_residual_streams_are_right(norm):
    model = Residual(4, norm)
    check(model, [torch.randn(40, 64)], layouts=["contiguous"])
