"""Takes a checkpoint of a broker in process, as the pump does, and looks at what it left."""

import random
from pathlib import Path
from typing import Final

from appliance.store.checkpoint import Checkpoint, CheckpointFile
from appliance.store.checkpointer import CheckpointJob, MarkJob
from appliance.store.group_frames import GROUP_TOLD, OFFSET_COMMITTED, GroupFrame, OffsetEntry
from appliance.store.paths import DataPaths
from tests.support.broker_rig import BrokerRig, Digest
from tests.support.configs import DATA_DIR
from tests.support.kafka_records import Producer, Record, cancel, delay
from tests.support.sim_fs import SimFileSystem

PATHS: Final = DataPaths(DATA_DIR)
DERIVED: Final = (PATHS.consume_queue, PATHS.timer, PATHS.index, PATHS.control)
USER_IDS: Final = tuple(b"id-%d" % number for number in range(8))


def capture(rig: BrokerRig) -> CheckpointJob | MarkJob:
    """Begin a checkpoint and do the loop's part of it; its job is yet to run."""
    rig.flush()
    rig.broker.checkpoints.ask()
    while True:
        job = rig.broker.checkpoints.step()
        if job is not None:
            return job
        assert rig.broker.checkpoints.is_capturing


def take_checkpoint(rig: BrokerRig) -> CheckpointJob:
    """Flush, and take one; `error` of what is returned is None if it was saved."""
    job = capture(rig)
    assert isinstance(job, CheckpointJob)
    job.run()
    rig.broker.checkpoints.end(job)
    return job


def told_on(disk: SimFileSystem, path: Path = PATHS.checkpoint) -> CheckpointFile:
    """The checkpoint file as a start reads it."""
    file = CheckpointFile(disk, path)
    file.open()
    file.close()
    return file


def newest_of(disk: SimFileSystem) -> Checkpoint:
    """Its newest whole copy."""
    newest = told_on(disk).last
    assert newest is not None
    return newest


def read_every_unit(rig: BrokerRig) -> None:
    """Ask for every record whose unit is in a file: a unit that is wrong is made anew then."""
    for topic in rig.broker.topics():
        for partition in topic.partitions:
            for offset in range(partition.start_offset, partition.units_saved):
                rig.read_cold([(partition.handle, offset)])


# Brokers that have something to save, and what their states must be


def commit(rig: BrokerRig, group: str, offset: int, partition: int = 0, topic: str = "t") -> None:
    """Commit an offset of a group; it is in the log with the turn."""
    found = rig.broker.find_topic(topic)
    assert found is not None
    entry = OffsetEntry(
        op=OFFSET_COMMITTED,
        group=group,
        topic_id=found.topic_id,
        partition=partition,
        offset=offset,
    )
    rig.broker.commit_offsets([entry])


def change(rig: BrokerRig, number: int) -> None:
    """A little of everything that a state holds."""
    rig.produce("t", number % 2, [Record(b"plain %d" % number)], Producer(number % 3, 0, number))
    user_id = USER_IDS[number % len(USER_IDS)]
    rig.produce("t", 0, [Record(b"timer", headers=delay(300 * number + 100, user_id))])
    if number % 3 == 2:
        rig.produce("t", 1, [Record(b"", headers=cancel(USER_IDS[(number - 1) % len(USER_IDS)]))])
    rig.tick(200)
    rig.broker.tell_group(GroupFrame(op=GROUP_TOLD, group=f"g{number % 4}", generation=number))
    commit(rig, f"g{number % 5}", number, number % 2)
    rig.broker.allocate_producer_id()
    rig.broker.commit()


def crashed(rig: BrokerRig) -> SimFileSystem:
    """What a crash would leave if the kernel still wrote all it has."""
    return rig.disk.crashed("kept", random.Random(0))


def start(rig: BrokerRig, disk: SimFileSystem) -> BrokerRig:
    """A start on a disk, with clock and settings of another broker."""
    return BrokerRig(disk, rig.clock, rig.config)


def rebuild(rig: BrokerRig, disk: SimFileSystem) -> BrokerRig:
    """A start from the log alone, on a copy of a disk."""
    bare = disk.crashed("kept", random.Random(0))
    for path in DERIVED:
        bare.remove_tree(path)
    if bare.exists(PATHS.checkpoint):
        bare.unlink(PATHS.checkpoint)
    started = start(rig, bare)
    assert started.report.checkpoint == 0
    return started


def rebuilt(rig: BrokerRig, disk: SimFileSystem) -> Digest:
    """What a start from the log alone finds."""
    return rebuild(rig, disk).digest(USER_IDS)


def check_loads(rig: BrokerRig, disk: SimFileSystem, number: int) -> BrokerRig:
    """A start begins from that state, and is like one from the log alone."""
    expected = rebuild(rig, disk)
    started = start(rig, disk)
    assert started.report.checkpoint == number, started.report
    assert started.report.rejected == ()
    assert started.broker._store.projections.totals == expected.broker._store.projections.totals
    assert started.digest(USER_IDS) == expected.digest(USER_IDS)
    return started
