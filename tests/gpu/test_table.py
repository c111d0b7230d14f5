"""The tests of tests/python whose subject is numbers, on the GPU: the same tables, the same oracle."""

import copy

import pytest
import torch
from check import check
from test_layouts import (  # noqa: F401
    test_awkward_sizes,
    test_batch_of_none,
    test_empty,
    test_incoming_gradients_of_any_layout,
    test_layouts,
    test_layouts_of_images,
    test_output_strides_of_mixed_operands,
    test_rank_0_and_1,
    test_storage_offset_and_negative_free_views,
    test_the_layout_of_gradients,
    test_undefined_gradients,
)
from test_operators import (  # noqa: F401
    ENTRIES,
    in_dtype,
    test_operation,
    test_other_dtypes,
    test_unary_in_other_dtypes,
)
from test_showcase import (  # noqa: F401
    test_against_float64,
    test_bfloat16,
    test_channels_last,
    test_multipliers,
)

pytestmark = pytest.mark.real_core


@pytest.mark.parametrize(
    "name", "div sum amax max_pool avg_pool linear softmax group_norm layer_norm batch_norm".split()
)
def test_float16(name):
    fn, inputs = ENTRIES[name]
    fn = copy.deepcopy(fn).half() if isinstance(fn, torch.nn.Module) else fn
    check(fn, in_dtype(inputs(), torch.float16), layouts=["contiguous"])
