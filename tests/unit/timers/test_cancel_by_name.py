"""A timer that is cancelled by its name, as the admin API does: never delivered, whatever comes."""

import random
from typing import Final

import pytest

from _core.bytes.layout import FRAME_HEADER_SIZE
from appliance.errors import DiskFullError
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.simulator.sim_fs import CrashMode, SimFileSystem
from tests.support.values.kafka_records import Record, by_level, cancel, delay

HOUR_MS: Final = 3_600_000
MODES: Final[tuple[CrashMode, ...]] = ("kept", "dropped", "torn")


@pytest.fixture
def harness() -> BrokerHarness:
    return with_topic(2)


def send(harness: BrokerHarness, *records: Record) -> None:
    assert harness.produce("t", 0, records).error == 0


@pytest.mark.parametrize("headers", [delay(1_000, b"id"), by_level(1, b"id")])
def test_a_cancelled_timer_never_comes(
    harness: BrokerHarness, headers: tuple[tuple[str, bytes]]
) -> None:
    send(harness, Record(b"x", headers=headers), Record(b"y", headers=delay(1_000)))
    due_ms = harness.clock.wall_ms() + 1_000
    assert harness.cancel_timer("t", b"id") == ("cancelled", due_ms, 0)
    assert harness.broker.pending_timers == 1
    harness.tick(HOUR_MS)
    assert harness.values() == [b"y"]
    assert harness.timer_state("t", b"id") == ("cancelled", due_ms, 0)


def test_a_timer_whose_record_is_being_read_from_the_disk_can_be_cancelled(
    harness: BrokerHarness,
) -> None:
    send(harness, Record(b"x", headers=delay(10, b"id")), Record(b"y", headers=delay(10)))
    harness = harness.crash("kept", random.Random(0))
    harness.disk.evict(harness.config.data_dir / "commitlog" / ("0" * 20))
    harness.clock.advance_ms(10)
    delivery = harness.broker.deliver_due()
    assert delivery.cold
    assert harness.cancel_timer("t", b"id")[0] == "cancelled"
    harness.read_cold(delivery.cold, is_delivery=True)
    assert harness.deliver_all() == 1
    assert harness.values() == [b"y"]


def test_a_cancel_that_is_too_late_or_names_nothing_changes_nothing(harness: BrokerHarness) -> None:
    send(harness, Record(b"x", headers=delay(10, b"id")))
    harness.tick(10)
    wrote_pos = harness.broker.wrote_pos
    assert harness.cancel_timer("t", b"id")[0] == "delivered"
    assert harness.cancel_timer("t", b"nobody") == ("unknown", None, None)
    assert harness.broker.wrote_pos == wrote_pos
    assert harness.values() == [b"x"]


@pytest.mark.parametrize("first", ["by name", "by header"])
def test_a_second_cancel_finds_the_first_and_writes_nothing(
    harness: BrokerHarness, first: str
) -> None:
    send(harness, Record(b"x", headers=delay(10, b"id")))
    if first == "by name":
        harness.cancel_timer("t", b"id")
    else:
        send(harness, Record(b"", headers=cancel(b"id")))
    wrote_pos = harness.broker.wrote_pos
    assert harness.cancel_timer("t", b"id")[0] == "cancelled"
    assert harness.broker.wrote_pos == wrote_pos


def test_only_the_timer_that_has_the_id_now_is_cancelled(harness: BrokerHarness) -> None:
    send(harness, Record(b"old", headers=delay(1_000, b"id")))
    send(harness, Record(b"new", headers=delay(2_000, b"id")))
    assert harness.cancel_timer("t", b"id")[0] == "cancelled"
    send(harness, Record(b"next", headers=delay(3_000, b"id")))
    harness = harness.crash("torn", random.Random(0))
    assert harness.timer_state("t", b"id")[0] == "pending"
    harness.tick(HOUR_MS)
    assert harness.values() == [b"next"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [1, 6, 7, 8, 255])
def test_a_durable_cancel_survives_a_crash(
    harness: BrokerHarness, mode: CrashMode, size: int
) -> None:
    user_id = bytes(range(256 - size, 256))
    send(harness, Record(b"x", headers=delay(1_000, user_id)), Record(b"y", headers=delay(1_000)))
    harness.cancel_timer("t", user_id)
    harness.flush()
    harness = harness.crash(mode, random.Random(size))
    assert harness.broker.pending_timers == 1
    assert harness.timer_state("t", user_id)[0] == "cancelled"
    harness.tick(1_000)
    assert harness.values() == [b"y"]


def test_a_cancel_that_was_not_flushed_is_gone_after_a_power_cut(harness: BrokerHarness) -> None:
    """So it must not be acknowledged before the flush."""
    send(harness, Record(b"x", headers=delay(1_000, b"id")))
    harness.cancel_timer("t", b"id")
    harness = harness.crash("dropped", random.Random(0))
    assert harness.timer_state("t", b"id")[0] == "pending"


def test_a_cancelled_id_is_forgotten_after_a_day(harness: BrokerHarness) -> None:
    send(harness, Record(b"x", headers=delay(48 * HOUR_MS, b"id")))
    harness.cancel_timer("t", b"id")
    harness.age(24 * HOUR_MS - 1)
    assert harness.timer_state("t", b"id")[0] == "cancelled"
    harness.age(2 * harness.config.retention_check_interval_ms)
    assert harness.timer_state("t", b"id")[0] == "unknown"


def test_a_full_disk_cancels_until_its_reserve_is_used_up_and_then_keeps_the_timer() -> None:
    """The other half of the reserve is for what is due."""
    disk = SimFileSystem()
    harness = BrokerHarness(disk)
    harness.create_topic("t")
    names = [b"%d" % number for number in range(16)]
    send(harness, *(Record(b"x", headers=delay(1_000, name)) for name in names))
    disk.free = 1_000
    while harness.produce("t", 0, [Record(b"fill" * 10)]).error == 0:
        pass
    refused = "nothing was cancelled: the broker's disk is full"
    with pytest.raises(DiskFullError, match=refused):
        [harness.cancel_timer("t", name) for name in names]
    pending = [name for name in names if harness.timer_state("t", name)[0] == "pending"]
    assert 0 < len(pending) < len(names)
    assert harness.tick(1_000) == len(pending)


@pytest.mark.parametrize("user_id", [b"", bytes(256)])
def test_an_id_of_no_possible_length_is_a_mistake_of_the_caller(
    harness: BrokerHarness, user_id: bytes
) -> None:
    with pytest.raises(ValueError, match="1 to 255"):
        harness.cancel_timer("t", user_id)


def test_many_cancels_go_over_the_ends_of_segments(harness: BrokerHarness) -> None:
    """Each segment says who the topic is before the first cancel in it."""
    names = [b"%04d" % number for number in range(1_000)]
    for first in range(0, 1_000, 100):
        send(harness, *(Record(b"x", headers=delay(1_000, name)) for name in names[first:][:100]))
    begin = harness.broker.wrote_pos
    for name in names:
        assert harness.cancel_timer("t", name)[0] == "cancelled"
    assert harness.broker.wrote_pos - begin > 2 * harness.config.segment_size_bytes
    harness.flush()
    harness = harness.crash("torn", random.Random(0))
    assert harness.broker.pending_timers == 0
    assert {harness.timer_state("t", name)[0] for name in names} == {"cancelled"}


def test_a_timer_whose_record_rotted_can_be_cancelled_and_stays_so(harness: BrokerHarness) -> None:
    """Its record cannot be delivered now; a later start might read it again."""
    begin = harness.broker.wrote_pos
    send(harness, Record(b"x", headers=delay(10, b"id")))
    harness = harness.crash("kept", random.Random(0))
    path, at = harness.config.data_dir / "commitlog" / ("0" * 20), begin + FRAME_HEADER_SIZE + 120
    harness.disk.evict(path)
    harness.disk.flip(path, at, 1)
    harness.clock.advance_ms(10)
    delivery = harness.broker.deliver_due()
    assert harness.read_cold(delivery.cold, is_delivery=True)
    assert harness.deliver_all() == 0
    assert harness.cancel_timer("t", b"id")[0] == "cancelled"
    harness.flush()
    harness.disk.flip(path, at, 1)
    harness = harness.crash("kept", random.Random(0))
    assert harness.timer_state("t", b"id")[0] == "cancelled"
    assert harness.deliver_all() == 0
    assert harness.values() == []
