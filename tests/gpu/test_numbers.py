"""The edges of numbers on the GPU: patterns, ties, extremes, sums, against eager on this device."""

import pytest
from test_numerics import (  # noqa: F401
    test_a_sample_of_all_float32_patterns,
    test_branches_not_taken_do_not_spoil_gradients,
    test_every_pattern,
    test_extrema_share_gradients_among_ties_as_eager_does,
    test_integer_sums_are_exact,
    test_long_sums,
    test_max_pooling,
    test_rounding_to_16_bits,
    test_small_integers_wrap_as_eagers,
    test_softmax_of_extremes,
    test_special_values_in_reductions,
    test_sum_of_many_ones,
    test_variance_of_a_large_offset,
    test_variance_that_overflows,
)

pytestmark = pytest.mark.real_core
