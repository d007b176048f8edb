"""The store: the CommitLog, and everything that follows from it, behind one interface.

Order of a start (`recover`, in slices): take the lock; note whether the abort file tells of an
unclean stop, and write it; after an unclean stop drop the page cache; replay the log; cut a torn
tail and sync what was kept; raise the epoch. Only then is anything served. Order of a stop
(`close`): flush, remove the abort file.

Order of a write: `commit` (page cache), `begin_flush` .. `end_flush` (disk), and each moves what is
visible. Layer 2.
"""

import secrets
from collections.abc import Callable, Iterator
from typing import Final
from uuid import UUID

from _core.layout import (
    KIND_EPOCH,
    KIND_GROUP,
    KIND_OFFSET,
    KIND_PRODUCER,
    KIND_TOPIC,
)
from _core.log_scan import LogScan
from _core.log_tail import LogTail
from _core.log_view import LogView
from _core.log_writer import LogWriter
from _core.partition import Partition, Topic
from _core.pointers import Pointers
from _core.projections import Projections
from appliance.clock import Clock
from appliance.config import Config
from appliance.errors import CorruptionError, RequestError
from appliance.fs import FileSystem, Lock
from appliance.model import ColdPlace
from appliance.store import control_frames, group_frames
from appliance.store.checkpoint import CheckpointFile
from appliance.store.cold_reads import ColdRead, ColdReader
from appliance.store.commit_log import RESERVE_FRACTION, CommitLog, FlushJob
from appliance.store.consume_queue import UNITS_IN_MEMORY_MAX, UNITS_SAVED_AT, ConsumeQueues
from appliance.store.epoch_starts import EpochStarts
from appliance.store.group_store import GroupStore
from appliance.store.offset_expiry import OffsetExpiry
from appliance.store.paths import DataPaths
from appliance.store.recovery import Damage, Progress, RecoveryReport
from appliance.store.segment import SpareJob
from appliance.store.topic_store import TopicStore
from appliance.units import MIB

SCAN_SLICE_BYTES: Final = 16 * MIB
"""Replayed between two turns of the event loop: about ten milliseconds."""

PRODUCER_ID_BLOCK: Final = 1000
"""Producer ids that one producer frame hands out, so that not every new producer costs a frame."""

KAFKA_STORAGE_ERROR: Final = 56
"""Kafka's code for a disk that cannot take more: clients try again."""

ConfigureTopic = Callable[[Topic], None]


class MessageStore:
    """One data directory, held by this process.

    Attributes:
        view, projections, writer: set by `recover`.
        damage: what was found damaged, by the start or later.
        cluster: the id of the cluster that the log belongs to.
        epochs, groups, topics: what the log says of each.
    """

    def __init__(
        self, clock: Clock, fs: FileSystem, config: Config, configure_topic: ConfigureTopic
    ) -> None:
        """Touches no file yet.

        Args:
            clock: store times come from it.
            fs: all files.
            config: settings.
            configure_topic: sets on a new or replayed topic what its settings mean.
        """
        self._clock = clock
        self._fs = fs
        self._config = config
        self._paths = DataPaths(config.data_dir)
        self._checkpoint = CheckpointFile(fs, self._paths.checkpoint)
        self._log = CommitLog(
            clock,
            fs,
            self._paths.commit_log,
            segment_size_bytes=config.segment_size_bytes,
            is_sync_flush=config.flush == "sync",
            # With async flush nobody waits for the disk.
            is_prewritten=config.prewrite_segments and config.flush == "sync",
            checkpoint=self._checkpoint,
        )
        self._lock: Lock | None = None
        self._next_producer_id = 0
        self._producer_id_limit = 0
        self.epochs = EpochStarts()
        self._unsaved: Iterator[Partition] = iter(())
        self._with_producers: Iterator[Partition] = iter(())
        self.cluster = UUID(bytes=secrets.token_bytes(16), version=4)
        self.damage: list[Damage] = []
        self.producer_ids_pos = 0
        self.groups = GroupStore(
            append=self._append_frame,
            has_room=self._has_room,
            payload_size_max=config.segment_size_bytes // 2,
            reserve_bytes=config.segment_size_bytes // RESERVE_FRACTION,
            offsets_size_max=config.offset_total_size_max_bytes,
        )
        self.offset_expiry = OffsetExpiry(self.groups, retention_ms=config.offset_retention_ms)
        self.projections = Projections(
            level_count=len(config.delay_levels),
            id_key=secrets.token_bytes(16),
            fired_id_memory_ms=config.fired_id_memory_ms,
        )
        self._queues = ConsumeQueues(fs, self._paths, self.projections.blocks)
        self._cold = ColdReader(fs, self._log, self._queues, self.projections)
        self.topics = TopicStore(
            self.projections,
            append=self._append_topic,
            has_room=self._has_room,
            configure=configure_topic,
            removed=self._forget_topic,
        )
        self.writer: LogWriter

    @property
    def view(self) -> LogView:
        return self._log.view

    @property
    def pointers(self) -> Pointers:
        return self._log.pointers

    @property
    def tail(self) -> LogTail:
        return self._log.tail

    # Start and stop

    def recover(self) -> Iterator[Progress]:
        """Open the directory and replay its log; yields between slices. `report` holds the outcome.

        Raises:
            DataDirectoryLockedError: another broker holds the directory.
            StorageError: a file could not be read or written.
            CorruptionError: the directory holds something that is no log of ours.
        """
        for directory in self._paths.directories():
            self._fs.make_dirs(directory)
        # A start that was killed may have made them, and not synced their names.
        self._fs.sync_dir(self._paths.root.parent)
        self._fs.sync_dir(self._paths.root)
        self._lock = self._fs.lock(self._paths.root)
        is_clean = not self._fs.exists(self._paths.abort)
        if is_clean:
            self._fs.open(self._paths.abort, create=True).close()
            self._fs.sync_dir(self._paths.root)
        self._checkpoint.open()
        told = self._checkpoint.last
        yield Progress("opening", 0, 0)
        segments = self._log.open_segments(drop_cache=not is_clean)
        self._queues.reset()
        scan = LogScan(
            self.projections,
            segments,
            self._apply_control,
            reach=-1 if told is None else told.reach,
            written=self._log.written_ranges,
        )
        total = sum(len(memory) for _, memory in segments)
        start = segments[0][0] if segments else 0
        while not scan.step(SCAN_SLICE_BYTES):
            self._save_large_queues()
            # Else a mark for each frame of the whole log would pile up.
            self.projections.advance_visible(scan.pos)
            yield Progress("replaying", scan.pos - start, total)
        if scan.newer_version:
            raise CorruptionError(
                *self._log.path_of(scan.pos),
                "frames of this format version or an older one",
                "a frame of a newer version: use the latermq that wrote it, or a newer one",
            )
        yield Progress("finishing", scan.pos - start, total)
        # After a clean stop nothing is cut; if the last frames rotted all the same, others follow.
        self._finish_recovery(scan, is_clean and not scan.has_leftovers)

    def _finish_recovery(self, scan: LogScan, is_clean: bool) -> None:
        for begin, end, fault in scan.damage:
            path, offset = self._log.path_of(begin)
            self.damage.append(Damage(path, offset, end - begin, fault))
        self._log.recover_to(scan.pos, is_cut=not is_clean)
        self.tail.epoch = scan.epoch
        self.writer = LogWriter(
            self.tail,
            self.projections,
            frame_size_max=self._config.segment_size_bytes // 2,
            topic_payload=self.topics.payload,
        )
        if not is_clean or scan.frames == 0:
            self._begin_epoch(0 if scan.frames == 0 else scan.epoch + 1)
        self.commit()
        self.flush()
        self.projections.advance_visible(self.pointers.visible)
        for partition in self.projections.partitions:
            if partition is not None:
                self._queues.save(partition)
        self.report = RecoveryReport(
            is_clean=is_clean,
            frames=scan.frames,
            end_pos=self.pointers.wrote,
            cut_bytes=max(0, scan.garbage_end - scan.pos),
            damage=tuple(self.damage),
            epoch=self.tail.epoch,
        )

    def _begin_epoch(self, epoch: int) -> None:
        start = self.pointers.wrote
        self.tail.epoch = epoch
        self.epochs.add(epoch, start)
        self._append_control(
            KIND_EPOCH,
            control_frames.encode_epoch(control_frames.EpochFrame(epoch, start, self.cluster)),
        )

    def close(self) -> None:
        """Stop cleanly: everything is on the disk, and the next start sees that.

        Raises:
            StorageError: it could not all be written; the next start recovers as after a crash.
        """
        self.commit()
        self.flush()
        self._checkpoint.end(self.pointers.flushed)
        self.abandon(is_clean=True)

    def abandon(self, *, is_clean: bool = False) -> None:
        """Give the files and the lock back as they are."""
        self._queues.close()
        self._log.close()
        self._checkpoint.close()
        if self._lock is not None:
            if is_clean:
                self._fs.unlink(self._paths.abort)
                self._fs.sync_dir(self._paths.root)
            self._lock.release()
            self._lock = None

    # Control frames

    def _apply_control(self, kind: int, topic_id: int, payload: bytes, epoch: int) -> None:
        """Replay a frame of control state."""
        if kind == KIND_TOPIC:
            self.topics.replay(topic_id, payload)
        elif kind == KIND_PRODUCER:
            self._next_producer_id = control_frames.decode_producer(payload)
            self._producer_id_limit = self._next_producer_id
        elif kind == KIND_EPOCH:
            frame = control_frames.decode_epoch(payload)
            self.epochs.add(frame.epoch, frame.start_pos)
            self.cluster = frame.cluster
        elif kind == KIND_OFFSET:
            self.groups.apply_offsets(group_frames.decode_offsets(payload))
        elif kind == KIND_GROUP:
            self.groups.apply_group(group_frames.decode_group(payload))
        else:
            raise CorruptionError(
                self._paths.commit_log,
                0,
                "frames of kinds that this version of latermq writes",
                f"a frame of kind {kind}: use the latermq that wrote it, or a newer one",
            )

    def _forget_topic(self, topic: Topic) -> None:
        self.groups.forget_topic(topic.topic_id, len(topic.partitions))
        self._queues.remove_topic(topic.name, [each.handle for each in topic.partitions])

    def _append_control(self, kind: int, payload: bytes, topic_id: int = 0) -> None:
        # Replay must meet them in this order: what was committed, then the topic's end.
        self.groups.append_gathered()
        self._append_frame(kind, payload, topic_id)

    def _has_room(self, payload_size: int) -> bool:
        return self.tail.has_room(payload_size)

    def _append_frame(self, kind: int, payload: bytes, topic_id: int = 0) -> None:
        pos = self.tail.append_control(
            kind, topic_id=topic_id, store_time_ms=self._clock.wall_ms(), payload=payload
        )
        if pos < 0:
            raise RequestError("the disk is full", code=KAFKA_STORAGE_ERROR)

    def _append_topic(self, payload: bytes, topic_id: int) -> int:
        self._append_control(KIND_TOPIC, payload, topic_id)
        return self.tail.segment_end

    def allocate_producer_id(self) -> int:
        """A producer id that was never given before, also not before a crash.

        Raises:
            RequestError: the disk is full.
        """
        if self._next_producer_id == self._producer_id_limit:
            limit = self._producer_id_limit + PRODUCER_ID_BLOCK
            self._append_control(KIND_PRODUCER, control_frames.encode_producer(limit))
            self._producer_id_limit = limit
            self.producer_ids_pos = self.pointers.wrote
        self._next_producer_id += 1
        return self._next_producer_id - 1

    # Write

    def commit(self) -> None:
        """Write what is encoded. A StorageError is fatal: memory is ahead of the file."""
        self.groups.append_gathered()
        self._log.commit()

    def begin_spare(self) -> SpareJob | None:
        """See `CommitLog.begin_spare`."""
        return self._log.begin_spare()

    def stop_prewriting(self) -> None:
        """See `CommitLog.stop_prewriting`."""
        self._log.stop_prewriting()

    def begin_flush(self) -> FlushJob | None:
        """See `CommitLog.begin_flush`."""
        return self._log.begin_flush()

    def end_flush(self, job: FlushJob) -> None:
        """See `CommitLog.end_flush`."""
        self._log.end_flush(job)

    def flush(self) -> None:
        """Commit and flush in one go, on this thread. A StorageError is fatal."""
        self.commit()
        job = self.begin_flush()
        if job is not None:
            job.run()
            self.end_flush(job)

    # Read

    def read_cold(self, places: list[ColdPlace]) -> ColdRead:
        """Read frames and units from the disk and check them; may run on any thread."""
        return self._cold.read(places)

    def note_read(self, read: ColdRead) -> list[Damage]:
        """Take up what `read_cold` found; on the loop. Returns what is damaged."""
        damage = self._cold.take_up(read, self.damage)
        self.damage += damage
        return damage

    def space(self) -> tuple[int, int]:
        """See `FileSystem.space`."""
        return self._fs.space(self._paths.root)

    # Housekeeping

    def _save_large_queues(self) -> None:
        for partition in self.projections.partitions:
            if partition is not None and partition.unsaved_count > UNITS_IN_MEMORY_MAX:
                self._queues.save(partition)

    def save_units(self, *, partitions_max: int) -> None:
        """Save the units of some partitions that have many; it goes round all, so call it often.

        Args:
            partitions_max: look at no more than so many, so that the loop is not held up.
        """
        for _ in range(partitions_max):
            partition = next(self._unsaved, None)
            if partition is None:
                self._unsaved = iter([p for p in self.projections.partitions if p is not None])
                return
            if partition.unsaved_count >= UNITS_SAVED_AT and not partition.topic.deleted:
                self._queues.save(partition)

    def forget_producers(self, idle_since_ms: int, *, partitions_max: int) -> None:
        """Forget producers of some partitions that were idle since before `idle_since_ms`."""
        for _ in range(partitions_max):
            partition = next(self._with_producers, None)
            if partition is None:
                self._with_producers = iter(
                    [p for p in self.projections.partitions if p is not None and p.producers]
                )
                return
            partition.forget_producers(idle_since_ms)
