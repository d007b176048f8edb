"""What a slave has that its master lacks: kept aside, and cut off the log.

    diverged/POSITION-EPOCH         bytes from a log position on; the epoch is that of the last one
    diverged/POSITION-EPOCH-log/    the segments of a log that shared nothing with the master's

Frames that only one node wrote before another one was promoted were never part of the log that both
share from then on. Only people read these files. Layer 2.
"""

from contextlib import closing
from typing import Final

from appliance.store.checkpoint import NOT_OWN, LogIdentity
from appliance.store.log.data_files import DataFiles
from appliance.store.paths import segment_name
from appliance.units import GIB, MIB

KEPT_MAX_BYTES: Final = GIB
STEP_BYTES: Final = MIB


def keep_tail(files: DataFiles, start: int, end: int, *, epoch: int) -> None:
    """Copy the bytes between two log positions aside, durably; at most KEPT_MAX_BYTES.

    Args:
        files: the directory.
        start, end: log positions.
        epoch: of the last frame between them.

    Raises:
        StorageError: it failed; the disk may be full. The log is as it was.
    """
    paths, fs = files.paths, files.fs
    fs.make_dirs(paths.diverged)
    end = min(end, start + KEPT_MAX_BYTES)
    with closing(fs.open(paths.diverged_file(start, epoch), create=True)) as file:
        for pos in range(start, end, STEP_BYTES):
            data = files.log.files.read_raw(pos, min(STEP_BYTES, end - pos))
            file.pwritev([data], pos - start)
        file.fdatasync()
    fs.sync_dir(paths.diverged)
    fs.sync_dir(paths.root)


def cut_log(files: DataFiles, pos: int) -> None:
    """Let the log end at a log position, and let the checkpoint claim nothing beyond it.

    Args:
        files: the directory.
        pos: the end of a whole frame.

    Raises:
        StorageError: a file could not be changed or synced.
    """
    # First the claims: after a crash in between, the log only has a tail that nobody vouches for.
    checkpoint = files.checkpoint
    states = [state for state in checkpoint.states if state.applied <= pos]
    checkpoint.adopt(states, is_own=True)
    checkpoint.lower_flushed(pos)
    checkpoint.rewrite(pos)
    _remove_key_index(files)
    files.log.files.cut(pos)


def move_log(files: DataFiles, *, epoch: int) -> None:
    """Move the whole log to diverged/: the slave starts anew.

    Args:
        files: the directory.
        epoch: of the last frame.

    Raises:
        StorageError: a file could not be moved.
    """
    fs, paths = files.fs, files.paths
    # First the claims: a start would refuse a log that is gone, and takes one that nobody claims.
    checkpoint = files.checkpoint
    checkpoint.adopt((), is_own=False)
    checkpoint.log = LogIdentity(own_from=NOT_OWN)
    checkpoint.rewrite(0)
    _remove_key_index(files)
    place = paths.diverged_log(files.log.start_pos, epoch)
    fs.make_dirs(place)
    for base in files.log.files.bases:
        name = segment_name(base)
        fs.rename(paths.commit_log / name, place / name)
    for directory in (place, paths.diverged, paths.commit_log, paths.root):
        fs.sync_dir(directory)


def _remove_key_index(files: DataFiles) -> None:
    """Remove what says where keys are: other frames will be at these positions."""
    fs, directory = files.fs, files.paths.key_index
    if fs.exists(directory):
        for name in fs.list_dir(directory):
            fs.unlink(directory / name)
        fs.sync_dir(directory)
