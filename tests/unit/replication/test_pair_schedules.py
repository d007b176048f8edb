"""Many lives of a simulated pair: whatever happens, its promises hold and its logs become equal.

Each seed is one life: clients produce, cancel, commit and read while machines lose power, processes
are killed and stopped, networks part, disks fill up, and an operator promotes and returns nodes.
"""

import subprocess
import sys
from collections import Counter
from typing import Final

import pytest

from tests.support.pair.operator import VERBS
from tests.support.pair.run import explain, play, simulation

FIRST_SEED: Final = 7_000_000
PARTS: Final = 4
"""So many processes share the lives."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_promises_of_a_pair_hold_whatever_happens(part: int, lives: int) -> None:
    counts: Counter[str] = Counter()
    with simulation():
        for seed in range(FIRST_SEED + part, FIRST_SEED + lives, PARTS):
            outcome = play(seed)
            assert not outcome.faults, explain(seed, outcome)
            counts += outcome.counts
    # The lives have seen what they are for.
    assert all(counts[name] for name in (*VERBS, "promoted", "handed over", "repaired")), counts


def test_life_of_a_seed_is_the_same_in_every_process() -> None:
    """Otherwise what a failed test names would not happen again."""
    seen = set()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "tests.support.pair.run", str(FIRST_SEED + 1)]
        result = subprocess.run(
            command, env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout[-2_000:] + result.stderr
        seen.add(result.stdout)
    assert len(seen) == 1
