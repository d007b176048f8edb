"""The Nth call of freeing fails: nothing that is kept is lost, and the segments go later.

For every N of a carry, its flush, the checkpoint, the removals and the state saved after them;
with control values alone in the head, and with pending timers too.
"""

import copy
import errno
import random
from typing import Final, Literal, get_args

import pytest

from appliance.errors import StorageError
from appliance.units import MS_PER_DAY
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.checkpoints import crashed, rebuild, start, take_checkpoint
from tests.support.simulator.sim_fs import CrashMode
from tests.support.values.kafka_records import Record, delay
from tests.unit.retention.test_freeing import (
    IDS,
    SEGMENT,
    bases_on,
    ready_to_free,
    start_pos,
)

How = Literal["once", "for good", "after half of it"]

LONG_MS: Final = 30 * MS_PER_DAY
TIMERS: Final = tuple(
    Record(b"later %d" % number, headers=delay(LONG_MS + number, IDS[number]))
    for number in range(3)
)
MODES: Final[tuple[CrashMode, ...]] = get_args(CrashMode)


def go_on(harness: BrokerHarness) -> None:
    """Free what can go, and save the state that follows."""
    harness.expire()
    for _ in range(2):
        harness.free_head()
        harness.flush()
    take_checkpoint(harness)


def play(prepared: BrokerHarness, number: int, error: OSError, how: How) -> str:
    """Let a call fail; return how it ended after all that must hold was checked."""
    harness = start(prepared, crashed(prepared))
    disk = harness.disk
    disk.fail_at(
        disk.calls + number,
        error,
        sticky=how == "for good",
        short_write=how == "after half of it",
    )
    try:
        go_on(harness)
    except StorageError:
        end = "fatal"
    else:
        end = "played"
        disk.heal()
        check(prepared, start(prepared, crashed(harness)))
    disk.heal()
    for mode in MODES:
        left = disk.crashed(mode, random.Random(number))
        check(prepared, rebuild(prepared, left))
        check(prepared, start(prepared, left))
    return end


def check(prepared: BrokerHarness, harness: BrokerHarness) -> None:
    """A started broker knows all, frees the segments, and delivers each timer once."""
    assert harness.report.damage == ()
    assert sorted(harness.topics_digest()) == sorted(prepared.topics_digest())
    assert harness.broker.groups.offsets("g") == prepared.broker.groups.offsets("g")
    assert bases_on(harness.disk)[0] == start_pos(harness)
    assert harness.produce("t", 0, [Record(b"after")]).error == 0
    if prepared.timer_state("u", IDS[0])[0] == "pending":
        check_timers(harness)


def check_timers(started: BrokerHarness) -> None:
    """All are delivered when they are due, by a broker whose clock is its own."""
    later = BrokerHarness(crashed(started), copy.copy(started.clock), started.config)
    assert later.tick(LONG_MS - MS_PER_DAY) == 0
    assert later.tick(2 * MS_PER_DAY) == len(TIMERS)
    values = [record.value for index in range(2) for record in later.fetch("u", index)]
    assert sorted(values) == [timer.value for timer in TIMERS]


def calls_of(prepared: BrokerHarness) -> int:
    """How many calls it makes if none fails; checks that segments are freed."""
    harness = start(prepared, crashed(prepared))
    before = harness.disk.calls
    go_on(harness)
    is_carrying = prepared.timer_state("u", IDS[0])[0] == "pending"
    # Segments are carried one after another, as far as the log is too long for what it keeps.
    assert start_pos(harness) >= (1 if is_carrying else 3) * SEGMENT
    assert (harness.broker._store.carriers.timers.carried_bytes > 0) == is_carrying
    return harness.disk.calls - before


@pytest.mark.parametrize("how", get_args(How))
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("timers", [(), TIMERS], ids=["control values", "timers"])
def test_a_failing_call_of_freeing_costs_nothing(
    timers: tuple[Record, ...], code: int, how: How
) -> None:
    prepared = ready_to_free(timers=timers)
    ends = {
        play(prepared, number, OSError(code, "injected"), how)
        for number in range(1, calls_of(prepared) + 1)
    }
    assert "fatal" in ends
    assert "played" in ends
