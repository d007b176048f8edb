"""`latermq backup`: a copy of the log up to one position, in a directory of its own.

    DIR/snapshot       says that this is a backup, on which no broker starts; written first
    DIR/commitlog/     the segments: links of full ones where possible, copies of the others
    DIR/checkpoint     where the log ends
    DIR/manifest       what it has; written last, when everything is durable and checked

The source is a snapshot that the running broker has made, or the directory of a stopped broker,
whose lock is held. Below the end of either, the log does not change. Layer 4.
"""

from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from appliance.errors import BackupError, CorruptionError, StorageError
from appliance.offline import manifest
from appliance.offline.check import Check
from appliance.offline.data_dir import DataDir
from appliance.offline.file_copies import (
    Amount,
    Step,
    check_is_new,
    check_room,
    copy_file,
    crc_of,
    disk_full,
    measured,
    remove_content,
)
from appliance.offline.findings import Findings
from appliance.offline.log_state import ControlFault, LogState
from appliance.offline.log_walk import LogWalk
from appliance.offline.manifest import BackupFile, Manifest
from appliance.store.checkpoint import NO_CLUSTER, LogIdentity
from appliance.store.log_snapshots import NO_LINKS, write_checkpoint
from appliance.store.log_snapshots import TEMPORARY_SUFFIX as CHECKPOINT_SUFFIX
from appliance.store.marks import Mark, read_mark, write_mark
from appliance.store.paths import DataPaths, segment_name
from appliance.system.clock import Clock
from appliance.system.files import FileSystem

_NAMES: Final = DataPaths(Path())
MADE: Final = (
    _NAMES.manifest.name,
    _NAMES.manifest.name + manifest.TEMPORARY_SUFFIX,
    _NAMES.checkpoint.name,
    _NAMES.checkpoint.name + CHECKPOINT_SUFFIX,
    _NAMES.commit_log.name,
    _NAMES.snapshot_mark.name,
)
"""What a backup consists of, in the order in which it is removed; the mark is the last."""

NOT_MADE: Final = "No backup was made"


@dataclass(slots=True)
class Part:
    """One segment of the source.

    Attributes:
        base: its log position.
        size: bytes of it below the end of the backup.
        room: bytes of the file.
        crc32c: of the bytes that were copied, None if it is a link.
    """

    base: int
    size: int
    room: int
    crc32c: int | None = None

    @property
    def is_full(self) -> bool:
        """All of it is in the backup."""
        return self.size == self.room


class Backup:
    """One backup; exhaust `run`, then `made` has the result.

    Attributes:
        made: the manifest.
        linked_bytes: bytes that the backup shares with the source or the base.
    """

    made: Manifest

    def __init__(
        self,
        fs: FileSystem,
        clock: Clock,
        source: DataDir,
        target: Path,
        *,
        version: str,
        base: Path | None = None,
        may_link: bool = True,
    ) -> None:
        """Touch nothing yet.

        Args:
            fs: of source, target and base.
            clock: gives the time of the backup.
            source: open: a snapshot, or a directory on which no broker runs.
            target: the directory of the backup, missing or empty.
            version: of this latermq.
            base: an earlier backup, with which the new one may share segments.
            may_link: False: link nothing of the source.
        """
        self._fs, self._clock = fs, clock
        self._source = source
        self._target = DataPaths(target)
        self._version = version
        self._base = base
        self._may_link = may_link
        self._parts: list[Part] = []
        self.linked_bytes = 0

    def run(self, findings: Findings) -> Generator[Step, None, None]:
        """Make the backup; close this to give it up.

        Args:
            findings: receives the faults of the backup, which is made nevertheless.

        Raises:
            BackupError: it cannot be made as asked, or the disk is full.
            CorruptionError: the disk does not hold what was written to it.
            StorageError: a file operation failed.
        """
        fs, root = self._fs, self._target.root
        check_is_new(fs, root, other=self._source_root)
        base = None if self._base is None else manifest.read(fs, self._base)
        mark = read_mark(fs, self._source.paths.snapshot_mark)
        created_at = self._clock.wall_ms() if mark is None else mark.created_at
        log, end = yield from self._find_end()
        is_made = not fs.exists(root)
        try:
            fs.make_dirs(root)
            write_mark(fs, self._target.snapshot_mark, Mark("backup", created_at))
            fs.sync_dir(root)
            yield from self._copy_log(base)
            write_checkpoint(fs, self._target, log=log, flushed=end, watermark=end)
            files = yield from self._read_back()
            faults = yield from self._check(findings)
            self.made = Manifest(
                created_at=created_at,
                latermq=self._version,
                cluster_id=str(log.cluster),
                start=log.start,
                end=end,
                epoch=log.epoch,
                faults=faults,
                files=files,
            )
            manifest.write(fs, root, self.made)
        except BaseException as error:
            # Also if the caller gives up. What cannot be removed has no manifest.
            with suppress(StorageError):
                remove_content(fs, root, MADE, is_made=is_made)
            if isinstance(error, StorageError) and error.is_disk_full:
                raise disk_full(root, error.message, NOT_MADE) from None
            raise

    @property
    def _source_root(self) -> Path:
        """The data directory of the source."""
        root = self._source.paths.root
        if self._source.is_snapshot and root.parent.name == _NAMES.snapshots.name:
            return root.parent.parent
        return root

    # The end of the log

    def _find_end(self) -> Generator[Step, None, tuple[LogIdentity, int]]:
        """Return what log it is, and where it ends."""
        data = self._source
        newest = data.checkpoint.newest if data.checkpoint.is_own else None
        known = LogIdentity() if newest is None else newest.log
        if data.is_snapshot:
            if newest is None:
                raise BackupError(f"{data.paths.root} is a snapshot without an end: make another")
            end = newest.flushed
        else:
            walk = LogWalk(data, Findings(_ignore), _new_state)
            total = data.log.written_bytes
            for _ in walk.slices():
                yield "reading", min(walk.pos - data.log.start, total), total
            end, state = walk.pos, walk.state
            epoch = max(walk.epoch, known.epoch)
            if known.cluster == NO_CLUSTER:
                known = LogIdentity(cluster=state.cluster, salt=state.salt)
            known = replace(known, epoch=epoch)
            data.log.end_at(end)
        if not data.log.segments:
            raise BackupError(f"{data.paths.root} has no log: there is nothing to back up")
        self._parts = [self._part(base, size) for base, size in data.log.segments]
        return replace(known, start=self._parts[0].base), end

    def _part(self, base: int, size: int) -> Part:
        with closing(self._fs.open(self._segment(base), writable=False)) as file:
            return Part(base, size, file.size())

    def _segment(self, base: int) -> Path:
        return self._source.paths.commit_log / segment_name(base)

    # The segments

    def _copy_log(self, base: Manifest | None) -> Iterator[Step]:
        fs, directory = self._fs, self._target.commit_log
        fs.make_dirs(directory)
        rest = self._link_all() if self._may_link else self._parts
        if base is not None:
            rest = yield from self._link_from_base(base, rest)
        amount = Amount("copying", sum(part.size for part in rest))
        check_room(fs, self._target.root, amount.total, NOT_MADE)
        for part in rest:
            target = directory / segment_name(part.base)
            work = copy_file(fs, self._segment(part.base), target, size=part.size, room=part.size)
            part.crc32c = yield from measured(work, amount)
        fs.sync_dir(directory)
        fs.sync_dir(self._target.root)

    def _link_all(self) -> list[Part]:
        """Link the full segments; return the parts that have to be copied.

        A start of the broker may end its log anywhere above the flushed position of its checkpoint,
        and writes into the file then. Below it, it makes a copy first.
        """
        checkpoint = DataDir(self._fs, self._source_root, Findings(_ignore))
        checkpoint.read_checkpoint()
        flushed = checkpoint.checkpoint.flushed
        rest = []
        for number, part in enumerate(self._parts):
            if not part.is_full or part.base + part.room > flushed:
                rest.append(part)
            elif not self._link(self._segment(part.base), part):
                return rest + self._parts[number:]
        return rest

    def _link(self, source: Path, part: Part) -> bool:
        """Link a segment; return whether this file system can."""
        try:
            self._fs.link(source, self._target.commit_log / segment_name(part.base))
        except StorageError as error:
            if error.errno not in NO_LINKS:
                raise
            return False
        self.linked_bytes += part.size
        return True

    def _link_from_base(
        self, base: Manifest, rest: list[Part]
    ) -> Generator[Step, None, list[Part]]:
        """Link the segments that an earlier backup has with the same bytes; return the others."""
        assert self._base is not None
        log = _NAMES.commit_log.name
        known = {(file.name, file.size) for file in base.files}
        candidates = [
            part
            for part in rest
            if part.is_full and (f"{log}/{segment_name(part.base)}", part.size) in known
        ]
        amount = Amount("comparing", 2 * sum(part.size for part in candidates))
        linked = set()
        for part in candidates:
            name = f"{log}/{segment_name(part.base)}"
            # Two logs of one cluster may differ from some position on, after a restore; and the
            # disk of the base may have lost what its manifest says.
            crcs = []
            for path in (self._segment(part.base), self._base / name):
                with closing(self._fs.open(path, writable=False)) as file:
                    crcs.append((yield from measured(crc_of(file, part.size), amount)))
            if crcs[0] == crcs[1] and self._link(self._base / name, part):
                part.crc32c = crcs[0]
                linked.add(part.base)
        return [part for part in rest if part.base not in linked]

    # What the disk has

    def _read_back(self) -> Generator[Step, None, tuple[BackupFile, ...]]:
        """Read what was made, and return the list of files.

        Raises:
            CorruptionError: a copy differs from what was read from the source.
        """
        amount = Amount("reading back", sum(part.size for part in self._parts))
        files = []
        for part in self._parts:
            path = self._target.commit_log / segment_name(part.base)
            with closing(self._fs.open(path, writable=False)) as file:
                crc = yield from measured(crc_of(file, part.size), amount)
            if part.crc32c not in (None, crc):
                expected = f"{part.size} bytes with CRC32C {part.crc32c}, as they were written"
                raise CorruptionError(path, 0, expected, f"CRC32C {crc}")
            name = f"{path.parent.name}/{path.name}"
            files.append(BackupFile(name=name, size=part.size, crc32c=crc, room=part.room))
        path = self._target.checkpoint
        with closing(self._fs.open(path, writable=False)) as file:
            size = file.size()
            crc = yield from measured(crc_of(file, size), Amount(path.name, size))
        files.append(BackupFile(name=path.name, size=size, crc32c=crc, room=size))
        return tuple(files)

    def _check(self, findings: Findings) -> Generator[Step, None, int]:
        """Check the frames of the backup; return the number of faults."""
        data = DataDir(self._fs, self._target.root, findings)
        with closing(data):
            data.open(may_be_live=False)
            check = Check(data, findings, wants_manifest=False)
            for done, total in check.run():
                yield "checking", done, total
        return check.report.faults


def _ignore(_: object) -> None:
    """Ignore a finding: the check of the backup finds it again."""


def _new_state(fault: ControlFault) -> LogState:
    return LogState(fault=fault)
