"""A few random programs in every run; `python tests/python/programs.py` searches longer."""

import os

import programs
import pytest

pytestmark = pytest.mark.real_core
COUNT = int(os.environ.get("FUSEWRIGHT_FUZZ_PROGRAMS", "24"))
SEED = int(os.environ.get("FUSEWRIGHT_FUZZ_SEED", "1"))


def test_random_programs_agree_with_float64():
    judged, failures = programs.search(SEED, COUNT, seconds=60)
    print(f"{judged} programs from seed {SEED}")
    assert judged and not failures, "\n\n".join(failures)


def test_a_program_is_drawn_again_from_its_seed():
    for seed in range(5):
        assert str(programs.Drawing(seed).draw()) == str(programs.Drawing(seed).draw())
