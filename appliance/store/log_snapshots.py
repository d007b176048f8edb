"""Snapshots of the log: a second name for each segment, and a checkpoint that says where it ends.

    snapshots/NAME/snapshot       when it was made; a start refuses a directory that has it
    snapshots/NAME/commitlog/     hard links of the segments below the flushed position
    snapshots/NAME/checkpoint     its flushed position is the end of the snapshot; written last

A segment below the flushed position does not change, and a file with a second name is not used
again, so a snapshot stays as it is whatever becomes of the log. The last segment grows behind its
back; a reader ends at the flushed position. A start that must end the log before that position, for
example because the disk cannot read the rest, continues in a copy of the segment
(`segment.make_private`, `shared_end`). A directory without a checkpoint is what a crash left
of a snapshot. Layer 2.
"""

import errno
import logging
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from appliance.errors import SnapshotError, StorageError
from appliance.model import SnapshotStatus
from appliance.store.checkpoint import CheckpointFile, LogIdentity
from appliance.store.log.data_files import DataFiles
from appliance.store.marks import Mark, read_mark, write_mark
from appliance.store.paths import DataPaths, parse_segment_name, segment_name
from appliance.system.files import FileSystem
from appliance.units import MS_PER_SECOND

NAME_SIZE_MAX: Final = 64
TEMPORARY_SUFFIX: Final = ".new"
SHARED_END_UNKNOWN: Final = 1 << 63

_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_SIZE_MAX - 1}}}", re.ASCII)
NO_LINKS: Final = frozenset(
    [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK]
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """The part of the log that a snapshot gets, as of one moment.

    Attributes:
        bases: base positions of its segments, ascending.
        flushed: log position at which it ends.
        watermark: no frame was written at or after it.
        log: identity of the log.
        created_at: epoch ms.
    """

    bases: tuple[int, ...]
    flushed: int
    watermark: int
    log: LogIdentity
    created_at: int


def check_name(name: str) -> None:
    """Raise SnapshotError if a snapshot cannot have that name."""
    if _NAME.fullmatch(name) is None:
        raise SnapshotError(
            "name",
            f"a snapshot cannot be named {name!r}: use 1 to {NAME_SIZE_MAX} letters, digits, "
            "dots, dashes and underscores, and begin with a letter or digit",
        )


def remove_incomplete(fs: FileSystem, paths: DataPaths) -> None:
    """Remove what a crash left of snapshots; one that cannot be removed is logged.

    Raises:
        StorageError: a sync failed; the process must stop.
    """
    for name in fs.list_dir(paths.snapshots) if fs.exists(paths.snapshots) else ():
        path = paths.log_snapshot(name)
        if fs.exists(DataPaths(path).checkpoint):
            continue
        try:
            fs.remove_tree(path)
            fs.sync_dir(paths.snapshots)
        except StorageError as error:
            if error.is_fatal:
                raise
            _log.warning("an incomplete snapshot cannot be removed: %s", error)


def shared_end(fs: FileSystem, paths: DataPaths, flushed: int) -> int:
    """Return the log position up to which snapshots and backups of the log may be read.

    Args:
        fs, paths: the data directory.
        flushed: log position in its checkpoint, which a backup has, -1 for unknown.

    Returns:
        SHARED_END_UNKNOWN, after every position, if one of them cannot be read.
    """
    end = flushed if flushed >= 0 else SHARED_END_UNKNOWN
    try:
        for name in fs.list_dir(paths.snapshots) if fs.exists(paths.snapshots) else ():
            path = DataPaths(paths.log_snapshot(name)).checkpoint
            if not fs.exists(path):
                continue
            checkpoint = CheckpointFile(fs, path)
            checkpoint.open()
            checkpoint.close()
            last = checkpoint.last
            end = max(end, SHARED_END_UNKNOWN if last is None else last.flushed)
    except StorageError:
        return SHARED_END_UNKNOWN
    return end


class LogSnapshots:
    """The snapshots of one data directory. `freeze` runs on the loop, the rest on one thread."""

    def __init__(self, files: DataFiles) -> None:
        self._clock, self._fs, self._paths = files.clock, files.fs, files.paths
        self._log, self._checkpoint = files.log, files.checkpoint

    def freeze(self) -> LogPart:
        """Return what a snapshot of this moment has: everything that is flushed."""
        flushed = self._log.pointers.flushed
        bases = tuple(base for base in self._log.files.bases if base < flushed)
        last = self._checkpoint.last
        # The last segment grows: its frames may be written up to its end.
        watermark = max(self._log.files.end_of_files, 0 if last is None else last.watermark)
        return LogPart(
            bases=bases,
            flushed=flushed,
            watermark=watermark,
            log=replace(self._checkpoint.log, start=bases[0] if bases else 0),
            created_at=self._clock.wall_ms(),
        )

    # Create

    def create(self, part: LogPart, name: str | None = None) -> SnapshotStatus:
        """Make a snapshot, durable with its name.

        Args:
            part: from `freeze`.
            name: its name; None for one made of the time.

        Raises:
            SnapshotError: the name is not allowed or exists, the disk is full, or the file system
                has no hard links. Nothing is left of the snapshot.
            StorageError: it failed for another reason.
        """
        name = name_of_instant(part.created_at) if name is None else name
        check_name(name)
        remove_incomplete(self._fs, self._paths)
        path = self._paths.log_snapshot(name)
        if self._fs.exists(path):
            raise SnapshotError("exists", f"there is a snapshot {name!r} already")
        try:
            self._make(DataPaths(path), part)
        except StorageError as error:
            if error.is_fatal:
                raise
            with suppress(StorageError):
                self._fs.remove_tree(path)
            raise _as_snapshot_error(error) or error from None
        return self._status(name)

    def _make(self, target: DataPaths, part: LogPart) -> None:
        fs = self._fs
        fs.make_dirs(target.root)
        write_mark(fs, target.snapshot_mark, Mark("snapshot", part.created_at))
        fs.make_dirs(target.commit_log)
        for base in part.bases:
            segment = segment_name(base)
            fs.link(self._paths.commit_log / segment, target.commit_log / segment)
        fs.sync_dir(target.commit_log)
        fs.sync_dir(target.root)
        # The snapshot becomes complete in one step: a checkpoint counts only if it is whole.
        write_checkpoint(fs, target, log=part.log, flushed=part.flushed, watermark=part.watermark)

    # List and delete

    def all(self) -> list[SnapshotStatus]:
        """Return all complete snapshots, oldest first.

        Raises:
            StorageError: a file cannot be read.
        """
        if not self._fs.exists(self._paths.snapshots):
            return []
        names = [
            name for name in self._fs.list_dir(self._paths.snapshots) if self._is_complete(name)
        ]
        return sorted(map(self._status, names), key=lambda each: (each.created_at, each.name))

    def delete(self, name: str) -> SnapshotStatus:
        """Remove a snapshot, and nothing else.

        Returns:
            What it was.

        Raises:
            SnapshotError: there is no such snapshot.
            StorageError: it cannot be removed.
        """
        if _NAME.fullmatch(name) is None or not self._is_complete(name):
            raise SnapshotError("unknown", f"there is no snapshot {name!r}")
        status = self._status(name)
        path = self._paths.log_snapshot(name)
        # First it becomes incomplete, durably: a crash from here on removes the rest.
        self._fs.unlink(DataPaths(path).checkpoint)
        self._fs.sync_dir(path)
        self._fs.remove_tree(path)
        self._fs.sync_dir(self._paths.snapshots)
        return status

    def _is_complete(self, name: str) -> bool:
        return self._fs.exists(DataPaths(self._paths.log_snapshot(name)).checkpoint)

    def _status(self, name: str) -> SnapshotStatus:
        target = DataPaths(self._paths.log_snapshot(name))
        checkpoint = CheckpointFile(self._fs, target.checkpoint)
        checkpoint.open()
        checkpoint.close()
        in_log = frozenset(self._fs.list_dir(self._paths.commit_log))
        size = kept = 0
        bases = []
        for segment in self._fs.list_dir(target.commit_log):
            base = parse_segment_name(segment)
            if base is None:
                continue
            file = self._fs.open(target.commit_log / segment, writable=False)
            bases.append(base)
            size += file.size()
            kept += 0 if segment in in_log else file.size()
            file.close()
        last = checkpoint.last
        mark = read_mark(self._fs, target.snapshot_mark)
        return SnapshotStatus(
            name=name,
            path=str(target.root),
            created_at=0 if mark is None else mark.created_at,
            start=min(bases, default=0),
            end=0 if last is None else last.flushed,
            size_bytes=size,
            kept_bytes=kept,
        )


def write_checkpoint(
    fs: FileSystem, target: DataPaths, *, log: LogIdentity, flushed: int, watermark: int
) -> None:
    """Write the checkpoint of a copy of a log durably; it names no saved state.

    Args:
        fs, target: the directory of the copy.
        log: identity of the log.
        flushed: log position at which the copy ends.
        watermark: no frame is in its files at or after this log position.

    Raises:
        StorageError: it failed.
    """
    new = target.checkpoint.with_name(target.checkpoint.name + TEMPORARY_SUFFIX)
    checkpoint = CheckpointFile(fs, new)
    checkpoint.log = log
    try:
        checkpoint.ensure()
        for _ in checkpoint.copies:
            checkpoint.write(flushed, watermark)
    finally:
        checkpoint.close()
    fs.rename(new, target.checkpoint)
    fs.sync_dir(target.root)


def name_of_instant(created_at: int) -> str:
    """Return an instant, epoch ms, in UTC, as it may stand in the name of a snapshot."""
    instant = datetime.fromtimestamp(created_at / MS_PER_SECOND, tz=UTC)
    return f"{instant:%Y%m%dT%H%M%S}.{created_at % MS_PER_SECOND:03d}Z"


def _as_snapshot_error(error: StorageError) -> SnapshotError | None:
    """Return what a caller can act on; None for a failure of the storage."""
    if error.is_disk_full:
        return SnapshotError("full", f"the disk is full: no snapshot was made ({error.message})")
    if error.operation == "link" and error.errno in NO_LINKS:
        return SnapshotError(
            "unsupported",
            f"a snapshot needs hard links, which this file system does not make: {error.message}",
        )
    return None
