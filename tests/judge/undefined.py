"""Operators whose values are not defined: each with the reason, and what is checked instead."""

from __future__ import annotations

import fnmatch
from typing import NamedTuple

MEMORY = "shape, dtype and strides"  # the values are not compared
AS_EAGER = "as eager from the same seed"  # float64 draws or picks others, so eager's values are the reference


class Undefined(NamedTuple):
    pattern: str
    reason: str
    check: str


UNDEFINED = [
    Undefined("empty", "memory that nobody wrote", MEMORY),
    Undefined("empty_like", "memory that nobody wrote", MEMORY),
    Undefined("empty_strided", "memory that nobody wrote", MEMORY),
    Undefined("empty_permuted", "memory that nobody wrote", MEMORY),
    Undefined("new_empty", "memory that nobody wrote", MEMORY),
    Undefined("new_empty_strided", "memory that nobody wrote", MEMORY),
    Undefined("bernoulli", "random", AS_EAGER),
    Undefined("cauchy", "random", AS_EAGER),
    Undefined("exponential", "random", AS_EAGER),
    Undefined("geometric", "random", AS_EAGER),
    Undefined("log_normal", "random", AS_EAGER),
    Undefined("multinomial", "random", AS_EAGER),
    Undefined("normal*", "random", AS_EAGER),
    Undefined("uniform", "random", AS_EAGER),
    Undefined("rand*", "random", AS_EAGER),
    Undefined("nn_functional_*dropout*", "random", AS_EAGER),
    Undefined("nn_functional_rrelu", "random slopes in training", AS_EAGER),
    Undefined("nn_functional_fractional_max_pool*", "random windows", AS_EAGER),
    Undefined("nn_functional_scaled_dot_product_attention", "random with dropout", AS_EAGER),
    Undefined("nn_functional_multi_head_attention_forward", "random with dropout", AS_EAGER),
    Undefined("*svd*", "signs and phases of singular vectors", AS_EAGER),
    Undefined("*eig*", "signs and phases of eigenvectors", AS_EAGER),
    Undefined("linalg_qr", "signs of columns where the matrix lacks rank", AS_EAGER),
    Undefined("qr", "signs of columns where the matrix lacks rank", AS_EAGER),
    Undefined("pca_lowrank", "random start, signs of vectors", AS_EAGER),
    Undefined("svd_lowrank", "random start, signs of vectors", AS_EAGER),
    Undefined("argsort", "order of equal elements", AS_EAGER),
    Undefined("sort", "order of equal elements", AS_EAGER),
    Undefined("msort", "order of equal elements", AS_EAGER),
    Undefined("topk", "which of equal elements", AS_EAGER),
    Undefined("kthvalue", "which of equal elements", AS_EAGER),
    Undefined("mode", "which of equal elements", AS_EAGER),
    Undefined("median", "which of equal elements", AS_EAGER),
    Undefined("nanmedian", "which of equal elements", AS_EAGER),
]


def undefined(operator: str) -> Undefined | None:
    return next((entry for entry in UNDEFINED if fnmatch.fnmatchcase(operator, entry.pattern)), None)
