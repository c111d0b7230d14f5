"""The cache of kernels as a user meets it: warm starts, damage, and places where nothing can be kept.

How entries are written, locked and verified is tested beside the code, in tests/runtime.
"""

import pytest
from test_bad_input import run

pytestmark = pytest.mark.real_core


def test_warm_start_and_damage(tmp_path):
    """Compiled once; then read from disk; whatever is damaged is compiled again, and the entry is good afterwards."""
    cold, log = run(FUSEWRIGHT_CACHE_DIR=str(tmp_path))
    assert cold["kernels_compiled"] == 2 and cold["cache_hits"] == 0 and not log
    warm, log = run(FUSEWRIGHT_CACHE_DIR=str(tmp_path))
    assert warm["kernels_compiled"] == 0 and warm["cache_hits"] == 2 and not log
    entries = sorted(tmp_path.rglob("*.entry"), key=lambda path: path.stat().st_size)
    assert len(entries) == 3, "two kernels and what is known of the compiler"
    _, small, large = entries
    small.write_bytes(small.read_bytes()[:-100])  # truncated
    flipped = bytearray(large.read_bytes())
    flipped[len(flipped) // 2] ^= 0x10
    large.write_bytes(bytes(flipped))
    again, log = run(FUSEWRIGHT_CACHE_DIR=str(tmp_path))
    assert again["kernels_compiled"] == 2 and again["cache_hits"] == 0 and len(log) <= 2
    warm, log = run(FUSEWRIGHT_CACHE_DIR=str(tmp_path))
    assert warm["kernels_compiled"] == 0 and warm["cache_hits"] == 2 and not log


@pytest.mark.parametrize("place", ["/proc/fusewright", "no home"])
def test_no_place_for_a_cache(place):
    """A home that cannot be written, no home at all: kernels live in memory, results are right."""
    environment = {"FUSEWRIGHT_CACHE_DIR": place}
    if place == "no home":
        environment = {"FUSEWRIGHT_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": ""}
    counts, log = run(**environment)
    assert counts["kernels_compiled"] == 2 and counts["fallback_calls"] == 0 and counts["region_calls"] == 3
    assert len(log) <= 1, log


def test_a_directory_that_others_can_write_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    counts, log = run(FUSEWRIGHT_CACHE_DIR=str(tmp_path))
    assert counts["kernels_compiled"] == 2 and counts["fallback_calls"] == 0
    assert len(log) == 1 and str(tmp_path) in log[0], log
    assert not list(tmp_path.rglob("*.entry"))
