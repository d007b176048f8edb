"""The first changes of a start in its directory, and what it leaves out of the log. Layer 2."""

from appliance.errors import StorageError
from appliance.store.checkpoint import NO_CLUSTER, Checkpoint
from appliance.store.log.commit_log import CommitLog
from appliance.store.log.data_files import DataFiles
from appliance.store.log.segment import FreedSegment
from appliance.store.log_snapshots import remove_incomplete
from appliance.store.paths import DataPaths
from appliance.store.recovery.log_presence import cluster_of
from appliance.store.state.control_frames import HeadFrame
from appliance.system.files import FileSystem


def enter_directory(files: DataFiles) -> None:
    """Create the abort file before the first change: it survives if this start is killed.

    Raises:
        StorageError: it could not be made.
    """
    fs, paths = files.fs, files.paths
    # A start that was killed may have made the directories without syncing their names.
    fs.sync_dir(paths.root.parent)
    if not fs.exists(paths.abort):
        fs.open(paths.abort, create=True).close()
    fs.sync_dir(paths.root)
    files.checkpoint.ensure()
    remove_incomplete(fs, paths)


def sync_parents(fs: FileSystem, paths: DataPaths) -> None:
    """Make the path to the data directory durable, as far as permissions allow.

    Raises:
        StorageError: a sync failed, which ends the process.
    """
    for directory in paths.root.parents:
        try:
            fs.sync_dir(directory)
        except StorageError as error:
            if error.is_fatal:
                raise


def forget_freed(
    log: CommitLog, known: Checkpoint | None, heads: dict[int, HeadFrame]
) -> list[FreedSegment]:
    """Take the segments out of the log that were freed when a crash kept their files.

    Args:
        log: its segments are open.
        known: the newest intact copy of the checkpoint, None if there is none.
        heads: of the segments, by base position; loses those of the freed ones.
    """
    if known is None or known.log.cluster == NO_CLUSTER:
        return []
    start = known.log.start
    if cluster_of(heads) != known.log.cluster or start not in log.files.bases:
        return []
    for base in [base for base in heads if base < start]:
        del heads[base]
    return log.forget_head(start)
