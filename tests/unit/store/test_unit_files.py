"""Files of units are made ahead by a thread; the event loop makes one only if it has to."""

import errno
import random
from pathlib import Path

import pytest

from _core.bytes.layout import UNIT_SIZE, UNITS_PER_FILE
from _core.queue.partition import Partition
from appliance.store import unit_saver
from appliance.store.paths import DataPaths, segment_name
from appliance.store.queue import consume_queue
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import DATA_DIR
from tests.support.values.kafka_records import Record

COUNT = 200
"""Enough units to be worth a write."""

PATHS = DataPaths(DATA_DIR)


def produce(harness: BrokerHarness, count: int = COUNT, partition: int = 0) -> None:
    for _ in range(count // COUNT):
        assert harness.produce("t", partition, [Record(b"x")] * COUNT).error == 0


def sweep(harness: BrokerHarness) -> None:
    """Visit all partitions; no thread makes files."""
    for _ in range(2):  # the first one only begins
        harness.broker.housekeep()


def partition_of(harness: BrokerHarness) -> Partition:
    partition: Partition = harness.topic().partitions[0]
    return partition


def file_at(first: int) -> Path:
    return PATHS.queue("t", 0) / segment_name(first * UNIT_SIZE)


def test_units_wait_in_memory_until_their_file_is_made() -> None:
    harness = with_topic(1)
    produce(harness)
    sweep(harness)
    assert partition_of(harness).unsaved_count == COUNT
    assert not harness.disk.exists(PATHS.queue("t", 0))
    harness.make_unit_files()
    assert harness.disk.exists(file_at(0))
    sweep(harness)
    assert partition_of(harness).unsaved_count == 0
    assert len(harness.fetch("t", 0, 0)) == COUNT


def test_the_loop_makes_the_file_when_too_many_units_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_saver, "UNITS_WAITING_MAX", 2 * COUNT)
    harness = with_topic(1)
    produce(harness, 2 * COUNT)
    sweep(harness)
    assert partition_of(harness).unsaved_count == 2 * COUNT
    produce(harness)
    sweep(harness)
    assert partition_of(harness).unsaved_count == 0


def test_the_next_file_is_made_before_units_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_queue, "UNITS_AHEAD", UNITS_PER_FILE - 2 * COUNT)
    harness = with_topic(1)
    for is_there in (False, True):
        produce(harness)
        for _ in range(3):
            harness.housekeep()
        assert partition_of(harness).unsaved_count == 0
        assert harness.disk.exists(file_at(UNITS_PER_FILE)) is is_there
    again = harness.crash("all", random.Random(1))
    assert len(again.fetch("t", 0, 0)) == 2 * COUNT
    produce(again)
    assert len(again.fetch("t", 0, 0)) == 3 * COUNT


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_topic_that_is_deleted_meanwhile_leaves_no_file(*, is_made_again: bool) -> None:
    harness = with_topic(1)
    produce(harness)
    sweep(harness)
    units = harness.broker.units
    job = units.begin_files()
    assert job is not None
    assert units.begin_files() is None, "one at a time"
    harness.broker.topics.delete("t")
    if is_made_again:
        harness.broker.topics.create("t", 1, {})
    job.run()
    units.end_files(job)
    assert harness.disk.exists(PATHS.consume_queue / "t") is is_made_again
    assert not harness.broker._store._queues._made, "nothing is kept of a deleted topic"
    if is_made_again:
        produce(harness)
        for _ in range(4):
            harness.housekeep()
        assert partition_of(harness).unsaved_count == 0
        assert len(harness.fetch("t", 0, 0)) == COUNT


def test_a_file_that_cannot_be_made_is_asked_for_again() -> None:
    harness = with_topic(1)
    produce(harness)
    sweep(harness)
    units, disk = harness.broker.units, harness.disk
    job = units.begin_files()
    assert job is not None
    disk.fail_at(disk.calls + 1, OSError(errno.ENOSPC, "no room"), sticky=True)
    job.run()
    disk.heal()
    units.end_files(job)
    sweep(harness)
    assert partition_of(harness).unsaved_count == COUNT
    assert len(harness.fetch("t", 0, 0)) == COUNT
    for _ in range(3):
        harness.housekeep()
    assert partition_of(harness).unsaved_count == 0


def test_many_files_are_made_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_saver, "FILES_PER_JOB", 2)
    harness = with_topic(5)
    for partition in range(5):
        produce(harness, partition=partition)
    sweep(harness)
    made = []
    while (job := harness.broker.units.begin_files()) is not None:
        job.run()
        harness.broker.units.end_files(job)
        made.append(len(job.made))
        sweep(harness)
    assert made == [2, 2, 1]
