"""The files of the key index after a crash at each call, and after a failure of each call."""

import errno
import random
from typing import Final, get_args

import pytest

from appliance.errors import StorageError
from appliance.find import FindRequest
from appliance.store.keys.key_index import RETRY_NS, KeyIndex
from appliance.units import NS_PER_MS
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.configs import DATA_DIR
from tests.support.harness.crash_points import CrashPoints
from tests.support.simulator.sim_fs import CrashMode, SimFileSystem
from tests.unit.keys.index_harness import Sent, ask, build, index_of, places

MODES: Final[tuple[CrashMode, ...]] = get_args(CrashMode)
DIRECTORY: Final = DATA_DIR / "keyindex"
KEYS_CHECKED: Final = 6
TRIES: Final = 2
"""How often each kind of crash is tried at each call; those that choose at random differ."""


@pytest.fixture(scope="module")
def sent() -> Sent:
    """A broker whose log is flushed: what follows concerns the index alone."""
    sent = Sent(disk=CrashPoints())
    sent.send(150, ("a", "b"))
    return sent


def check(sent: Sent, disk: SimFileSystem, rng: random.Random) -> None:
    """Check that a broker finds all on what a crash left, at once and after it has indexed."""
    harness = BrokerHarness(disk, sent.harness.clock, sent.harness.config)
    keys = rng.sample(sorted(sent.visible), KEYS_CHECKED)
    index = index_of(harness)
    for job_count in (1, 1_000):
        build(index, job_count)
        for key in keys:
            answer = ask(harness, index, FindRequest(key=key, limit=1_000))
            assert sorted(places(answer)) == sorted(sent.visible[key])
            assert answer.scanned_bytes == 0 or job_count == 1
    names = disk.list_dir(DIRECTORY)
    assert len(names) == index.run_count, names


def test_a_crash_at_any_call_leaves_an_index_that_is_right(sent: Sent) -> None:
    disk = sent.harness.disk.crashed("kept", random.Random(1))
    assert isinstance(disk, CrashPoints)
    harness = BrokerHarness(disk, sent.harness.clock, sent.harness.config)
    index = index_of(harness)
    rng = random.Random(2)
    states: set[int] = set()

    def crash() -> None:
        for mode in MODES:
            for _ in range(TRIES):
                left = disk.crashed(mode, rng)
                state = left.digest(DIRECTORY)
                if state not in states:
                    states.add(state)
                    check(sent, left, rng)

    disk.observer = crash
    calls = disk.calls
    build(index)
    crash()
    assert index.run_count
    assert disk.calls - calls > 40
    assert len(states) > 40


def has_failed_sync(index: KeyIndex) -> bool:
    """Build an index; return whether an error ended that, as it ends a broker."""
    try:
        build(index)
    except StorageError as error:
        if not error.is_fatal:
            raise
        return True
    return False


@pytest.mark.parametrize(
    ("code", "is_short", "step"),
    [(errno.EIO, False, 1), (errno.EIO, True, 4), (errno.ENOSPC, False, 3)],
)
def test_a_failure_of_any_call_leaves_an_index_that_is_right(
    sent: Sent, code: int, step: int, *, is_short: bool
) -> None:
    """Each call fails in turn; with `step`, one in that many."""
    rng = random.Random(3)
    number, ends = 0, 0
    while True:
        number += step
        disk = sent.harness.disk.crashed("kept", random.Random(1))
        harness = BrokerHarness(disk, sent.harness.clock, sent.harness.config)
        index = index_of(harness)
        before = disk.calls
        disk.fail_at(before + number, OSError(code, "injected"), short_write=is_short)
        if has_failed_sync(index):
            ends += 1
            for mode in MODES:
                check(sent, disk.crashed(mode, rng), rng)
            continue
        if disk.calls < before + number:
            break  # all calls have failed once
        sent.harness.clock.advance_ms(RETRY_NS // NS_PER_MS)
        build(index)
        for key in rng.sample(sorted(sent.visible), KEYS_CHECKED):
            answer = ask(harness, index, FindRequest(key=key, limit=1_000))
            assert sorted(places(answer)) == sorted(sent.visible[key])
            assert answer.scanned_bytes == 0
        index.close()
        check(sent, disk.crashed("killed", rng), rng)
    assert number > 40
    assert ends
