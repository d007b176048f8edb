"""The Nth call fails: nothing is acknowledged that is not there, and the store opens again.

For every N of a run with group commits, rolls, checkpoints, cold reads and a clean stop. After each
a broker is started on what two kinds of crash leave, and in a long run on what every kind leaves.
"""

import errno
from typing import Final, get_args

import pytest

from tests.support.harness.crash_states import on_all_processors
from tests.support.simulator.call_failures import (
    MODES,
    Failure,
    How,
    call_count,
    play_all,
    some_modes,
)

PARTS: Final = 4
LONG_STATES: Final = 100_000


@pytest.mark.parametrize("how", get_args(How))
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_a_failing_call_costs_nothing_that_was_acknowledged(
    code: int, how: How, states: int
) -> None:
    failures = [
        Failure(number, code, how, MODES if states >= LONG_STATES else some_modes(number))
        for number in range(1, call_count() + 1)
    ]
    parts = [failures[part::PARTS] for part in range(PARTS)]
    played = [each for part in on_all_processors(play_all, parts) for each in part]
    ends = {each.end for each in played}
    assert "fatal" in ends
    # A checkpoint or a segment that cannot be made is made later, so some failures are survived.
    assert ("played" in ends) == (code == errno.ENOSPC or how != "for good")
    assert ("refused" in ends) == (code == errno.ENOSPC)
