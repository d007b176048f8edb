"""What the metrics say of the bytes that nothing needs any longer."""

import pytest

from appliance.units import MS_PER_DAY, MS_PER_MINUTE
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.values.kafka_records import Record, delay
from tests.unit.retention.test_freeing import (
    SEGMENT,
    broker,
    fill,
    ready_to_free,
    run,
    start_pos,
)


def reclaimable(harness: BrokerHarness) -> int:
    return harness.broker.gauges(0).log_reclaimable_bytes


def dead(harness: BrokerHarness) -> int:
    return harness.broker.gauges(0).log_dead_bytes


def test_segments_that_are_freed_next_can_be_reclaimed() -> None:
    harness = ready_to_free()
    first_kept = harness.broker.wrote_pos // SEGMENT * SEGMENT
    assert reclaimable(harness) == first_kept == 3 * SEGMENT
    for _ in range(2):
        harness.free_head()
        harness.flush()
    assert harness.broker.head_freer.freed_bytes == start_pos(harness) == first_kept
    assert reclaimable(harness) == 0


def test_what_a_pending_timer_keeps_cannot_be_reclaimed() -> None:
    harness = broker()
    harness.create_topic("t")
    later = Record(b"x" * 4_000, headers=delay(9 * MS_PER_DAY))
    for _ in range(24):
        assert harness.produce("t", 0, [later]).error == 0
    fill(harness, 1)
    run(harness, MS_PER_DAY, 30 * MS_PER_MINUTE)
    # The timers are not moved while the log has less than twice its live bytes.
    assert start_pos(harness) == 0
    assert reclaimable(harness) == 0
    assert dead(harness) == pytest.approx(SEGMENT, rel=0.25)


def test_dead_bytes_are_those_of_expired_records_and_deleted_topics() -> None:
    harness = broker()
    harness.create_topic("t", 1, {"retention.ms": "-1"})
    harness.create_topic("kept", 1, {"retention.ms": "-1"})
    harness.produce("kept", 0, [Record(b"first")])
    fill(harness, 2)
    run(harness, 4 * MS_PER_MINUTE)
    few = dead(harness)
    assert few < SEGMENT // 8
    partition = harness.partition()
    middle = partition.next_offset // 2
    harness.broker.topics.delete_records(harness.topic(), {0: middle})
    run(harness, 4 * MS_PER_MINUTE)
    assert dead(harness) - few == pytest.approx(SEGMENT, rel=0.1)
    harness.delete_topic("t")
    run(harness, 4 * MS_PER_MINUTE)
    assert dead(harness) - few == pytest.approx(2 * SEGMENT, rel=0.1)
    assert start_pos(harness) == 0


def test_the_disk_is_used_or_free() -> None:
    harness = broker()
    harness.housekeep()
    gauges = harness.broker.gauges(0)
    assert gauges.disk_used_bytes + gauges.disk_free_bytes == gauges.disk_total_bytes
    assert gauges.disk_used_bytes >= harness.broker.log.size_bytes
