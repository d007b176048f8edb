"""A timer that is cancelled by its name, as the admin API does: never delivered, whatever comes."""

import random
from typing import Final

import pytest

from _core.layout import FRAME_HEADER_SIZE
from appliance.errors import RequestError
from tests.support.broker_rig import BrokerRig
from tests.support.kafka_records import Record, by_level, cancel, delay
from tests.support.sim_fs import CrashMode, SimFileSystem

HOUR_MS: Final = 3_600_000
MODES: Final[tuple[CrashMode, ...]] = ("kept", "dropped", "torn")


@pytest.fixture
def rig() -> BrokerRig:
    rig = BrokerRig()
    rig.create_topic("t", 2)
    return rig


def values(rig: BrokerRig) -> list[bytes]:
    return [record.value for record in rig.fetch("t", 0)]


def send(rig: BrokerRig, *records: Record) -> None:
    assert rig.produce("t", 0, records).error == 0


@pytest.mark.parametrize("headers", [delay(1_000, b"id"), by_level(1, b"id")])
def test_a_cancelled_timer_never_comes(rig: BrokerRig, headers: tuple[tuple[str, bytes]]) -> None:
    send(rig, Record(b"x", headers=headers), Record(b"y", headers=delay(1_000)))
    due_ms = rig.clock.wall_ms() + 1_000
    assert rig.cancel_timer("t", b"id") == ("cancelled", due_ms, 0)
    assert rig.broker.pending_timers == 1
    rig.tick(HOUR_MS)
    assert values(rig) == [b"y"]
    assert rig.timer_state("t", b"id") == ("cancelled", due_ms, 0)


def test_a_timer_that_is_overdue_and_not_delivered_yet_can_be_cancelled(rig: BrokerRig) -> None:
    send(rig, Record(b"x", headers=delay(1_000, b"id")))
    rig.clock.advance_ms(2_000)
    assert rig.cancel_timer("t", b"id")[0] == "cancelled"
    assert rig.deliver_all() == 0


def test_a_timer_whose_record_is_being_read_from_the_disk_can_be_cancelled(rig: BrokerRig) -> None:
    send(rig, Record(b"x", headers=delay(10, b"id")), Record(b"y", headers=delay(10)))
    rig = rig.crash("kept", random.Random(0))
    rig.disk.evict(rig.config.data_dir / "commitlog" / ("0" * 20))
    rig.clock.advance_ms(10)
    delivery = rig.broker.deliver_due()
    assert delivery.cold
    assert rig.cancel_timer("t", b"id")[0] == "cancelled"
    rig.read_cold(delivery.cold, is_delivery=True)
    assert rig.deliver_all() == 1
    assert values(rig) == [b"y"]


def test_a_cancel_that_is_too_late_or_names_nothing_changes_nothing(rig: BrokerRig) -> None:
    send(rig, Record(b"x", headers=delay(10, b"id")))
    rig.tick(10)
    wrote_pos = rig.broker.wrote_pos
    assert rig.cancel_timer("t", b"id")[0] == "delivered"
    assert rig.cancel_timer("t", b"nobody") == ("unknown", None, None)
    assert rig.broker.wrote_pos == wrote_pos
    assert values(rig) == [b"x"]


@pytest.mark.parametrize("first", ["by name", "by header"])
def test_a_second_cancel_finds_the_first_and_writes_nothing(rig: BrokerRig, first: str) -> None:
    send(rig, Record(b"x", headers=delay(10, b"id")))
    if first == "by name":
        rig.cancel_timer("t", b"id")
    else:
        send(rig, Record(b"", headers=cancel(b"id")))
    wrote_pos = rig.broker.wrote_pos
    assert rig.cancel_timer("t", b"id")[0] == "cancelled"
    assert rig.broker.wrote_pos == wrote_pos


def test_only_the_timer_that_has_the_id_now_is_cancelled(rig: BrokerRig) -> None:
    send(rig, Record(b"old", headers=delay(1_000, b"id")))
    send(rig, Record(b"new", headers=delay(2_000, b"id")))
    assert rig.cancel_timer("t", b"id")[0] == "cancelled"
    send(rig, Record(b"next", headers=delay(3_000, b"id")))
    rig = rig.crash("torn", random.Random(0))
    assert rig.timer_state("t", b"id")[0] == "pending"
    rig.tick(HOUR_MS)
    assert values(rig) == [b"next"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [1, 6, 7, 8, 255])
def test_a_durable_cancel_survives_a_crash(rig: BrokerRig, mode: CrashMode, size: int) -> None:
    user_id = bytes(range(256 - size, 256))
    send(rig, Record(b"x", headers=delay(1_000, user_id)), Record(b"y", headers=delay(1_000)))
    rig.cancel_timer("t", user_id)
    rig.flush()
    rig = rig.crash(mode, random.Random(size))
    assert rig.broker.pending_timers == 1
    assert rig.timer_state("t", user_id)[0] == "cancelled"
    rig.tick(1_000)
    assert values(rig) == [b"y"]


def test_a_cancel_that_was_not_flushed_is_gone_after_a_power_cut(rig: BrokerRig) -> None:
    """So nobody may be told of it before the flush."""
    send(rig, Record(b"x", headers=delay(1_000, b"id")))
    rig.cancel_timer("t", b"id")
    rig = rig.crash("dropped", random.Random(0))
    assert rig.timer_state("t", b"id")[0] == "pending"


def test_a_cancelled_id_is_forgotten_after_a_day(rig: BrokerRig) -> None:
    send(rig, Record(b"x", headers=delay(48 * HOUR_MS, b"id")))
    rig.cancel_timer("t", b"id")
    rig.clock.advance_ms(24 * HOUR_MS - 1)
    assert rig.timer_state("t", b"id")[0] == "cancelled"
    rig.clock.advance_ms(1)
    assert rig.timer_state("t", b"id")[0] == "unknown"


def test_a_full_disk_refuses_a_cancel_and_keeps_its_timer() -> None:
    disk = SimFileSystem()
    rig = BrokerRig(disk)
    rig.create_topic("t")
    send(rig, Record(b"x", headers=delay(1_000, b"id")))
    disk.free = 1_000
    while rig.produce("t", 0, [Record(b"fill" * 10)]).error == 0:
        pass
    with pytest.raises(RequestError, match="disk is full") as caught:
        rig.cancel_timer("t", b"id")
    assert caught.value.code == 56
    assert rig.timer_state("t", b"id")[0] == "pending"
    assert rig.tick(1_000) == 1


@pytest.mark.parametrize("user_id", [b"", bytes(256)])
def test_an_id_of_no_possible_length_is_a_mistake_of_the_caller(
    rig: BrokerRig, user_id: bytes
) -> None:
    with pytest.raises(ValueError, match="1 to 255"):
        rig.cancel_timer("t", user_id)


def test_many_cancels_go_over_the_ends_of_segments(rig: BrokerRig) -> None:
    """Each segment says who the topic is before the first cancel in it."""
    names = [b"%04d" % number for number in range(1_000)]
    for first in range(0, 1_000, 100):
        send(rig, *(Record(b"x", headers=delay(1_000, name)) for name in names[first:][:100]))
    begin = rig.broker.wrote_pos
    for name in names:
        assert rig.cancel_timer("t", name)[0] == "cancelled"
    assert rig.broker.wrote_pos - begin > 2 * rig.config.segment_size_bytes
    rig.flush()
    rig = rig.crash("torn", random.Random(0))
    assert rig.broker.pending_timers == 0
    assert {rig.timer_state("t", name)[0] for name in names} == {"cancelled"}


def test_a_timer_whose_record_rotted_can_be_cancelled_and_stays_so(rig: BrokerRig) -> None:
    """Its record cannot be delivered now; a later start might read it again."""
    begin = rig.broker.wrote_pos
    send(rig, Record(b"x", headers=delay(10, b"id")))
    rig = rig.crash("kept", random.Random(0))
    path, at = rig.config.data_dir / "commitlog" / ("0" * 20), begin + FRAME_HEADER_SIZE + 120
    rig.disk.evict(path)
    rig.disk.flip(path, at, 1)
    rig.clock.advance_ms(10)
    delivery = rig.broker.deliver_due()
    assert rig.read_cold(delivery.cold, is_delivery=True)
    assert rig.deliver_all() == 0
    assert rig.cancel_timer("t", b"id")[0] == "cancelled"
    rig.flush()
    rig.disk.flip(path, at, 1)
    rig = rig.crash("kept", random.Random(0))
    assert rig.timer_state("t", b"id")[0] == "cancelled"
    assert rig.deliver_all() == 0
    assert values(rig) == []
