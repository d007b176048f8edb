"""Thousands of groups in trouble: whatever happens, those that are left come to agree.

There is a run for 25 of `--states`; a failure names the seed.
"""

from collections import Counter

import pytest

from tests.unit.groups.schedule_harness import ScheduleHarness

FIRST_SEED = 4_000_000
SEEN = ("joined", "assigned", "fenced", "compared", "restart", "freeze", "full", "evict")


@pytest.mark.timeout(600)
def test_whatever_happens_all_that_are_left_come_to_agree(states: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + states // 25):
        counts.update(run(seed))
    # The runs have seen what they are for.
    assert all(counts[name] for name in SEEN), counts


def run(seed: int) -> Counter[str]:
    """One run; what happened in it."""
    schedule_harness = ScheduleHarness(seed)
    try:
        schedule_harness.run()
    except Exception as error:
        raise AssertionError(f"seed {seed} after {schedule_harness.now_ms} ms: {error}") from error
    return schedule_harness.counts
