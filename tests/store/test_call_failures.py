"""The Nth call fails: nothing is acknowledged that is not there, and the store opens again."""

import contextlib
import errno
import random
import sys
from typing import Final, get_args

import pytest

from appliance.errors import StorageError
from tests.support.crash_check import CrashChecker
from tests.support.crash_run import CrashRun, Refused
from tests.support.sim_fs import CrashMode

SEED: Final = 3
ROUNDS: Final = 3
MODES: Final[tuple[CrashMode, ...]] = get_args(CrashMode)


def play(run: CrashRun) -> str:
    """Go on until the end, a refusal, or an error that ends the process; which it was."""
    try:
        run.start()
        run.play_rounds(ROUNDS)
        run.consume()
    except StorageError:
        return "fatal"
    except Refused:
        with contextlib.suppress(StorageError):
            run.consume()  # what was taken before is served
        return "refused"
    return "played"


def call_count() -> int:
    run = CrashRun(random.Random(SEED))
    assert play(run) == "played"
    assert run.rig.broker.wrote_pos > run.config.segment_size_bytes
    return run.disk.calls


@pytest.mark.parametrize("how", ["once", "for good", "after half of it"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failing_call_costs_nothing_that_was_acknowledged(code: int, how: str) -> None:
    ends = set()
    for number in range(1, call_count() + 1):
        run = CrashRun(random.Random(SEED))
        run.disk.fail_at(
            number,
            OSError(code, "injected"),
            sticky=how == "for good",
            short_write=how == "after half of it",
        )
        try:
            ends.add(play(run))
            checker = CrashChecker(run.config)
            for mode in MODES:
                checker.check(run.disk.crashed(mode, random.Random(number)), run.known(mode))
        except AssertionError:
            sys.stdout.write(f"call {number} fails:\n{run.disk.trace()}\n")
            raise
    # A spare segment that cannot be made in time is made later, so some failures are survived.
    assert "fatal" in ends
    if how == "for good":
        return  # the flush that follows may fail before anything is refused
    assert ("refused" in ends) == (code == errno.ENOSPC)
