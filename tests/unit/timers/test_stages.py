"""A stage that an operator has stopped: nothing is lost, early or twice, and it is seen."""

import random
from typing import Any

import pytest

from _core.bytes.layout import FRAME_FLAG_OPTIONAL, FRAME_HEADER_SIZE, KIND_STAGES
from _core.log.frames import read_header
from appliance.errors import DiskFullError
from appliance.pending_timers import Backlog
from appliance.timer_stages import STAGES, Stage
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.checkpoints import take_checkpoint
from tests.support.harness.slave_harness import SlaveHarness
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Record, cancel, delay


@pytest.fixture
def harness() -> BrokerHarness:
    return with_topic(2)


def send(harness: BrokerHarness, *records: Record) -> int:
    code: int = harness.produce("t", 0, records).error
    return code


def stop(harness: BrokerHarness, stage: Stage, *, is_stopped: bool = True) -> None:
    harness.broker.stages.change(stage, is_stopped=is_stopped)


def test_delayed_records_are_refused_and_others_are_not(harness: BrokerHarness) -> None:
    assert send(harness, Record(b"a", headers=delay(1_000, b"a"))) == 0
    stop(harness, "enqueue")
    for headers in (delay(1_000), delay(1_000, b"a")):
        assert send(harness, Record(b"b", headers=headers)) == ErrorCode.kafka_storage_error
        mixed = Record(b"plain"), Record(b"b", headers=headers)
        assert send(harness, *mixed) == ErrorCode.kafka_storage_error
    assert send(harness, Record(b"plain")) == 0
    assert harness.broker.collect_metrics().delay_refused["stopped"] == 4
    assert send(harness, Record(b"", headers=cancel(b"a"))) == 0
    assert harness.broker.pending_timers == 0
    stop(harness, "enqueue", is_stopped=False)
    assert send(harness, Record(b"c", headers=delay(1_000))) == 0
    harness.tick(1_000)
    assert harness.values() == [b"plain", b"c"]


def test_timers_that_are_pending_are_delivered_while_others_are_refused(
    harness: BrokerHarness,
) -> None:
    assert send(harness, Record(b"a", headers=delay(1_000))) == 0
    stop(harness, "enqueue")
    assert harness.tick(1_000) == 1
    assert harness.values() == [b"a"]


def test_due_records_wait_and_come_in_order(harness: BrokerHarness) -> None:
    records = [Record(b"%d" % number, headers=delay(1_000 - number)) for number in range(50)]
    assert send(harness, *records) == 0
    stop(harness, "dequeue")
    assert harness.next_wake_ms() is None
    assert harness.tick(5_000) == 0
    assert harness.values() == []
    assert send(harness, Record(b"at once"), Record(b"later", headers=delay(1))) == 0
    harness.clock.advance_ms(2_000)
    harness.housekeep()
    timers, now_ms = harness.broker.timers, harness.clock.wall_ms()
    assert timers.backlog(now_ms, timers.next_due_ms()) == Backlog(51, 2_000 + 5_000 - 951)
    assert harness.broker.pending_timers == 51
    stop(harness, "dequeue", is_stopped=False)
    assert harness.next_wake_ms() is not None
    assert harness.deliver_all() == 51
    assert harness.values() == [b"at once", *[b"%d" % n for n in reversed(range(50))], b"later"]


def test_cold_records_wait_as_well(harness: BrokerHarness) -> None:
    assert send(harness, Record(b"cold", headers=delay(10))) == 0
    harness = harness.crash("kept", random.Random(0))
    harness.disk.evict(harness.config.data_dir / "commitlog" / ("0" * 20))
    harness.clock.advance_ms(10)
    delivery = harness.broker.deliver_due()
    assert delivery.cold
    stop(harness, "dequeue")
    harness.read_cold(delivery.cold, is_delivery=True)
    assert not harness.broker.is_delivery_waiting
    assert harness.deliver_all() == 0
    stop(harness, "dequeue", is_stopped=False)
    assert harness.deliver_all() == 1
    assert harness.values() == [b"cold"]


def stopped(harness: BrokerHarness) -> list[Stage]:
    return [stage for stage in STAGES if harness.broker.stages.is_stopped(stage)]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("is_saved", [False, True])
@pytest.mark.parametrize("how", ["clean", "kept", "killed", "dropped", "torn"])
def test_a_stop_lasts_through_starts_until_somebody_starts_the_stage(
    harness: BrokerHarness, how: Any, stage: Stage, *, is_saved: bool
) -> None:
    assert send(harness, Record(b"a", headers=delay(1_000))) == 0
    stop(harness, stage)
    harness.flush()
    if is_saved:
        take_checkpoint(harness)
    for _ in range(2):
        harness = harness.reborn(how)
        assert stopped(harness) == [stage]
        is_refused = send(harness, Record(b"b", headers=delay(500_000))) != 0
        assert is_refused == (stage == "enqueue")
        harness.tick(1_000)
        harness.flush()
        assert harness.values() == ([] if stage == "dequeue" else [b"a"])
    stop(harness, stage, is_stopped=False)
    harness.flush()
    harness = harness.reborn(how)
    assert stopped(harness) == []
    harness.deliver_all()
    assert harness.values() == [b"a"]


def test_a_stop_that_is_not_on_the_disk_may_be_gone(harness: BrokerHarness) -> None:
    harness.flush()
    stop(harness, "dequeue")
    harness.broker.commit()
    assert stopped(harness.reborn("dropped")) == []


def test_an_older_latermq_skips_the_frame(harness: BrokerHarness) -> None:
    begin = harness.broker.wrote_pos
    stop(harness, "dequeue")
    harness.flush()
    header = read_header(harness.broker.log.read(begin, FRAME_HEADER_SIZE))
    assert header["kind"] == KIND_STAGES
    assert header["flags"] == FRAME_FLAG_OPTIONAL


def test_a_promoted_slave_knows_what_is_stopped() -> None:
    master, slave = with_topic(), SlaveHarness()
    assert send(master, Record(b"a", headers=delay(1_000))) == 0
    stop(master, "dequeue")
    master.flush()
    slave.receive(master)
    slave.flush()
    promoted = slave.promote()
    assert stopped(promoted) == ["dequeue"]
    assert promoted.tick(5_000) == 0
    stop(promoted, "dequeue", is_stopped=False)
    assert promoted.deliver_all() == 1
    assert promoted.values() == [b"a"]


def test_nothing_is_stopped_on_a_full_disk_that_cannot_save_it() -> None:
    disk = SimFileSystem()
    harness = BrokerHarness(disk)
    harness.create_topic("t")
    disk.free = 1_000
    while not send(harness, Record(b"fill" * 400)):
        pass

    def toggle(count: int) -> None:
        for _ in range(count):
            stop(harness, "dequeue", is_stopped=not stopped(harness))

    with pytest.raises(DiskFullError):
        toggle(10_000)
    was_stopped = stopped(harness)
    disk.free = 1 << 30
    harness.flush()
    assert stopped(harness.reborn("killed")) == was_stopped


def test_a_change_is_logged_once(harness: BrokerHarness, caplog: pytest.LogCaptureFixture) -> None:
    for is_stopped in (False, True, True, False):
        stop(harness, "dequeue", is_stopped=is_stopped)
    found = [each.message for each in caplog.records if "stage" in each.message]
    assert found == ["the dequeue stage is stopped", "the dequeue stage is started"]
