"""A crash between any two system calls leaves the state of some moment, and nothing in between.

`pytest tests/unit/store --states 1000000` checks so many crash states. A run and a seed identify
each; states with equal bytes count once.
"""

from collections.abc import Callable
from typing import Final

import pytest

from tests.support.harness.configs import small_config
from tests.support.harness.crash_states import Job, Outcome, do_all

PARTS: Final = 5
JOBS_PER_PART: Final = 2

RecordProperty = Callable[[str, object], None]


def check_states(states: int, part: int, flush: str, record_property: RecordProperty) -> Outcome:
    """Check a part's share of all states, on all processors."""
    job_count = PARTS * JOBS_PER_PART
    jobs = [
        Job(part * JOBS_PER_PART + number, job_count, states // job_count, flush)
        for number in range(JOBS_PER_PART)
    ]
    outcome = do_all(jobs)
    assert outcome.distinct >= states // PARTS
    record_property("crash states", str(outcome))
    return outcome


@pytest.mark.parametrize("part", range(PARTS - 1))
def test_a_crash_at_any_call_leaves_whole_requests(
    part: int, states: int, record_property: RecordProperty
) -> None:
    outcome = check_states(states, part, "sync", record_property)
    size = small_config().segment_size_bytes
    assert outcome.longest > 2 * size, "the runs no longer fill several segments"


def test_with_async_flush_a_killed_process_loses_nothing(
    states: int, record_property: RecordProperty
) -> None:
    """And a power cut loses nothing that was flushed."""
    check_states(states, PARTS - 1, "async", record_property)
