"""Takes a checkpoint of a broker in process, as the pump does, and reads the result."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Final

from appliance.store.checkpoint import Checkpoint, CheckpointFile
from appliance.store.paths import DataPaths
from appliance.store.state.checkpointer import CheckpointJob
from appliance.store.state.group_frames import OFFSET_COMMITTED, OffsetEntry
from tests.support.harness.broker_harness import BrokerHarness, Digest
from tests.support.harness.configs import DATA_DIR
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.group_changes import changed_group
from tests.support.values.kafka_records import Producer, Record, cancel, delay

PATHS: Final = DataPaths(DATA_DIR)
DERIVED: Final = (
    PATHS.consume_queue,
    PATHS.timer,
    PATHS.timer_log,
    PATHS.index,
    PATHS.control,
)
USER_IDS: Final = tuple(b"id-%d" % number for number in range(8))


def capture(harness: BrokerHarness) -> CheckpointJob:
    """Begin a checkpoint and do the event loop's part of it; its job has yet to run."""
    harness.flush()
    harness.broker.checkpoints.ask()
    while True:
        job = harness.broker.checkpoints.step()
        if job is not None:
            return job
        assert harness.broker.checkpoints.is_capturing


def take_checkpoint(harness: BrokerHarness) -> CheckpointJob:
    """Flush and take a checkpoint; `error` of the returned job is None if it was saved."""
    job = capture(harness)
    job.run()
    harness.broker.checkpoints.end(job)
    return job


def try_checkpoint(harness: BrokerHarness) -> bool:
    """Go on with checkpoints as the pump does; return whether one was saved."""
    harness.flush()
    checkpoints = harness.broker.checkpoints
    job = checkpoints.step()
    while job is None and checkpoints.is_capturing:
        job = checkpoints.step()
    if job is None:
        return False
    job.run()
    checkpoints.end(job)
    return job.error is None


def checkpoint_file_on(disk: SimFileSystem, path: Path = PATHS.checkpoint) -> CheckpointFile:
    """The checkpoint file as a start reads it."""
    file = CheckpointFile(disk, path)
    file.open()
    file.close()
    return file


def newest_of(disk: SimFileSystem) -> Checkpoint:
    """The newest whole copy in the checkpoint file."""
    newest = checkpoint_file_on(disk).last
    assert newest is not None
    return newest


def read_every_unit(harness: BrokerHarness) -> None:
    """Look up every record whose unit is in a file, which rebuilds units that are wrong."""
    for topic in harness.broker.topics.all():
        for partition in topic.partitions:
            for offset in range(partition.start_offset, partition.units_saved):
                harness.read_cold([(partition.handle, offset)])


# Brokers with state to save, and what a start on that state must give


def commit(
    harness: BrokerHarness, group: str, offset: int, partition: int = 0, topic: str = "t"
) -> None:
    """Commit an offset of a group; it is written at the end of the turn."""
    found = harness.topic(topic)
    entry = OffsetEntry(
        op=OFFSET_COMMITTED,
        group=group,
        topic_id=found.topic_id,
        partition=partition,
        offset=offset,
    )
    harness.broker.groups.commit_offsets([entry])


def change(harness: BrokerHarness, number: int) -> None:
    """Change a little of everything that a checkpoint saves."""
    harness.produce(
        "t", number % 2, [Record(b"plain %d" % number)], Producer(number % 3, 0, number)
    )
    user_id = USER_IDS[number % len(USER_IDS)]
    harness.produce("t", 0, [Record(b"timer", headers=delay(300 * number + 100, user_id))])
    if number % 3 == 2:
        harness.produce(
            "t", 1, [Record(b"", headers=cancel(USER_IDS[(number - 1) % len(USER_IDS)]))]
        )
    harness.tick(200)
    groups, name = harness.broker.groups, f"g{number % 4}"
    group = changed_group(random.Random(number), groups.groups.get(name), name)
    groups.save_group(replace(group, generation=number))
    commit(harness, f"g{number % 5}", number, number % 2)
    harness.broker.allocate_producer_id()
    harness.broker.commit()


def crashed(harness: BrokerHarness) -> SimFileSystem:
    """The disk after a crash in which the kernel still wrote all it had."""
    return harness.disk.crashed("kept", random.Random(0))


def start(harness: BrokerHarness, disk: SimFileSystem) -> BrokerHarness:
    """Start on a disk, with clock and settings of another broker."""
    return BrokerHarness(disk, harness.clock, harness.config)


def rebuild(harness: BrokerHarness, disk: SimFileSystem) -> BrokerHarness:
    """Start from the log alone, on a copy of a disk."""
    bare = disk.crashed("kept", random.Random(0))
    for path in DERIVED:
        bare.remove_tree(path)
    if bare.exists(PATHS.checkpoint):
        bare.unlink(PATHS.checkpoint)
    started = start(harness, bare)
    assert started.report.checkpoint == 0
    return started


def rebuilt(harness: BrokerHarness, disk: SimFileSystem) -> Digest:
    """The state that a start from the log alone recovers."""
    return rebuild(harness, disk).digest(USER_IDS)


def check_loads(harness: BrokerHarness, disk: SimFileSystem, number: int) -> BrokerHarness:
    """Check that a start loads that state and equals a start from the log alone."""
    expected = rebuild(harness, disk)
    started = start(harness, disk)
    assert started.report.checkpoint == number, started.report
    assert started.report.rejected == ()
    assert (
        started.broker._store.state.projections.totals
        == expected.broker._store.state.projections.totals
    )
    assert started.digest(USER_IDS) == expected.digest(USER_IDS)
    return started
