"""The store: the CommitLog, and everything that follows from it, behind one interface.

Order of a start (`recover`, in slices): take the lock; note whether the abort file tells of an
unclean stop, and write it; take up the newest saved state that is whole, and replay what follows
(`start`); cut a torn tail and sync what was kept; raise the epoch. Only then is anything served.
Order of a stop (`close`): flush, save the state, remove the abort file.

Order of a write: `commit` (page cache), `begin_flush` .. `end_flush` (disk), and each moves what is
visible. Layer 2.
"""

import secrets
from collections.abc import Callable, Iterator
from typing import Final
from uuid import UUID

from _core.layout import KIND_EPOCH, KIND_PRODUCER, KIND_TOPIC
from _core.log_tail import LogTail
from _core.log_view import LogView
from _core.log_writer import LogWriter
from _core.partition import Partition, Topic
from _core.pointers import Pointers
from _core.projections import Projections
from appliance.clock import Clock
from appliance.config import Config
from appliance.errors import CorruptionError, LogRefusedError, RequestError, StorageError
from appliance.fs import FileSystem, Lock
from appliance.model import ColdPlace
from appliance.store import admission, control_frames
from appliance.store.checkpoint import CheckpointFile, LogIdentity
from appliance.store.checkpointer import Checkpointer
from appliance.store.cold_reads import ColdRead, ColdReader
from appliance.store.commit_log import CommitLog, FlushJob
from appliance.store.consume_queue import UNITS_SAVED_AT, ConsumeQueues
from appliance.store.control_file import KnownDamage
from appliance.store.control_frames import PRODUCER_ID_BLOCK
from appliance.store.decisions import TAILS, End, Stop
from appliance.store.epoch_starts import EpochStarts, next_epoch
from appliance.store.group_store import GroupStore
from appliance.store.log_presence import LogPresence, read_heads
from appliance.store.lost import set_aside
from appliance.store.offset_expiry import OffsetExpiry
from appliance.store.paths import DataPaths, parse_segment_name
from appliance.store.recovery import Damage, Progress, RecoveryReport
from appliance.store.segment import SpareJob
from appliance.store.start import Start
from appliance.store.state import LogCalls, State
from appliance.store.topic_store import TopicStore
from appliance.store.verdict import Verdict, find_end, make_report
from appliance.store.verdict_log import append_verdict
from appliance.units import NS_PER_MS

SALT_SIZE: Final = 4

KAFKA_STORAGE_ERROR: Final = 56
"""Kafka's code for a disk that cannot take more: clients try again."""


class MessageStore:
    """One data directory, held by this process.

    Attributes:
        writer, checkpoints, report: set by `recover`.
        damage: what was found damaged, by a start or later.
        stop_error: why the stop left no checkpoint, if so; the next start replays more.
    """

    writer: LogWriter
    checkpoints: Checkpointer
    report: RecoveryReport
    _cold: ColdReader

    def __init__(
        self,
        clock: Clock,
        fs: FileSystem,
        config: Config,
        configure_topic: Callable[[Topic], None],
        *,
        accepts_loss: bool = False,
    ) -> None:
        """Touches no file yet.

        Args:
            clock: store times come from it.
            fs: all files.
            config: settings.
            configure_topic: sets on a new or replayed topic what its settings mean.
            accepts_loss: the start goes on without what is missing of the log.
        """
        self._accepts_loss = accepts_loss
        self._clock = clock
        self._fs = fs
        self._config = config
        self._configure_topic = configure_topic
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
            cache_size_bytes=config.cache_size_bytes,
        )
        self.view: LogView = self._log.view
        self._lock: Lock | None = None
        self._unsaved: Iterator[Partition] = iter(())
        self._with_producers: Iterator[Partition] = iter(())
        self.damage: list[Damage] = []
        self.stop_error: StorageError | CorruptionError | None = None
        self.producer_ids_pos = 0
        self._state = self._new_state()
        self._queues = ConsumeQueues(fs, self._paths, self._state.projections.blocks)

    def _new_state(self) -> State:
        log = LogCalls(
            self._append_frame,
            self._append_topic,
            self._has_room,
            begin=self._log.begin_change,
            end=self._log.end_change,
        )
        return State(
            self._config, log, configure=self._configure_topic, removed=self._remove_queues
        )

    # What follows from the log

    @property
    def projections(self) -> Projections:
        return self._state.projections

    @property
    def topics(self) -> TopicStore:
        return self._state.topics

    @property
    def groups(self) -> GroupStore:
        return self._state.groups

    @property
    def epochs(self) -> EpochStarts:
        return self._state.epochs

    @property
    def offset_expiry(self) -> OffsetExpiry:
        return self._state.offset_expiry

    @property
    def cluster(self) -> UUID:
        """The id of the cluster that the log belongs to."""
        return self._state.cluster

    @property
    def is_full(self) -> bool:
        return self._log.is_full

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
            FormatVersionError: a newer latermq wrote to the log.
        """
        started_ns = self._clock.monotonic_ns()
        try:
            yield from self._recover(started_ns)
        except LogRefusedError:
            self.abandon()
            raise

    def _recover(self, started_ns: int) -> Iterator[Progress]:
        presence, stop = self._look()
        yield Progress("opening", 0, 0)
        for directory in self._paths.directories():
            self._fs.make_dirs(directory)
        if not self._log.has_segments:
            self._sync_way()
        start = Start(
            clock=self._clock,
            fs=self._fs,
            paths=self._paths,
            log=self._log,
            checkpoint=self._checkpoint,
            presence=presence,
            new_state=self._new_state,
        )
        for progress in start.run(stop):
            self._state, self._queues = start.state, start.queues
            yield progress
        self._state, self._queues = start.state, start.queues
        verdict = Verdict(start.scan, start.state, flushed=start.flushed)
        if not self._accepts_loss:
            limit_bytes = self._config.loss_max_bytes
            admission.check_loss(self._paths, self._log, verdict, limit_bytes=limit_bytes)
        admission.check_count(
            self._paths, start.state.verdicts, verdict, segment_size=self._config.segment_size_bytes
        )
        self._enter_directory()
        start.finish()
        yield Progress("finishing", start.scan.pos, start.scan.pos)
        self._finish_recovery(start, stop, verdict, started_ns=started_ns)

    def _look(self) -> tuple[LogPresence, Stop]:
        """Take the lock, and see whether the log that is here may be served; changes nothing else.

        Raises:
            LogRefusedError: it may not.
        """
        admission.check_exists(self._fs, self._paths, must_exist=self._config.must_exist)
        self._fs.make_dirs(self._paths.root)
        self._lock = self._fs.lock(self._paths.root)
        self._checkpoint.open()
        self._log.open_segments()
        known = self._checkpoint.last
        presence = LogPresence(self._paths, known, self._log, read_heads(self._log))
        if not self._accepts_loss:
            presence.check()
        if self._config.must_exist:
            admission.check_holds_log(self._paths, self._log, known)
        has_abort = self._fs.exists(self._paths.abort)
        return presence, admission.find_stop(presence, self._log, known, has_abort=has_abort)

    def _enter_directory(self) -> None:
        """From here on things change: the abort file tells the next start if this one is killed."""
        fs, paths = self._fs, self._paths
        # A start that was killed may have made them, and not synced their names.
        fs.sync_dir(paths.root.parent)
        if not fs.exists(paths.abort):
            fs.open(paths.abort, create=True).close()
        fs.sync_dir(paths.root)
        self._checkpoint.ensure()

    def _sync_way(self) -> None:
        """Make the way to the data directory durable, as far as this process may."""
        for directory in self._paths.root.parents:
            try:
                self._fs.sync_dir(directory)
            except StorageError as error:
                if error.is_fatal:
                    raise

    def _finish_recovery(
        self, start: Start, stop: Stop, verdict: Verdict, *, started_ns: int
    ) -> None:
        scan, state = start.scan, self._state
        end = find_end(scan, start.flushed)
        tail = TAILS[stop, end]
        self._note_damage(start, verdict)
        is_fresh = start.last_frame[0] < 0 and not self._log.has_segments
        epoch = next_epoch(max(scan.epoch, start.knowledge.epoch), self._clock.wall_ms())
        state.salt = state.salt or scan.salt
        if is_fresh:
            state.salt = int.from_bytes(secrets.token_bytes(SALT_SIZE)) or 1
        self._checkpoint.log = LogIdentity(
            cluster=state.cluster, start=self._log.start_pos, salt=state.salt, epoch=epoch
        )
        if tail.is_cut:
            kept = set_aside(self._fs, self._paths, self._log, scan, epoch)
            verdict.torn_bytes = max(verdict.torn_bytes, kept)
        durable = max(start.applied, min(start.flushed, scan.pos))
        self._checkpoint.lower_flushed(scan.pos)
        self._log.head = lambda: control_frames.encode_head(state.head())
        self._log.files.fill_gaps()
        self._log.recover_to(scan.pos, durable=durable, is_cut=tail.is_cut)
        self.tail.last_pos, self.tail.last_crc = start.last_frame
        self.writer = LogWriter(
            self.tail,
            self.projections,
            frame_size_max=self._config.segment_size_bytes // 2,
            topic_payload=self.topics.payload,
        )
        self._begin_epoch(epoch)
        now_ms, recovered = self._clock.wall_ms(), start.knowledge.recovered
        skips = append_verdict(verdict, recovered, state, self.writer, epoch=epoch, now_ms=now_ms)
        self.commit()
        self.flush()
        if end is End.SHORT or not start.is_own:
            self._checkpoint.rewrite(self.pointers.flushed)
        self.projections.advance_visible(self.pointers.visible)
        for partition in self.projections.partitions:
            if partition is not None and partition.units_dirty:
                self._queues.save(partition)
        self._make_parts(start)
        self.report = make_report(
            start,
            verdict,
            is_clean=tail.is_clean,
            end_pos=self.pointers.wrote,
            damage=self.damage,
            epoch=epoch,
            skips=skips,
            duration_ms=(self._clock.monotonic_ns() - started_ns) // NS_PER_MS,
        )

    def _make_parts(self, start: Start) -> None:
        self._cold = ColdReader(self._clock, self._fs, self._log, self._queues, self.projections)
        self.checkpoints = Checkpointer(
            clock=self._clock,
            fs=self._fs,
            paths=self._paths,
            log=self._log,
            checkpoint=self._checkpoint,
            queues=self._queues,
            state=self._state,
            runs=start.runs,
            interval_bytes=self._config.checkpoint_interval_bytes,
            kept=start.kept,
        )

    def _note_damage(self, start: Start, verdict: Verdict) -> None:
        self._state.damage = [*start.damage, *verdict.damage]
        self._state.lost = start.scan.lost_ranges
        found = [(each.pos, each.size, each.fault) for each in self._state.damage]
        for begin, end, why in start.scan.unreadable:
            if begin >= start.scan.pos:  # in what is cut: nothing is known to be lost with it
                found.append((begin, end - begin, f"cannot be read: {why}"))
        self.damage += [Damage(*self._log.path_of(pos), size, why) for pos, size, why in found]

    def _begin_epoch(self, epoch: int) -> None:
        self.tail.epoch, self.tail.salt = epoch, self._state.salt
        self._log.append_head()
        start = self.pointers.wrote
        self.epochs.add(epoch, start)
        self._append_control(
            KIND_EPOCH,
            control_frames.encode_epoch(control_frames.EpochFrame(epoch, start, self.cluster)),
        )
        self._log.end_change()

    def close(self) -> None:
        """Stop cleanly: everything is on the disk, and the next start sees that.

        Raises:
            StorageError: it could not all be written; the next start recovers as after a crash.
        """
        self.commit()
        self.flush()
        self.stop_error = self.checkpoints.finish()
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

    # Control frames. Whoever appends one takes it up at once, and says so with `end_change`.

    def _remove_queues(self, topic: Topic) -> None:
        self._queues.remove_topic(topic.name, [each.handle for each in topic.partitions])

    def _append_control(self, kind: int, payload: bytes, topic_id: int = 0) -> None:
        # Replay must meet them in this order: what was committed, then the topic's end.
        self.groups.append_gathered()
        self._append_frame(kind, payload, topic_id)

    def _has_room(self, payload_size: int) -> bool:
        return self.tail.has_room(payload_size)

    def _append_frame(self, kind: int, payload: bytes, topic_id: int = 0) -> None:
        self._log.check_applied()
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
        state = self._state
        if state.next_producer_id == state.producer_id_limit:
            limit = state.producer_id_limit + PRODUCER_ID_BLOCK
            self._append_control(KIND_PRODUCER, control_frames.encode_producer(limit))
            state.producer_id_limit = limit
            self.producer_ids_pos = self.pointers.wrote
            self._log.end_change()
        state.next_producer_id += 1
        return state.next_producer_id - 1

    # Write

    def commit(self) -> None:
        """Write what is encoded. A StorageError is fatal: memory is ahead of the file.

        Raises:
            UnappliedChangeError: memory is not what the log would say; fatal as well.
        """
        self._log.check_applied()
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

    def read_cold(self, places: list[ColdPlace], *, is_sparse: bool = False) -> ColdRead:
        """See `ColdReader.read`; may run on any thread."""
        return self._cold.read(places, is_sparse=is_sparse)

    def note_read(self, read: ColdRead) -> list[Damage]:
        """Take up what `read_cold` found; on the loop. Returns what is damaged."""
        damage = self._cold.take_up(read, self.damage)
        self.damage += damage
        for each in damage:
            base = parse_segment_name(each.path.name)
            if base is not None and each.path.parent == self._paths.commit_log:
                known = KnownDamage(base + each.offset, each.size, each.fault)
                self._state.damage.append(known)
        return damage

    def retry_damaged(self) -> None:
        """See `ColdReader.retry_damaged`."""
        self._cold.retry_damaged(self.damage)

    def space(self) -> tuple[int, int]:
        """See `FileSystem.space`."""
        return self._fs.space(self._paths.root)

    # Housekeeping

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
            # A checkpoint that is being taken has them still.
            self.projections.capture(partition)
            partition.forget_producers(idle_since_ms)
