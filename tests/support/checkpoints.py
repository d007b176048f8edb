"""Takes a checkpoint of a broker in process, as the pump does, and looks at what it left."""

from pathlib import Path

from appliance.store.checkpoint import Checkpoint, CheckpointFile
from appliance.store.checkpointer import CheckpointJob, MarkJob
from appliance.store.paths import DataPaths
from tests.support.broker_rig import BrokerRig
from tests.support.configs import DATA_DIR
from tests.support.sim_fs import SimFileSystem

PATHS = DataPaths(DATA_DIR)


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
