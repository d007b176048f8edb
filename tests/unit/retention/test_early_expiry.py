"""A disk that is too full: records expire before their retention is over, if so configured."""

import logging
import random
from typing import Any, Final

import pytest

from appliance.units import MIB, MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE, MS_PER_SECOND
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.checkpoints import try_checkpoint
from tests.support.harness.configs import small_config
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Record, delay

SEGMENT: Final = 64 * 1024
SIZE_BYTES: Final = 2 * MIB
KEPT: Final = {"retention.ms": "-1"}


def broker(**settings: Any) -> BrokerHarness:
    """A broker on a small disk, with the topics `t`, which keeps records for days, and `kept`."""
    disk = SimFileSystem()
    disk.free = disk.size_bytes = SIZE_BYTES
    harness = BrokerHarness(disk, config=small_config(**({"disk_expire_percent": 85} | settings)))
    harness.create_topic("t")
    harness.create_topic("kept", 1, KEPT)
    return harness


def second(harness: BrokerHarness) -> None:
    """Let a second pass, with all that a broker does in it."""
    for _ in range(5):
        harness.tick(MS_PER_SECOND // 5)
        harness.housekeep()
        try_checkpoint(harness)


def send(harness: BrokerHarness, topic: str = "t") -> int:
    """Send some records, which takes a second; return the error code."""
    error = harness.produce(topic, 0, [Record(bytes(4_000))]).error
    second(harness)
    return error


def used_percent(harness: BrokerHarness) -> float:
    return harness.broker.disk_space.status().used_percent


def fill(harness: BrokerHarness, percent: float = 85, topic: str = "t") -> None:
    """Send until the disk is that full."""
    for _ in range(2 * SIZE_BYTES // 4_000):
        if used_percent(harness) >= percent:
            return
        assert send(harness, topic) == 0
    raise AssertionError("it does not get so full")


def settle(harness: BrokerHarness, seconds: int = 60) -> None:
    for _ in range(seconds):
        second(harness)


def early(harness: BrokerHarness) -> int:
    return harness.broker.collect_metrics().early_expired_records


def start_of(harness: BrokerHarness, topic: str = "t") -> int:
    return harness.partition(topic=topic).start_offset


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [each.getMessage() for each in caplog.records if each.name.endswith("early_expiry")]
    caplog.clear()
    return found


def test_the_oldest_records_expire_until_the_disk_is_less_full(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    harness = broker()
    fill(harness)
    assert early(harness) == start_of(harness) == 0
    settle(harness, 20)
    assert used_percent(harness) < 83
    assert early(harness) == start_of(harness) > 0
    # A segment has 16 of them: no more went than the disk needed.
    assert start_of(harness) <= 48
    began, over = lines(caplog)
    assert "is too full, 8" in began
    assert "the oldest segment first, until less than 83% is used (disk.expire_percent)" in began
    assert "MiB free" in began
    assert over.endswith(f"over; {early(harness)} records did")
    kept = harness.fetch("t", 0, start_of(harness))
    assert len(kept) == harness.partition().next_offset - start_of(harness)
    harness = harness.crash("kept", random.Random(1))
    assert start_of(harness) == kept[0].offset


def test_a_producer_that_never_stops_is_never_refused() -> None:
    harness = broker()
    for _ in range(3 * SIZE_BYTES // 4_000):
        assert send(harness) == 0
        assert used_percent(harness) < 90
    assert harness.broker.log.start_pos > SIZE_BYTES
    assert early(harness) == start_of(harness)
    gauges = harness.broker.gauges(0)
    assert gauges.expires_early is harness.broker.early_expiry.is_active


def test_nothing_expires_early_unless_it_is_configured() -> None:
    harness = broker(disk_expire_percent=100)
    fill(harness, 90)
    settle(harness)
    assert (early(harness), start_of(harness)) == (0, 0)
    assert harness.broker.disk_space.state == "refusing"


def test_a_topic_that_keeps_its_records_for_ever_keeps_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    harness = broker()
    assert send(harness) == send(harness, "kept") == 0
    fill(harness)
    settle(harness)
    assert start_of(harness, "kept") == 0
    assert len(harness.fetch("kept", 0)) == 1
    assert start_of(harness) == early(harness) > 0
    assert harness.broker.log.start_pos > 0
    assert used_percent(harness) < 83


def test_records_that_are_kept_for_ever_are_not_moved_for_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    harness = broker()
    fill(harness, topic="kept")
    settle(harness)
    assert start_of(harness, "kept") == early(harness) == 0
    assert harness.broker.head_freer.carried_bytes == 0
    blocked = [line for line in lines(caplog) if "something in it is still needed" in line]
    assert len(blocked) == 1
    harness.delete_topic("kept")
    settle(harness, 90)
    assert used_percent(harness) < 83


def test_a_topic_that_keeps_its_records_for_ever_loses_them_if_so_configured() -> None:
    harness = broker(disk_expire_all_topics=True)
    assert send(harness) == send(harness, "kept") == 0
    fill(harness, topic="kept")
    settle(harness)
    assert start_of(harness, "kept") > 0
    assert used_percent(harness) < 83


def test_a_pending_timer_is_delivered_however_full_the_disk_is() -> None:
    harness = broker()
    later = Record(b"later", headers=delay(MS_PER_HOUR))
    assert harness.produce("t", 0, [later]).error == 0
    fill(harness)
    settle(harness)
    assert harness.broker.pending_timers == 1
    assert harness.broker.log.start_pos > 0
    harness.tick(MS_PER_HOUR)
    assert harness.fetch("t", 0, start_of(harness))[-1].value == b"later"
    settle(harness)
    assert harness.fetch("t", 0, start_of(harness))[-1].value == b"later"


@pytest.mark.parametrize("left", ["timer", "kept record"])
def test_a_segment_in_which_nothing_can_expire_does_not_stop_it(left: str) -> None:
    harness = broker()
    harness.create_topic("short", 1, {"retention.ms": str(MS_PER_HOUR)})
    if left == "timer":
        later = Record(b"later", headers=delay(60 * MS_PER_DAY))
        assert harness.produce("short", 0, [later]).error == 0
    else:
        assert send(harness, "kept") == 0
    while harness.broker.wrote_pos < SEGMENT:
        assert send(harness, "short") == 0
    fill(harness, 70)
    for _ in range(90):
        harness.tick(2 * MS_PER_MINUTE)
        harness.housekeep()
        try_checkpoint(harness)
    short = harness.partition(topic="short")
    assert short.start_offset == short.next_offset
    # The log is too small to be carried without need.
    assert harness.broker.log.start_pos == early(harness) == 0
    fill(harness)
    for _ in range(60):
        assert send(harness) == 0
    assert early(harness) == start_of(harness) > 0
    assert harness.broker.pending_timers == (left == "timer")
    assert len(harness.fetch("kept", 0)) == (left == "kept record")


def test_a_restart_between_expiry_and_freeing_does_not_stop_it() -> None:
    harness = broker()
    later = Record(b"later", headers=delay(MS_PER_HOUR))
    assert harness.produce("t", 0, [later]).error == 0
    fill(harness)
    while start_of(harness) == 0:
        harness.tick(MS_PER_SECOND)
        harness.broker.housekeep()
        harness.broker.disk_space.check()
    harness.flush()
    assert (harness.broker.log.start_pos, harness.broker.head_freer.carried_bytes) == (0, 0)
    harness = harness.crash("kept", random.Random(3))
    expired = start_of(harness)
    settle(harness, 20)
    assert harness.broker.log.start_pos > 0
    assert used_percent(harness) < 83
    assert start_of(harness) == expired > 0
    assert harness.broker.pending_timers == 1


def fill_with_timers(harness: BrokerHarness, *topics: str) -> None:
    """Send timers until the disk is too full."""
    later = Record(bytes(4_000), headers=delay(60 * MS_PER_DAY))
    while used_percent(harness) < 85:
        for topic in topics:
            assert harness.produce(topic, 0, [later]).error == 0
        second(harness)


def test_timers_are_not_moved_while_most_of_the_log_is_timers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    harness = broker()
    harness.create_topic("u")
    fill_with_timers(harness, "t", "u")
    assert send(harness) == 0
    settle(harness, 120)
    assert (early(harness), harness.broker.head_freer.carried_bytes) == (0, 0)
    assert len([line for line in lines(caplog) if "something in it is still needed" in line]) == 1
    # It goes on as soon as that has changed, even if the log is not twice what lives.
    harness.broker.head_freer.may_carry = lambda: False
    harness.delete_topic("u")
    settle(harness)
    assert harness.broker.log.start_pos > 0
    assert used_percent(harness) < 83


def test_timers_whose_size_is_estimated_wrong_are_moved_once() -> None:
    harness = broker()
    tiny = [Record(b"", headers=delay(1))] * 100
    for _ in range(20):
        assert harness.produce("t", 0, tiny).error == 0
        second(harness)
    fill_with_timers(harness, "t")
    settle(harness)
    freer = harness.broker.head_freer
    size = harness.broker.wrote_pos - harness.broker.log.start_pos
    assert freer.timers_bytes < size // 2
    # Others fill the disk: it stays too full, whatever is freed.
    harness.disk.free -= SIZE_BYTES // 20
    before = freer.carried_bytes
    settle(harness, 300)
    carried = freer.carried_bytes - before
    assert size // 2 < carried < 1.1 * size
    settle(harness, 100)
    assert freer.carried_bytes == before + carried


@pytest.mark.parametrize("step_ms", [-400 * MS_PER_DAY, 400 * MS_PER_DAY])
def test_a_wrong_clock_expires_nothing_early(step_ms: int) -> None:
    harness = broker()
    fill(harness, 80)
    harness.clock.step_ms(step_ms)
    settle(harness)
    assert (early(harness), start_of(harness)) == (0, 0)
    right, wrong = broker(), broker()
    for each in (right, wrong):
        fill(each)
        each.clock.step_ms(step_ms if each is wrong else 0)
        settle(each)
    assert start_of(right) == start_of(wrong) == early(wrong) > 0


def test_what_a_snapshot_keeps_on_the_disk_does_not_expire_in_vain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    harness = broker()
    fill(harness, 60)
    snapshots = harness.broker.snapshots
    snapshots.create(snapshots.freeze(), "all")
    fill(harness)
    settle(harness)
    assert (early(harness), start_of(harness)) == (0, 0)
    assert [line for line in lines(caplog) if "a snapshot or a backup shares it" in line]
    snapshots.delete("all")
    settle(harness)
    assert used_percent(harness) < 83
    assert early(harness) == start_of(harness)


def test_a_disk_that_others_filled_to_its_last_byte_gets_room() -> None:
    """The frames that say what expired come from the reserve."""
    harness = broker()
    fill(harness, 70)
    harness.disk.free = 0
    while send(harness) == 0:
        pass
    assert harness.broker.disk_space.state == "refusing"
    settle(harness)
    assert used_percent(harness) < 83
    assert send(harness) == 0
    assert early(harness) == start_of(harness) > 0
    expected = harness.partition().next_offset - start_of(harness)
    harness = harness.crash("kept", random.Random(2))
    assert len(harness.fetch("t", 0, start_of(harness))) == expected


def test_an_operator_s_cleanup_and_the_regular_one_go_on_meanwhile() -> None:
    harness = broker(retention_check_interval_ms=MS_PER_MINUTE)
    harness.create_topic("short", 1, {"retention.ms": str(5 * MS_PER_MINUTE)})
    fill(harness, topic="short")
    settle(harness, 10 * 60)
    assert harness.partition(topic="short").next_offset == start_of(harness, "short")
    assert used_percent(harness) < 20
