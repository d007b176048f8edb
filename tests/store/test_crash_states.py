"""A crash between any two system calls leaves a broker of some moment, and nothing in between.

`pytest tests/store --states 1000000` looks at so many crash states; each is told by its run and its
seed, and states that are the same to the last byte count once.
"""

from collections.abc import Callable
from typing import Final

import pytest

from tests.support.configs import small_config
from tests.support.crash_states import Job, Outcome, do_all

PARTS: Final = 5
JOBS_PER_PART: Final = 2

Tell = Callable[[str, object], None]


def look_at(states: int, part: int, flush: str, record_property: Tell) -> Outcome:
    """Look at a part's share of all states, on all processors."""
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
    part: int, states: int, record_property: Tell
) -> None:
    outcome = look_at(states, part, "sync", record_property)
    size = small_config().segment_size_bytes
    assert outcome.longest > 2 * size, "the runs no longer fill several segments"


def test_with_async_flush_a_killed_process_loses_nothing(
    states: int, record_property: Tell
) -> None:
    """And a power cut nothing that was flushed."""
    look_at(states, PARTS - 1, "async", record_property)
