"""How full the disk is: both lines, what goes on beyond them, and the way back."""

import logging
import math
import random
from typing import Any

import pytest

from appliance.errors import DiskFullError, StorageError
from appliance.model import DiskState
from appliance.store.disk_space import HYSTERESIS_POINTS
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.offsets_client import Commit, OffsetsClient
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import small_config
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.kafka_records import Producer, Record, cancel, delay
from tests.support.values.topic_requests import SET, change_settings

STORAGE_ERROR = int(ErrorCode.kafka_storage_error)
PERCENT_BYTES = 1 << 20


def make_harness(**settings: Any) -> BrokerHarness:
    """A broker with the topic `t` on a disk of 100 MiB, of which a test says how full it is."""
    disk = SimFileSystem()
    disk.free = disk.size_bytes = 100 * PERCENT_BYTES
    return with_topic(2, disk=disk, config=small_config(**settings))


def fill_to(harness: BrokerHarness, percent: float) -> DiskState:
    """Let others fill the disk, and let the broker find out."""
    harness.disk.free = int((100 - percent) * PERCENT_BYTES)
    return wait(harness, 1_000)


def wait(harness: BrokerHarness, duration_ms: int) -> DiskState:
    harness.clock.advance_ms(duration_ms)
    harness.housekeep()
    return harness.broker.disk_space.state


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [each.getMessage() for each in caplog.records if each.name.endswith("disk_space")]
    caplog.clear()
    return found


def test_each_line_is_logged_once_with_figures_and_again_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    harness = make_harness()
    for percent, state, said in (
        (74.9, "ok", None),
        (75, "warn", "filling up, 75.0% used, 25.0 MiB of 100.0 MiB free"),
        (89.9, "warn", None),
        (90, "refusing", "almost full, 90.0% used, 10.0 MiB of 100.0 MiB free"),
        (95, "refusing", None),
        (
            87,
            "warn",
            "room again, 87.0% used, 13.0 MiB of 100.0 MiB free: new records are accepted",
        ),
        (80, "warn", None),
        (72, "ok", "room again, 72.0% used, 28.0 MiB of 100.0 MiB free"),
        (99, "refusing", "almost full, 99.0% used, 1.0 MiB of 100.0 MiB free"),
        (10, "ok", "room again, 10.0% used, 90.0 MiB of 100.0 MiB free: new records are accepted"),
    ):
        assert fill_to(harness, percent) == state
        lines = warnings(caplog)
        assert len(lines) == (said is not None), lines
        assert all(str(said) in line for line in lines)


def test_a_disk_at_a_line_does_not_alternate() -> None:
    harness = make_harness()
    assert fill_to(harness, 90) == "refusing"
    for percent in (89, 90, 90 - HYSTERESIS_POINTS, 91, 88.1, 90):
        assert fill_to(harness, percent) == "refusing"
    assert fill_to(harness, 87.9) == "warn"
    for percent in (89.9, 76, 74, 75 - HYSTERESIS_POINTS, 75):
        assert fill_to(harness, percent) == "warn"
    assert fill_to(harness, 72.9) == "ok"


def test_the_disk_is_asked_once_a_second() -> None:
    harness = make_harness()
    fill_to(harness, 10)
    harness.disk.free = 5 * PERCENT_BYTES
    for _ in range(9):
        assert wait(harness, 100) == "ok"
    assert wait(harness, 100) == "refusing"


def test_beyond_the_line_new_records_and_topics_are_refused_with_what_to_do() -> None:
    harness = make_harness()
    assert harness.produce("t", 0, [Record(b"before")]).error == 0
    fill_to(harness, 92)
    for record in (Record(b"x"), Record(b"x", headers=delay(1_000))):
        answer = harness.produce("t", 0, [record])
        assert answer.error == STORAGE_ERROR
        assert answer.message == (
            "the broker's disk is almost full, 92.0% used, 8.0 MiB of 100.0 MiB free: new records "
            "and topics are refused until less than 88% is used: free space on it, or raise "
            "disk.refuse_percent"
        )
    number = harness.send_create_topic("new")
    harness.flush()
    (topic,) = harness.answers()[number].topics
    assert (topic.error_code, topic.error_message) == (STORAGE_ERROR, answer.message)
    assert harness.broker.topics.find("new") is None
    # A batch with one record to store is no batch of cancels.
    mixed = [Record(None, headers=cancel(b"id")), Record(b"x")]
    assert harness.produce("t", 0, mixed).error == STORAGE_ERROR
    assert harness.values() == [b"before"]
    assert harness.broker.collect_metrics().request_errors == {STORAGE_ERROR: 3}


def test_due_records_cancels_commits_and_deletions_go_on_meanwhile() -> None:
    harness = make_harness()
    client = WireClient(harness)
    offsets = OffsetsClient(client)
    timers = [Record(name, headers=delay(60_000, name)) for name in (b"due", b"admin", b"header")]
    assert harness.produce("t", 0, timers).error == 0
    assert harness.produce("t", 1, [Record(b"%d" % number) for number in range(5)]).error == 0
    harness.create_topic("old")
    assert fill_to(harness, 95) == "refusing"

    assert harness.cancel_timer("t", b"admin")[0] == "cancelled"
    assert harness.produce("t", 0, [Record(None, headers=cancel(b"header"))]).error == 0
    assert offsets.commit("g", {("t", 1): Commit(3)}) == {("t", 1): 0}
    harness.broker.topics.delete_records(harness.topic(), {1: 3})
    harness.delete_topic("old")
    assert change_settings(client, "t", ("delay.max.ms", SET, "1000")) == 0
    assert harness.tick(60_000) == 1

    harness = harness.crash("dropped", random.Random(1))
    assert harness.values() == [b"due"]
    assert [record.value for record in harness.fetch("t", 1, 3)] == [b"3", b"4"]
    assert harness.broker.pending_timers == 0
    assert harness.broker.topics.find("old") is None
    assert harness.topic().settings == {"delay.max.ms": "1000"}


def test_writing_goes_on_without_a_restart_once_there_is_room() -> None:
    harness = make_harness()
    for _ in range(3):
        fill_to(harness, 95)
        assert harness.broker.disk_space.refusal is not None
        assert harness.produce("t", 0, [Record(b"x")]).error == STORAGE_ERROR
        fill_to(harness, 50)
        assert harness.broker.disk_space.refusal is None
        assert harness.produce("t", 0, [Record(b"x")]).error == 0
    assert harness.values() == [b"x"] * 3


def test_an_idempotent_producer_gets_its_first_answer_also_beyond_the_line() -> None:
    harness = make_harness()
    producer = Producer(harness.broker.allocate_producer_id(), 0, 0)
    first = harness.produce("t", 0, [Record(b"x")], producer)
    fill_to(harness, 95)
    assert harness.produce("t", 0, [Record(b"x")], producer) == first


def test_a_start_on_a_disk_beyond_the_line_refuses_from_the_first_request() -> None:
    harness = make_harness()
    harness.disk.free = 0
    harness = harness.restart()
    assert harness.broker.disk_space.state == "refusing"
    assert harness.produce("t", 0, [Record(b"x")]).error == STORAGE_ERROR


def test_a_line_of_a_hundred_percent_refuses_only_what_does_not_fit() -> None:
    harness = make_harness(disk_refuse_percent=100)
    assert fill_to(harness, 100) == "warn"
    while (answer := harness.produce("t", 0, [Record(bytes(2_000))])).error == 0:
        pass
    assert answer.error == STORAGE_ERROR
    assert wait(harness, 0) == "refusing"
    assert harness.produce("t", 0, [Record(bytes(2_000))]).message == (
        "the broker's disk is full, 100.0% used, 0 bytes of 100.0 MiB free: new records and "
        "topics are refused until there is room for a segment of 64.0 KiB: free space on it"
    )


def test_a_disk_that_fills_up_between_two_checks_is_logged_with_figures_of_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    harness = make_harness()
    assert wait(harness, 1_000) == "ok"
    harness.disk.free = 0
    while (answer := harness.produce("t", 0, [Record(bytes(2_000))])).error == 0:
        pass
    assert answer.error == STORAGE_ERROR
    disk_space = harness.broker.disk_space
    job = disk_space.step()
    assert job is not None
    # Until the file system answers, no figures are better than old ones.
    assert disk_space.state == "refusing"
    assert harness.produce("t", 0, [Record(bytes(2_000))]).message == (
        "the broker's disk is full: new records and topics are refused until there is room for a "
        "segment of 64.0 KiB: free space on it"
    )
    assert warnings(caplog) == []
    job.run()
    disk_space.end(job)
    (line,) = warnings(caplog)
    assert "is full, 100.0% used, 0 bytes of 100.0 MiB free" in line
    assert str(harness.produce("t", 0, [Record(bytes(2_000))]).message).startswith(
        "the broker's disk is full, 100.0% used"
    )


def test_an_answer_from_before_the_disk_was_full_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    harness = make_harness()
    assert wait(harness, 1_000) == "ok"
    harness.clock.advance_ms(1_000)
    disk_space = harness.broker.disk_space
    job = disk_space.step()
    assert job is not None
    job.run()
    harness.disk.free = 0
    while harness.produce("t", 0, [Record(bytes(2_000))]).error == 0:
        pass
    disk_space.end(job)
    assert disk_space.state == "refusing"
    assert warnings(caplog) == []
    job = disk_space.step()
    assert job is not None
    job.run()
    disk_space.end(job)
    (line,) = warnings(caplog)
    assert "is full, 100.0% used, 0 bytes of 100.0 MiB free" in line


def test_a_full_disk_is_over_as_soon_as_a_segment_fits_also_if_nobody_writes() -> None:
    harness = make_harness(disk_refuse_percent=100)
    fill_to(harness, 100)
    while harness.produce("t", 0, [Record(bytes(2_000))]).error == 0:
        pass
    for _ in range(3):
        wait(harness, 100)  # the file of units is made
    allocations = harness.disk.calls
    for _ in range(20):
        assert wait(harness, 100) == "refusing"
    assert harness.disk.calls == allocations, "a segment was tried where there is no room for one"
    harness.disk.free = harness.config.segment_size_bytes
    assert "warn" in {wait(harness, 100) for _ in range(15)}
    assert not harness.broker.gauges(0).disk_full
    assert harness.produce("t", 0, [Record(b"x")]).error == 0


def test_a_start_after_a_loss_may_close_offsets_with_the_reserve_for_deliveries() -> None:
    harness = make_harness(disk_refuse_percent=100)
    fill_to(harness, 100)
    for size in (2_000, 1):
        while harness.produce("t", 0, [Record(bytes(size))]).error == 0:
            pass
    change = harness.broker.topics.replace_settings
    with pytest.raises(DiskFullError):
        [change(harness.topic(), {"delay.max.ms": str(limit)}) for limit in range(1_000, 2_000)]
    partition = harness.partition()
    end = partition.next_offset + 1
    now_ms = harness.clock.wall_ms()
    assert harness.broker._store.writer.append_gap(
        partition, end_offset=end, store_time_ms=now_ms
    ), "the start would be refused"
    assert partition.next_offset == end


def test_a_disk_that_gets_full_beyond_the_line_accepts_no_new_record_before_the_line() -> None:
    """Also none that would fit into the last segment."""
    harness = make_harness()
    records = [Record(bytes(4_000), headers=delay(10_000)) for _ in range(60)]
    for record in records:
        assert harness.produce("t", 0, [record]).error == 0
    fill_to(harness, 100)
    assert harness.tick(20_000) > 0
    assert harness.broker.gauges(0).disk_full
    assert fill_to(harness, 89) == "refusing"
    assert harness.produce("t", 0, [Record(b"x")]).error == STORAGE_ERROR
    assert harness.tick(1_000) > 0
    assert fill_to(harness, 80) == "warn"
    assert harness.values() == [bytes(4_000)] * 60


def test_the_metrics_show_state_figures_and_the_seconds_that_are_left() -> None:
    harness = make_harness()
    gauges = harness.broker.gauges(0)
    assert math.isnan(gauges.disk_seconds_until_full)
    assert harness.broker.disk_space.status().seconds_until_full is None
    free = harness.disk.free
    for second in range(60):
        harness.disk.free = free - second * PERCENT_BYTES // 10
        wait(harness, 1_000)
    gauges = harness.broker.gauges(0)
    assert gauges.disk_total_bytes == 100 * PERCENT_BYTES
    assert gauges.disk_free_bytes == harness.disk.free
    assert gauges.disk_log_bytes == harness.config.segment_size_bytes
    # 94 MiB at 0.1 MiB a second
    assert gauges.disk_seconds_until_full == pytest.approx(940, rel=0.05)
    assert harness.broker.disk_space.status().seconds_until_full == int(
        gauges.disk_seconds_until_full
    )
    assert gauges.disk_state == 0
    for _ in range(400):
        wait(harness, 1_000)
    assert math.isnan(harness.broker.gauges(0).disk_seconds_until_full)
    assert [fill_to(harness, percent) for percent in (80, 95)] == ["warn", "refusing"]
    assert harness.broker.gauges(0).disk_state == 2


def test_growth_of_the_log_counts_before_it_takes_a_segment() -> None:
    harness = make_harness()
    for _ in range(11):
        harness.produce("t", 0, [Record(bytes(1_000))])
        wait(harness, 1_000)
    free = harness.disk.free
    left = harness.broker.gauges(0).disk_seconds_until_full
    assert harness.disk.free == free
    assert left == pytest.approx(free / 1_100, rel=0.2)


def test_a_file_system_that_cannot_be_asked_keeps_the_last_state(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = make_harness()
    fill_to(harness, 95)
    warnings(caplog)

    def fail(*_: object) -> None:
        raise StorageError(harness.config.data_dir, "statvfs", 5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(harness.disk, "usage", fail)
        for _ in range(3):
            assert wait(harness, 1_000) == "refusing"
        (line,) = warnings(caplog)
        assert "statvfs of /data failed: Input/output error" in line
    assert fill_to(harness, 10) == "ok"
