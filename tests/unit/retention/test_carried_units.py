"""The units of carried records: saved when their frames are durable, and few are in memory."""

import random

import pytest

from _core.bytes.layout import UNIT_SIZE
from appliance.store.head import record_carrier
from appliance.store.paths import segment_name
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.carrying import (
    carrier_of,
    carry,
    free_below,
    last_base,
    raw_records,
    sweep,
)
from tests.support.harness.checkpoints import PATHS, start, take_checkpoint
from tests.support.harness.configs import small_config
from tests.support.values.kafka_records import Record
from tests.unit.retention.test_carry_faults import (
    KEPT,
    MODES,
    check,
    fill,
    keep,
    places,
    ready_to_carry,
)


def test_a_power_cut_leaves_no_unit_that_names_a_frame_which_was_never_durable() -> None:
    harness = ready_to_carry()
    expected = raw_records(harness, "kept")
    carry(harness, last_base(harness))
    queues = harness.broker._store._queues
    queues.save(harness.partition(topic="kept"))
    for mode in MODES:
        started = start(harness, harness.disk.crashed(mode, random.Random(3)))
        started.make_cold()
        assert raw_records(started, "kept") == expected
        assert started.broker.damage == []
    assert harness.partition(topic="kept").moved_count > 0
    harness.flush()
    queues.save(harness.partition(topic="kept"))
    assert harness.partition(topic="kept").moved_count == 0


def test_units_rebuilt_while_their_records_are_carried_are_ignored() -> None:
    """A thread finds the earlier places; the later records of the partition stay nevertheless."""
    harness = BrokerHarness(config=small_config(completed_id_memory_ms=1))
    harness.create_topic("t")
    harness.create_topic("kept", 1, KEPT)
    for number in range(20):
        keep(harness, number)
    fill(harness, 2.2)
    late = harness.partition(topic="kept").next_offset
    for number in range(20):
        keep(harness, number)
    fill(harness, 1.2)
    harness.broker.topics.delete_records(harness.topic(), {0: harness.partition().next_offset})
    harness.flush()
    take_checkpoint(harness)
    harness = harness.restart()
    expected = raw_records(harness, "kept")
    sweep(harness)
    partition = harness.partition(topic="kept")
    cut = max(base for base in harness.broker.log.files.bases if base <= places(harness)[late])

    queue = PATHS.queue("kept", 0) / segment_name(0)
    harness.disk.flip(queue, UNIT_SIZE * 5 + 6, 2)
    harness.make_cold()
    read = harness.broker.read_cold([(partition.handle, 5)])
    carry(harness, cut)
    parts = partition.carried_parts()
    assert [part[:2] for part in parts] == [(0, late)]
    harness.broker.note_read(read, is_delivery=False)
    assert partition.carried_parts() == parts
    harness.flush()
    sweep(harness)
    assert harness.broker.retention.kept_from <= places(harness)[late]
    take_checkpoint(harness)
    free_below(harness, harness.broker.retention.kept_from)
    assert harness.broker.log.start_pos >= cut
    harness.make_cold()
    check(harness, expected)


def test_a_carry_waits_for_a_flush_when_many_units_are_not_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_carrier, "MOVED_MAX", 64)
    monkeypatch.setattr(record_carrier, "SLICE_FRAMES", 16)
    harness = BrokerHarness(config=small_config(completed_id_memory_ms=1))
    harness.create_topic("t")
    harness.create_topic("kept", 1, KEPT)
    for _ in range(400):
        assert harness.produce("kept", 0, [Record(b"x")]).error == 0
    fill(harness, 3)
    harness.flush()
    take_checkpoint(harness)
    expected, partition = raw_records(harness, "kept"), harness.partition(topic="kept")
    waits, most = 0, 0

    def between() -> None:
        nonlocal waits, most
        most = max(most, partition.moved_count)
        if carrier_of(harness).is_waiting:
            carried_bytes = carrier_of(harness).carried_bytes
            assert carrier_of(harness).step() is None
            assert carrier_of(harness).carried_bytes == carried_bytes
            waits += 1
            harness.flush()

    carry(harness, last_base(harness), between)
    assert waits >= 400 // (64 + 16)
    assert 64 <= most <= 64 + 16
    harness.make_cold()
    assert raw_records(harness, "kept") == expected
    free_waiting(harness)
    assert raw_records(harness, "kept") == expected


def free_waiting(harness: BrokerHarness) -> None:
    """Let a pass that has to wait for flushes free what can go."""
    fill(harness, 1)
    harness.flush()
    sweep(harness)
    cut = last_base(harness)
    harness.broker.head_freer.require(cut)
    harness.broker.head_freer.hurry()
    turns = 0
    while harness.broker.log.start_pos < cut:
        harness.free_head()
        waits = carrier_of(harness).is_waiting
        assert not harness.broker.head_freer.is_carrying
        harness.flush()
        turns += waits
    assert turns >= 2
