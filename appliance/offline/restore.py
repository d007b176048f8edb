"""`latermq restore`: makes a data directory from a backup, on which a broker can start.

    NEW/snapshot       says that the copy is not complete, and no broker starts; written first
    NEW/commitlog/     the segments: links of full ones where possible, copies of the others
    NEW/checkpoint     where the log ends
    NEW/restored       the first start takes other numbers than the broker of the backup may have
    NEW/snapshot       is removed last, when everything else is durable

All other files follow from the log, and the first start makes them. Layer 4.
"""

from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
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
from appliance.offline.log_state import LogState
from appliance.offline.manifest import BackupFile, Manifest
from appliance.store.log_snapshots import NO_LINKS
from appliance.store.marks import Mark, write_mark
from appliance.store.paths import DataPaths
from appliance.store.recovery.restored import first_producer_id, write_restored
from appliance.store.state.epoch_starts import next_epoch
from appliance.system.clock import Clock
from appliance.system.files import LOCK_NAME, FileSystem

CLOCK_TOLERANCE_MS: Final = 60_000
"""The clocks of two machines may differ by this much."""

_NAMES: Final = DataPaths(Path())
MADE: Final = (
    _NAMES.restored_mark.name,
    _NAMES.checkpoint.name,
    _NAMES.commit_log.name,
    LOCK_NAME,
    _NAMES.snapshot_mark.name,
)
"""What a restore makes, in the order in which it is removed; the mark is the last."""

NOT_RESTORED: Final = "Nothing was restored"


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """A partition as the backup has it.

    Attributes:
        topic, partition: its name.
        start_offset: the first record that is kept.
        next_offset: the next record gets it; records of the original from it on are lost.
        pending_timers: delayed records that are not delivered in the backup.
    """

    topic: str
    partition: int
    start_offset: int
    next_offset: int
    pending_timers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the first start on the restored directory does.

    Attributes:
        manifest: of the backup.
        epoch: the leader epoch that a start would begin now; a later start begins a higher one.
        producer_id: that epoch's first producer id.
        pending_timers: of all partitions.
        next_due_at: when the first of them is due, epoch ms; None if there are none.
        is_clock_behind: the clock of this machine shows a time before the backup was made.
        groups: names of the consumer groups.
        partitions: of all topics.
        faults: that the check found.
    """

    manifest: Manifest
    epoch: int
    producer_id: int
    pending_timers: int
    next_due_at: int | None
    is_clock_behind: bool
    groups: tuple[str, ...]
    partitions: tuple[PartitionPlan, ...]
    faults: int


class Restore:
    """One restore; exhaust `examine`, then `run`.

    Attributes:
        plan: set by `examine`.
        linked_bytes: bytes that the new directory shares with the backup.
    """

    plan: Plan

    def __init__(
        self,
        fs: FileSystem,
        clock: Clock,
        backup: Path,
        target: Path,
        *,
        accepts_loss: bool = False,
        may_link: bool = True,
    ) -> None:
        """Touch nothing yet.

        Args:
            fs: of both.
            clock: the epoch of a start depends on it.
            backup: the directory of the backup; it is only read.
            target: the new data directory, missing or empty.
            accepts_loss: restore a backup that is damaged.
            may_link: False: copy everything, also what could be a link.
        """
        self._fs, self._clock = fs, clock
        self._backup = DataPaths(backup)
        self._target = DataPaths(target)
        self._accepts_loss = accepts_loss
        self._may_link = may_link
        self._is_whole = False
        self.linked_bytes = 0

    def examine(self, findings: Findings) -> Generator[Step, None, None]:
        """Check the backup and the place for its copy; change nothing.

        Args:
            findings: receives the faults of the backup.

        Raises:
            BackupError: it is no complete backup, or the new directory is not empty.
            CorruptionError: its manifest is damaged.
            DataDirectoryLockedError: a broker runs on the new directory.
            StorageError: a file cannot be read.
        """
        found = manifest.read(self._fs, self._backup.root)
        check_is_new(self._fs, self._target.root, other=self._backup.root)
        data = DataDir(self._fs, self._backup.root, findings)
        with closing(data):
            data.open(may_be_live=False)
            # The files are compared with the manifest when they are copied.
            check = Check(data, findings, wants_manifest=False)
            for done, total in check.run():
                yield "checking", done, total
        self.plan = self._plan(found, check.state, check.report.faults)

    def _plan(self, found: Manifest, state: LogState, faults: int) -> Plan:
        now_ms = self._clock.wall_ms()
        due = state.projections.due
        epoch = next_epoch(found.epoch, now_ms)
        partitions = [
            PartitionPlan(
                topic=part.topic.name,
                partition=part.index,
                start_offset=part.start_offset,
                next_offset=part.next_offset,
                pending_timers=due.pending_of(part.handle),
            )
            for part in state.projections.partitions
            if part is not None and not part.topic.deleted
        ]
        return Plan(
            manifest=found,
            epoch=epoch,
            producer_id=first_producer_id(epoch),
            pending_timers=due.pending,
            next_due_at=due.first_due(due.pending + due.cancelled_count) if due.pending else None,
            is_clock_behind=now_ms + CLOCK_TOLERANCE_MS < found.created_at,
            groups=tuple(state.groups.names),
            partitions=tuple(sorted(partitions, key=lambda each: (each.topic, each.partition))),
            faults=faults,
        )

    def run(self) -> Generator[Step, None, None]:
        """Make the new directory; close this to give it up.

        Raises:
            BackupError: the backup is damaged, or the disk is full; nothing is left.
            CorruptionError: a file of it differs from the manifest; nothing is left.
            StorageError: a file operation failed; what could be removed is removed.
        """
        fs, target = self._fs, self._target
        if self.plan.faults and not self._accepts_loss:
            raise BackupError(
                f"{self._backup.root} is damaged: nothing was restored. Use another backup; or "
                "restore what is whole, for good, with --accept-loss"
            )
        is_made = not fs.exists(target.root)
        try:
            fs.make_dirs(target.root)
            lock = fs.lock(target.root)
            try:
                yield from self._make()
            finally:
                lock.release()
        except BaseException as error:
            # Also if the caller gives up. What cannot be removed has the mark; what has it no more
            # is whole, and it must not be removed in part.
            if not self._is_whole:
                with suppress(StorageError):
                    remove_content(fs, target.root, MADE, is_made=is_made)
            if isinstance(error, StorageError) and error.is_disk_full:
                raise disk_full(target.root, error.message, NOT_RESTORED) from None
            raise

    def _make(self) -> Iterator[Step]:
        fs, target, now_ms = self._fs, self._target, self._clock.wall_ms()
        write_mark(fs, target.snapshot_mark, Mark("restore", now_ms))
        fs.sync_dir(target.root)
        fs.make_dirs(target.commit_log)
        linked, copied = self._link_all()
        check_room(fs, target.root, sum(file.room for file in copied), NOT_RESTORED)
        amount = Amount("restoring", self.plan.manifest.size_bytes)
        for file in linked:
            with closing(fs.open(target.root / file.name, writable=False)) as opened:
                crc = yield from measured(crc_of(opened, file.size), amount)
            self._compare(file, crc)
        for file in copied:
            source, place = self._backup.root / file.name, target.root / file.name
            work = copy_file(fs, source, place, size=file.size, room=file.room)
            crc = yield from measured(work, amount)
            self._compare(file, crc)
        fs.sync_dir(target.commit_log)
        write_restored(fs, target, restored_at=now_ms)
        fs.sync_dir(target.root)
        fs.unlink(target.snapshot_mark)
        self._is_whole = True
        fs.sync_dir(target.root)

    def _link_all(self) -> tuple[list[BackupFile], list[BackupFile]]:
        """Link what can be linked; return that, and what must be copied."""
        linked: list[BackupFile] = []
        copied: list[BackupFile] = []
        for file in self.plan.manifest.files:
            if self._accepts_loss and not self._fs.exists(self._backup.root / file.name):
                continue  # the check has reported it
            # The log continues in the last segment, and the checkpoint is written again.
            is_full = file.size == file.room and file.name != _NAMES.checkpoint.name
            may_link = self._may_link and is_full
            (linked if may_link and self._link(file.name) else copied).append(file)
        self.linked_bytes = sum(file.size for file in linked)
        return linked, copied

    def _link(self, name: str) -> bool:
        try:
            self._fs.link(self._backup.root / name, self._target.root / name)
        except StorageError as error:
            if error.errno not in NO_LINKS:
                raise
            self._may_link = False
            return False
        return True

    def _compare(self, file: BackupFile, crc: int) -> None:
        if crc != file.crc32c and not self._accepts_loss:
            expected = f"{file.size} bytes with CRC32C {file.crc32c}, as the manifest says"
            raise CorruptionError(self._backup.root / file.name, 0, expected, f"CRC32C {crc}")
