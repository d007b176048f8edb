"""The log of a data directory with its checkpoint, as the parts of a store share them. Layer 2."""

from dataclasses import dataclass

from appliance.store.checkpoint import CheckpointFile
from appliance.store.log.commit_log import CommitLog
from appliance.store.paths import DataPaths
from appliance.system.clock import Clock
from appliance.system.files import FileSystem


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFiles:
    """One data directory.

    Attributes:
        clock: of the store times and of pauses.
        fs: all files.
        paths: where they are.
        log: the CommitLog.
        checkpoint: the file of the checkpoint.
    """

    clock: Clock
    fs: FileSystem
    paths: DataPaths
    log: CommitLog
    checkpoint: CheckpointFile
