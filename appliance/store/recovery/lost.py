"""Saves under `lost/` what a start cuts off the log, and what the other node's bytes replace.

It may have been durable.

    lost/POSITION-EPOCH      the bytes from a log position on; the epoch is that of the start, or,
                             of a part that is repaired, that of the log's last frame

Only people and `check` read these files. Their size is bounded: the first 64 MiB of one cut are
kept, and the newest 256 MiB of all cuts. Layer 2.
"""

from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from _core.state.scan import LogScan
from appliance.errors import StorageError
from appliance.store.log.commit_log import CommitLog
from appliance.store.paths import DataPaths, parse_lost_name
from appliance.system.files import FileSystem
from appliance.units import MIB

CUT_MAX_BYTES: Final = 64 * MIB
TOTAL_MAX_BYTES: Final = 256 * MIB
STEP_BYTES: Final = MIB


@dataclass(frozen=True, slots=True)
class Cut:
    """One file under `lost/`: the log position of its bytes, the epoch, its size in bytes."""

    pos: int
    epoch: int
    size: int


def cuts(fs: FileSystem, paths: DataPaths) -> list[Cut]:
    """List the files under `lost/`, oldest first.

    Raises:
        StorageError: the directory or a file in it cannot be opened.
    """
    if not fs.exists(paths.lost):
        return []
    found = []
    for name in fs.list_dir(paths.lost):
        parsed = parse_lost_name(name)
        if parsed is None:
            continue
        with closing(fs.open(paths.lost / name, writable=False)) as file:
            found.append(Cut(*parsed, file.size()))
    return sorted(found, key=lambda cut: (cut.epoch, cut.pos))


def set_aside(fs: FileSystem, paths: DataPaths, log: CommitLog, scan: LogScan, epoch: int) -> int:
    """Copy the bytes after the end of the log to `lost/`, durably, before they are zeroed.

    Unreadable bytes and zeros are omitted. On a full disk nothing is kept.

    Args:
        fs, paths, log: the files.
        scan: the completed replay.
        epoch: of this start.

    Returns:
        The distance in bytes from the end of the log to after the last nonzero byte.

    Raises:
        StorageError: a sync failed, or another operation, for a reason other than a full disk.
    """
    return keep(fs, paths, log, (scan.pos, scan.garbage_end), epoch)


def keep(
    fs: FileSystem, paths: DataPaths, log: CommitLog, part: tuple[int, int], epoch: int
) -> int:
    """Copy a part of the log to `lost/`, durably; see `set_aside`.

    Args:
        fs, paths, log: the files.
        part: log positions; no more than CUT_MAX_BYTES of it are kept.
        epoch: for the name.

    Returns:
        The distance in bytes from its begin to after the last nonzero byte.

    Raises:
        StorageError: a sync failed, or another operation, for a reason other than a full disk.
    """
    start = part[0]
    end = min(part[1], start + CUT_MAX_BYTES)
    if start >= end:
        return 0
    path = paths.lost_file(start, epoch)
    try:
        fs.make_dirs(paths.lost)
        kept = _copy(fs, path, log, start, end)
        fs.sync_dir(paths.lost)
        _bound(fs, paths)
    except StorageError as error:
        if error.is_fatal or not error.is_disk_full:
            raise
        with suppress(StorageError):
            fs.unlink(path)
        return end - start
    return kept


def _copy(fs: FileSystem, path: Path, log: CommitLog, start: int, end: int) -> int:
    """Write the bytes between two log positions to a file; return the size up to trailing zeros."""
    kept = 0
    with closing(fs.open(path, create=True)) as file:
        for pos in range(start, end, STEP_BYTES):
            data = log.files.read_raw(pos, min(STEP_BYTES, end - pos)).rstrip(b"\0")
            if data:
                file.pwritev([data], pos - start)
                kept = pos - start + len(data)
        file.fdatasync()
    return kept


def _bound(fs: FileSystem, paths: DataPaths) -> None:
    """Remove the oldest files until the rest is within TOTAL_MAX_BYTES; keep the newest."""
    found = cuts(fs, paths)
    total = sum(cut.size for cut in found)
    for cut in found[:-1]:
        if total <= TOTAL_MAX_BYTES:
            break
        fs.unlink(paths.lost_file(cut.pos, cut.epoch))
        total -= cut.size
