"""What a start cuts off the log is set aside under `lost/`: it may have been durable once.

    lost/POSITION-EPOCH      the bytes that lay at a log position, and the epoch of the start

Nothing reads these files but people and `check`. They are bounded: of one cut the first 64 MiB are
kept, of all cuts 256 MiB, the newest. Layer 2.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from _core.log_scan import LogScan
from appliance.errors import StorageError
from appliance.fs import FileSystem
from appliance.store.commit_log import CommitLog
from appliance.store.paths import DataPaths, parse_lost_name
from appliance.units import MIB

CUT_MAX_BYTES: Final = 64 * MIB
TOTAL_MAX_BYTES: Final = 256 * MIB
STEP_BYTES: Final = MIB


@dataclass(frozen=True, slots=True)
class Cut:
    """One file under `lost/`: the log position its bytes came from, the epoch, and their count."""

    pos: int
    epoch: int
    size: int


def cuts(fs: FileSystem, paths: DataPaths) -> list[Cut]:
    """What is set aside, oldest first.

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
        file = fs.open(paths.lost / name, writable=False)
        found.append(Cut(*parsed, file.size()))
        file.close()
    return sorted(found, key=lambda cut: (cut.epoch, cut.pos))


def set_aside(fs: FileSystem, paths: DataPaths, log: CommitLog, scan: LogScan, epoch: int) -> int:
    """Copy what lies behind the end of the log to `lost/`, durably, before it is zeroed.

    What cannot be read, and what is zero, is left out. A full disk keeps nothing.

    Args:
        fs, paths, log: the files.
        scan: the replay, at its end.
        epoch: of this start.

    Returns:
        How far behind the end of the log the last byte was that is not zero.

    Raises:
        StorageError: a sync failed, or the disk refuses for another reason than that it is full.
    """
    start, end = scan.pos, scan.garbage_end
    if scan.has_leftovers:  # the scan went no farther than to the first of them
        end = max(end, min(log.files.end_of_files, start + CUT_MAX_BYTES))
    end = min(end, start + CUT_MAX_BYTES)
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
    """Write what is between two log positions to a file; where the last byte is not zero."""
    file = fs.open(path, create=True)
    kept = 0
    try:
        for pos in range(start, end, STEP_BYTES):
            data = log.files.read_raw(pos, min(STEP_BYTES, end - pos)).rstrip(b"\0")
            if data:
                file.pwritev([data], pos - start)
                kept = pos - start + len(data)
        file.fdatasync()
    finally:
        file.close()
    return kept


def _bound(fs: FileSystem, paths: DataPaths) -> None:
    """Remove the oldest files until the rest is small enough."""
    found = cuts(fs, paths)
    total = sum(cut.size for cut in found)
    for cut in found[:-1]:
        if total <= TOTAL_MAX_BYTES:
            break
        fs.unlink(paths.lost_file(cut.pos, cut.epoch))
        total -= cut.size
