"""Counters of the process: what was captured, compiled, taken from the cache, and what ran as PyTorch's."""

from __future__ import annotations

import threading
from collections import Counter

from . import _core

_lock = threading.Lock()
_counts = {"captures": 0, "regions": 0, "fallback_calls": 0, "second_derivatives": 0, "failed_captures": 0}
_reasons: Counter[str] = Counter()  # of calls that fell back
_core_base: dict[str, int] = {}


def count(name: str, by: int = 1) -> None:
    """Add to a counter of the Python side."""
    with _lock:
        _counts[name] += by


def count_fallback(reason: str) -> None:
    """Count a call that ran without fused kernels, under one of the names in `reasons`."""
    with _lock:
        _counts["fallback_calls"] += 1
        _reasons[reason] += 1


def stats() -> dict[str, int | dict[str, int]]:
    """Return the counters since the start of the process or the last `reset_stats()`.

    Waits for kernels that are being compiled in the background: for a GPU, those that the first call of a region did
    not need. The tuner times them with a later call.

    `captures`: graphs that Dynamo handed over. `regions`: fused regions made from them. `region_calls`: runs of a
    fused region. `kernels_compiled`: kernels built by the compiler; `cache_hits`: kernels found on disk;
    `memory_hits`: kernels already loaded. `kernels_tuned`: timings on a GPU, of a kernel's launches or of a
    region against eager, once for sizes of a kind. `matrix_products`: products of float32 that our own kernels
    computed, those of the tuner among them; `convolutions`: the same of convolutions and their gradients.
    `fallback_calls`: calls that ran without any fused region although
    the model is optimised; `fallback_reasons`: the same by reason, a name from `fusewright.reasons`. A model that an
    outer torch.compile took counts once for each capture, a method that calls parts of it once for each part.
    `second_derivatives`:
    regions that ran once more in PyTorch's operators, for gradients with `create_graph=True`. `failed_captures`: frames
    that Dynamo could not trace.
    """
    _core.finish_compiling()
    with _lock:
        result = {**_counts, "fallback_reasons": dict(_reasons)}
    for name, value in _core.stats().items():
        result[name] = value - _core_base.get(name, 0)
    return result


def reset_stats() -> None:
    """Set every counter to zero. Captured graphs and loaded kernels stay."""
    with _lock:
        for name in _counts:
            _counts[name] = 0
        _reasons.clear()
    _core.finish_compiling()
    _core_base.update(_core.stats())
