"""The store: the CommitLog and everything derived from it, behind one interface.

Order of a start (`recover`, in slices): take the lock; check the abort file, which shows an unclean
stop, and create it; load the newest intact checkpoint and replay the log after it (`start`); cut a
torn tail and sync the rest; raise the epoch. Nothing is served before that. Order of a stop
(`close`): flush, take a checkpoint, remove the abort file.

Order of a write: `commit` (page cache), then `begin_flush` to `end_flush` (disk). Each may advance
the visible position. Layer 2.
"""

import logging
from collections.abc import Callable, Iterator, Set

from _core.bytes.layout import (
    FRAME_FLAG_OPTIONAL,
    KIND_EPOCH,
    KIND_PRODUCER,
    KIND_STAGES,
    KIND_TOPIC,
)
from _core.log.tail import ROOM_CONTROL
from _core.queue.partition import Topic
from _core.state.writer import LogWriter
from appliance.config.config import Config
from appliance.config.setting import parse_hours
from appliance.errors import CorruptionError, DiskFullError, LogRefusedError, StorageError
from appliance.store.checkpoint import CheckpointFile
from appliance.store.cold_reads import ColdRead, ColdReader
from appliance.store.comparison import Comparison
from appliance.store.damage import Damage
from appliance.store.disk_space import DiskSpace
from appliance.store.entering import enter_directory, forget_freed, sync_parents
from appliance.store.follower import Follower, make_checkpointer
from appliance.store.head.carriers import Carriers, make_carriers
from appliance.store.head.head_freer import HeadFreer, remove_segments
from appliance.store.head.quiet_hours import QuietHours
from appliance.store.head.slave_hold import SlaveHold
from appliance.store.keys.key_index import KeyIndex
from appliance.store.log.commit_log import CommitLog
from appliance.store.log.data_files import DataFiles
from appliance.store.log.segment import FreedSegment
from appliance.store.log_snapshots import LogSnapshots, shared_end
from appliance.store.node_number import choose_node
from appliance.store.paths import DataPaths, parse_segment_name
from appliance.store.queue.consume_queue import ConsumeQueues
from appliance.store.recovery import admission
from appliance.store.recovery.decisions import TAILS, End, Stop
from appliance.store.recovery.identity import identify
from appliance.store.recovery.log_presence import LogPresence, read_heads
from appliance.store.recovery.lost import set_aside
from appliance.store.recovery.report import Progress, RecoveryReport
from appliance.store.recovery.restored import forget_restored, is_restored
from appliance.store.recovery.start import Start
from appliance.store.recovery.verdict import Verdict, find_end
from appliance.store.recovery.verdict_log import append_verdict
from appliance.store.repair import Repair
from appliance.store.role_file import RoleFile
from appliance.store.runs.run_set import Runs
from appliance.store.runs.timer_memory import TimerMemory
from appliance.store.state import control_frames
from appliance.store.state.age_clock import AgeClock
from appliance.store.state.checkpointer import Checkpointer
from appliance.store.state.control_frames import PRODUCER_ID_BLOCK, StoppedStages, encode_stages
from appliance.store.state.expiry import Expiry
from appliance.store.state.flushed_mark import FlushedMark
from appliance.store.state.log_calls import LogCalls
from appliance.store.state.snapshot import KnownDamage
from appliance.store.state.state import State
from appliance.store.unit_saver import UnitSaver
from appliance.system.clock import Clock
from appliance.system.files import FileSystem, Lock
from appliance.units import NS_PER_MS

_log = logging.getLogger(__name__)


class MessageStore:
    """One data directory, held by this process.

    Attributes:
        log: the CommitLog.
        state: everything derived from the log; `recover` replaces it.
        runs, timer_memory, writer, cold, units, checkpoints, carriers, head_freer, mark,
            disk_space, snapshots, report: set by `recover`.
        damage: all known damage, found by recovery or later.
        follower: a slave's end of the log, until it is promoted; else None.
        comparison: a pair's master before its first write; else None.
        repair: a slave whose log is damaged, before its first write; else None.
        role: which role this node has in a pair, and in which term.
        stop_error: the error if `close` could not take a checkpoint; the next start replays more.
    """

    runs: Runs
    timer_memory: TimerMemory
    writer: LogWriter
    checkpoints: Checkpointer
    mark: FlushedMark
    snapshots: LogSnapshots
    report: RecoveryReport
    cold: ColdReader
    units: UnitSaver
    head_freer: HeadFreer
    carriers: Carriers

    def __init__(
        self,
        clock: Clock,
        fs: FileSystem,
        config: Config,
        configure_topic: Callable[[Topic], None],
        *,
        accepts_loss: bool = False,
        compares: bool = False,
    ) -> None:
        """Touch no file yet.

        Args:
            clock: source of store times.
            fs: all files.
            config: settings.
            configure_topic: applies the settings of a new or replayed topic to it.
            accepts_loss: recovery continues without the missing part of the log.
            compares: a master of a pair waits before its first write; see `Comparison`.
        """
        self._accepts_loss, self._compares = accepts_loss, compares
        self._clock = clock
        self._fs = fs
        self._config = config
        self._configure_topic = configure_topic
        self._paths = DataPaths(config.data_dir)
        self._checkpoint = CheckpointFile(fs, self._paths.checkpoint)
        self.log = CommitLog(
            clock,
            fs,
            self._paths.commit_log,
            segment_size_bytes=config.segment_size_bytes,
            is_sync_flush=config.flush == "sync",
            # With async flush, no request waits for the disk.
            is_prewritten=config.prewrite_segments and config.flush == "sync",
            is_recycling=config.recycle_segments and config.flush == "sync",
            checkpoint=self._checkpoint,
            cache_size_bytes=config.cache_size_bytes,
        )
        self._files = DataFiles(
            clock=clock, fs=fs, paths=self._paths, log=self.log, checkpoint=self._checkpoint
        )
        self.role = RoleFile(fs, self._paths, config)
        self._lock: Lock | None = None
        self._freed: list[FreedSegment] = []
        self.damage: list[Damage] = []
        self.producer_ids_pos = 0
        self.follower: Follower | None = None
        self.comparison: Comparison | None = None
        self.repair: Repair | None = None
        self.stop_error: StorageError | CorruptionError | None = None
        self.state = self._new_state()
        self._queues = ConsumeQueues(fs, self._paths, self.state.projections.blocks)

    def _new_state(self) -> State:
        log = LogCalls(
            self._append_frame,
            self._append_topic,
            lambda: self.log.pointers.wrote,
            lambda: self.log.pointers.flushed,
            self._check_room,
            begin=self.log.begin_change,
            end=self.log.end_change,
        )
        state = State(
            self._config, log, configure=self._configure_topic, removed=self._remove_queues
        )
        state.projections.producers.count_max = self._config.producer_count_max
        return state

    # Start and stop

    def recover(self) -> Iterator[Progress]:
        """Open the directory and replay its log, yielding between slices. Sets `report`.

        Raises:
            DataDirectoryLockedError: another broker holds the directory.
            StorageError: a file could not be read or written.
            CorruptionError: the directory holds files that are not a latermq log.
            FormatVersionError: a newer latermq wrote to the log.
            LogRefusedError: the log is not the expected one, or a large part is missing.
        """
        started_ns = self._clock.monotonic_ns()
        try:
            yield from self._recover(started_ns)
        except LogRefusedError:
            self.abandon()
            raise

    def _recover(self, started_ns: int) -> Iterator[Progress]:
        presence, stop = self._check_log()
        yield Progress("opening", 0, 0)
        for directory in self._paths.directories():
            self._fs.make_dirs(directory)
        if not self.log.has_segments:
            sync_parents(self._fs, self._paths)
        follows = self.role.is_slave
        start = Start(
            self._files,
            presence=presence,
            new_state=self._new_state,
            is_slave=follows,
            timer_memory_bytes=self._config.timer_memory_bytes,
        )
        for progress in start.run(stop):
            self.state, self._queues = start.state, start.queues
            yield progress
        self.state, self._queues = start.state, start.queues
        if follows:
            yield from self._follow(start)
        elif self._compares and self.role.is_member:
            yield from self._compare(start, stop)
        verdict = Verdict(start.scan, start.state, flushed=start.flushed)
        if not self._accepts_loss:
            limit_bytes = self._config.loss_max_bytes
            admission.check_loss(self._paths, self.log, verdict, limit_bytes=limit_bytes)
        admission.check_count(
            self._paths, start.state.verdicts, verdict, segment_size=self._config.segment_size_bytes
        )
        if self.follower is None and self.comparison is None:
            enter_directory(self._files)
            start.finish()
        yield Progress("finishing", start.scan.pos, start.scan.pos)
        self._finish_recovery(start, stop, verdict, started_ns=started_ns)

    def _follow(self, start: Start) -> Iterator[Progress]:
        """Apply what a master sends, until the promotion."""
        enter_directory(self._files)
        start.finish()
        node = choose_node(self._fs, self._paths, self._config)
        size_bytes = self._config.segment_size_bytes
        repair = Repair(self._files, start, node=node, segment_size_bytes=size_bytes)
        if repair.damage.find():
            self.repair = repair
            yield from repair.wait()
        self.follower = Follower(
            self._files, start, self._freed, config=self._config, node=node, role=self.role
        )
        yield from self.follower.wait()
        start.flushed = start.applied = start.scan.pos

    def _compare(self, start: Start, stop: Stop) -> Iterator[Progress]:
        """Wait until it is certain that this log is the one that counts."""
        enter_directory(self._files)
        start.finish()
        self.comparison = Comparison(
            self._files, start, self._freed, config=self._config, role=self.role, stop=stop
        )
        yield from self.comparison.wait()
        if self.comparison.has_taken:
            start.flushed = start.applied = start.scan.pos

    def _check_log(self) -> tuple[LogPresence, Stop]:
        """Take the lock, and check whether this log may be served; changes nothing else.

        Raises:
            LogRefusedError: it may not.
        """
        admission.check_may_serve(self._fs, self._paths)
        admission.check_exists(self._fs, self._paths, must_exist=self._config.must_exist)
        self._fs.make_dirs(self._paths.root)
        self._lock = self._fs.lock(self._paths.root)
        self.role.read()
        self._checkpoint.open()
        self.log.open_segments()
        known = self._checkpoint.last
        heads = read_heads(self.log)
        self._freed = forget_freed(self.log, known, heads)
        presence = LogPresence(self._paths, known, self.log, heads)
        if not self._accepts_loss:
            presence.check()
        if self._config.must_exist and not self.role.is_slave:
            admission.check_holds_log(self._paths, self.log, known)
        has_abort = self._fs.exists(self._paths.abort)
        return presence, admission.find_stop(presence, self.log, known, has_abort=has_abort)

    def _finish_recovery(
        self, start: Start, stop: Stop, verdict: Verdict, *, started_ns: int
    ) -> None:
        scan, state = start.scan, self.state
        end = find_end(scan, start.flushed)
        tail = TAILS[stop, end]
        state.projections.moved.start = self.log.start_pos
        self._note_damage(start, verdict)
        epoch = identify(self._files, start, self._config)
        self.role.begin(self.state.node)
        was_restored = is_restored(self._fs, self._paths)
        if was_restored:
            verdict.restored_in = epoch
        if tail.is_cut:
            kept = set_aside(self._fs, self._paths, self.log, scan, epoch)
            verdict.torn_bytes = max(verdict.torn_bytes, kept)
        durable = max(start.applied, min(start.flushed, scan.pos))
        self._checkpoint.lower_flushed(scan.pos)
        self.log.head = lambda: control_frames.encode_head(state.head())
        self._remove_freed()
        self.log.files.fill_gaps()
        shared = shared_end(self._fs, self._paths, start.flushed)
        self.log.recover_to(scan.pos, durable=durable, is_cut=tail.is_cut, shared=shared)
        self.log.tail.last_pos, self.log.tail.last_crc = start.last_frame
        self.writer = LogWriter(
            self.log.tail,
            self.state.projections,
            frame_size_max=self._config.segment_size_bytes // 2,
            topic_payload=self.state.topics.payload,
        )
        self._begin_epoch(epoch)
        now_ms, recovered = self._clock.wall_ms(), start.knowledge.recovered
        skips = append_verdict(verdict, recovered, state, self.writer, epoch=epoch, now_ms=now_ms)
        self.commit()
        self.flush()
        if was_restored:
            forget_restored(self._fs, self._paths)
        if end is End.SHORT or not start.is_own:
            self._checkpoint.rewrite(self.log.pointers.flushed)
        self.state.projections.advance_visible(self.log.pointers.visible)
        for partition in self.state.projections.partitions:
            if partition is not None and partition.units_dirty:
                self._queues.save(partition)
        self._queues.flushed = lambda: self.log.pointers.flushed
        self._make_parts(start)
        self.report = RecoveryReport(
            is_clean=tail.is_clean,
            frames=scan.frames,
            end_pos=self.log.pointers.wrote,
            cut_bytes=max(0, scan.garbage_end - scan.pos),
            damage=tuple(self.damage),
            epoch=epoch,
            checkpoint=0 if start.loaded is None else start.loaded.number,
            applied=start.applied,
            replayed_bytes=scan.pos - start.applied,
            duration_ms=(self._clock.monotonic_ns() - started_ns) // NS_PER_MS,
            rejected=tuple(start.rejected),
            skips=skips,
            lost_bytes=verdict.lost_bytes,
        )

    def _remove_freed(self) -> None:
        """Remove the files of segments that were freed when a crash kept them."""
        last = self._checkpoint.last
        if self._freed and last is not None:
            # The crash may have left the new start in one copy only.
            self._checkpoint.rewrite(last.flushed)
        try:
            remove_segments(self._files, self._freed)
        except StorageError as error:
            if error.is_fatal:
                raise
            _log.warning("a freed segment could not be removed: %s", error)

    def _make_parts(self, start: Start) -> None:
        self.runs, self.timer_memory = start.runs, start.runs.timer_memory
        self.runs.ids.end_replay()
        self.cold = self.make_reader()
        self.units = UnitSaver(self._queues, self.state)
        follower = self.follower
        self.checkpoints = (
            make_checkpointer(self._files, start, self._config)
            if follower is None
            else follower.checkpoints
        )
        self.state.expiry = Expiry(
            AgeClock(self._clock, self.state.saved_age),
            self.state.ages,
            lambda: self.log.pointers.visible,
        )
        quiet_hours = QuietHours(
            self._clock, parse_hours(self._config.delete_when), lambda: self.disk_space.is_pressed
        )
        payload_max = self._config.segment_size_bytes // 2
        self.carriers = make_carriers(
            self._files,
            self.state,
            start.runs,
            self.writer,
            self._queues,
            append=self._try_append,
            payload_max=payload_max,
        )
        self.head_freer = HeadFreer(
            self._files,
            self.state,
            self.checkpoints,
            start.runs,
            carriers=self.carriers,
            hold=SlaveHold(self.log, bytes_max=self._config.keep_for_slave_bytes),
            may_carry=quiet_hours.may_carry,
            forget_damage=self._forget_damage,
            id_memory_ms=self._config.completed_id_memory_ms,
            payload_max=payload_max,
            left=self._freed,
        )
        self.mark = FlushedMark(self._clock, self.log, self._checkpoint)
        self.disk_space = DiskSpace(
            clock=self._clock,
            fs=self._fs,
            directory=self._paths.root,
            log=self.log,
            segment_size_bytes=self._config.segment_size_bytes,
            warn_percent=self._config.disk_warn_percent,
            refuse_percent=self._config.disk_refuse_percent,
            expire_percent=self._config.disk_expire_percent,
        )
        self.disk_space.check()
        self.snapshots = LogSnapshots(self._files)

    def new_key_index(
        self, decompress: Callable[[int, memoryview], bytes], *, left_out: Set[int], is_on: bool
    ) -> KeyIndex:
        """Return the index of the keys in the log; see `KeyIndex`."""
        return KeyIndex(
            self._files,
            cluster=self.state.cluster,
            salt=self.state.salt,
            decompress=decompress,
            left_out=left_out,
            is_on=is_on,
        )

    def _note_damage(self, start: Start, verdict: Verdict) -> None:
        # What was damaged in segments that are freed is of no interest, and has no file.
        self.state.damage = [
            each for each in (*start.damage, *verdict.damage) if each.pos >= self.log.start_pos
        ]
        self.state.lost = start.scan.lost_ranges
        found = [(each.pos, each.size, each.fault) for each in self.state.damage]
        for begin, end, why in start.scan.unreadable:
            if begin >= start.scan.pos:  # in the part that is cut: no record is known to be lost
                found.append((begin, end - begin, f"cannot be read: {why}"))
        self.damage += [Damage(*self.log.path_of(pos), size, why) for pos, size, why in found]

    def _forget_damage(self, start: int) -> None:
        """Forget damage before the begin of the log: it is of no interest, and has no file."""
        self.state.damage = [each for each in self.state.damage if each.pos >= start]
        self.damage[:] = [each for each in self.damage if not self._is_before(each, start)]

    def _is_before(self, damage: Damage, start: int) -> bool:
        base = parse_segment_name(damage.path.name)
        is_of_log = damage.path.parent == self._paths.commit_log
        return is_of_log and base is not None and base + damage.offset < start

    def _begin_epoch(self, epoch: int) -> None:
        self.log.tail.begin_epoch(epoch, self.state.salt)
        self.log.append_head()
        start = self.log.pointers.wrote
        self.state.epochs.add(epoch, start)
        self._append_control(
            KIND_EPOCH,
            control_frames.encode_epoch(
                control_frames.EpochFrame(epoch, start, self.state.cluster, self.state.node)
            ),
        )
        self.log.end_change()

    def close(self) -> None:
        """Stop cleanly: make everything durable, and mark the stop as clean.

        Raises:
            StorageError: a write or sync failed; the next start recovers as after a crash.
        """
        if self.follower is not None and not self.follower.is_promoted:
            self.stop_error = self.follower.close()
            self.abandon(is_clean=True)
            return
        waits = self.comparison or self.repair
        if waits is not None and not waits.is_over:
            self.abandon(is_clean=waits.leaves_clean)
            return
        self.commit()
        self.flush()
        self.mark.finish()
        if self.state.expiry is not None:
            self.state.expiry.step()
        self.stop_error = self.checkpoints.finish()
        self._checkpoint.end(self.log.pointers.flushed)
        self.abandon(is_clean=True)

    def abandon(self, *, is_clean: bool = False) -> None:
        """Close the files and release the lock; write nothing."""
        if hasattr(self, "runs"):
            self.runs.close()
        self._queues.close()
        self.log.close()
        self._checkpoint.close()
        if self._lock is not None:
            if is_clean:
                self._fs.unlink(self._paths.abort)
                self._fs.sync_dir(self._paths.root)
            self._lock.release()
            self._lock = None

    # Control frames. The caller applies an appended frame at once, then calls `end_change`.

    def _remove_queues(self, topic: Topic) -> None:
        self._queues.remove_topic(topic.name, [each.handle for each in topic.partitions])

    def _append_control(self, kind: int, payload: bytes, topic_id: int = 0) -> None:
        # Replay needs this order: committed offsets, then the deletion of their topic.
        self.state.groups.append_gathered()
        self._append_frame(kind, payload, topic_id)

    def _check_room(self, payload_size: int, room: int) -> None:
        if not self.log.tail.has_room(payload_size, room):
            raise DiskFullError(self.log.tail.full_text)

    def stop_stages(self, stopped: StoppedStages) -> None:
        """Save which stages of timers are stopped.

        Raises:
            DiskFullError: nothing has changed.
        """
        self._append_frame(KIND_STAGES, encode_stages(stopped), flags=FRAME_FLAG_OPTIONAL)
        self.state.stopped_stages = stopped
        self.log.end_change()

    def _append_frame(self, kind: int, payload: bytes, topic_id: int = 0, flags: int = 0) -> None:
        if self._append(kind, payload, topic_id, flags) < 0:
            raise DiskFullError(self.log.tail.full_text)

    def _try_append(self, kind: int, payload: bytes, flags: int) -> bool:
        """Append a frame that changes nothing that memory holds; False if the disk is full."""
        if not self.log.tail.has_room(len(payload), ROOM_CONTROL):
            return False
        is_appended = self._append(kind, payload, 0, flags) >= 0
        if is_appended:
            self.log.tail.end_change()
        return is_appended

    def _append(self, kind: int, payload: bytes, topic_id: int, flags: int) -> int:
        self.log.check_applied()
        now_ms = self._clock.wall_ms()
        return self.log.tail.append_control(
            kind, topic_id=topic_id, store_time_ms=now_ms, payload=payload, flags=flags
        )

    def _append_topic(self, payload: bytes, topic_id: int) -> int:
        self._append_control(KIND_TOPIC, payload, topic_id)
        return self.log.tail.segment_end

    def allocate_producer_id(self) -> int:
        """Return a producer id that was never allocated before, not even before a crash.

        Raises:
            RequestError: the disk is full.
        """
        state = self.state
        if state.next_producer_id == state.producer_id_limit:
            limit = state.producer_id_limit + PRODUCER_ID_BLOCK
            self._append_control(KIND_PRODUCER, control_frames.encode_producer(limit))
            state.producer_id_limit = limit
            self.log.end_change()
            self.producer_ids_pos = self.log.pointers.wrote
        state.next_producer_id += 1
        return state.next_producer_id - 1

    # Write

    def commit(self) -> None:
        """Write the encoded frames. A StorageError is fatal: memory is ahead of the log.

        Raises:
            UnappliedChangeError: memory and log differ; fatal as well.
        """
        self.log.check_applied()
        self.state.groups.append_gathered()
        self.log.commit()

    def flush(self) -> None:
        """Commit and flush in one go, on this thread. A StorageError is fatal."""
        self.commit()
        job = self.log.begin_flush()
        if job is not None:
            job.run()
            self.log.end_flush(job)

    # Read

    def make_reader(self) -> ColdReader:
        """Return what reads frames and units that are not in memory, of the state as it is now."""
        return ColdReader(self._clock, self._fs, self.log, self._queues, self.state.projections)

    def note_read(self, read: ColdRead) -> list[Damage]:
        """Apply the result of `ColdReader.read`; on the loop. Returns new damage."""
        damage = self.cold.take_up(read, self.damage)
        self.damage += damage
        for each in damage:
            base = parse_segment_name(each.path.name)
            if base is not None and each.path.parent == self._paths.commit_log:
                known = KnownDamage(base + each.offset, each.size, each.fault)
                self.state.damage.append(known)
        return damage

    def space(self) -> tuple[int, int]:
        """See `FileSystem.space`."""
        return self._fs.space(self._paths.root)
