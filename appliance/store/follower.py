"""A slave's store: a start that does not end before a promotion.

The slave recovers its own log and writes nothing of its own into it: no epoch, no verdict. Then it
writes the bytes that the master sends, at the same log positions, and replays them as a start does.
A promotion is the end of that start. Layer 2.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

from _core.bytes.layout import FORMAT_VERSION
from _core.log.pointers import Pointers
from _core.log.tail import LogTail
from _core.queue.partition import Partition
from _core.state.frame_ids import uncertain_ids
from appliance.config.config import Address, Config
from appliance.errors import CorruptionError, LogRefusedError, ReplicaError, StorageError
from appliance.store.caught_up import forget_caught_up, has_caught_up, note_caught_up
from appliance.store.checkpoint import NO_CLUSTER, NOT_OWN, LogIdentity
from appliance.store.diverged import cut_log, keep_tail, move_log
from appliance.store.head.followed_head import FollowedHead
from appliance.store.head.head_freer import FreeJob
from appliance.store.log.data_files import DataFiles
from appliance.store.log.followed_files import FollowedFiles
from appliance.store.log.segment import FreedSegment
from appliance.store.log.watermark import WatermarkJob
from appliance.store.recovery.log_knowledge import is_covered
from appliance.store.recovery.report import Progress
from appliance.store.recovery.start import Start
from appliance.store.role_file import RoleFile, next_term
from appliance.store.runs.saved_ids import IdLookup
from appliance.store.runs.timer_memory import TimerMemory
from appliance.store.state.checkpointer import Checkpointer, CheckpointJob
from appliance.store.state.snapshot import KnownDamage

MARK_STEP_NS: Final = 1_000_000_000
"""Between two writes of the flushed position, after which a start may judge its own tail."""


Job: TypeAlias = CheckpointJob | FreeJob


def make_checkpointer(files: DataFiles, start: Start, config: Config) -> Checkpointer:
    """Return what takes checkpoints from the end of a start on, on a slave or on a master."""
    return Checkpointer(
        files,
        queues=start.queues,
        state=start.state,
        runs=start.runs,
        interval_bytes=config.checkpoint_interval_bytes,
        kept=start.kept,
    )


class Follower:
    """Appends what the master sends.

    Attributes:
        is_promoted: set by `promote`; the start then goes on.
        checkpoints: takes the slave's checkpoints, and those of the master that it becomes.
        head: frees the segments that the master freed.
    """

    def __init__(
        self,
        files: DataFiles,
        start: Start,
        left: list[FreedSegment],
        *,
        config: Config,
        node: int,
        role: RoleFile,
    ) -> None:
        """Take over a start whose replay has ended.

        Args:
            files: the directory; the abort file exists.
            start: holds the replayed state.
            left: freed segments, ascending, whose files could not be removed yet.
            config: the size of a segment and what an acknowledgement means, as on the master.
            node: which node of the pair this is.
            role: says that it is a slave, and in which term.

        Raises:
            LogRefusedError: the log is damaged; a slave does not judge that.
        """
        self._clock, self._checkpoint = files.clock, files.checkpoint
        self._data, self._log, self._start = files, files.log, start
        self._wants_start, self._role = False, role
        self._segment_size_bytes, self._node = config.segment_size_bytes, node
        verdicts = list(start.state.verdicts)
        unjudged = [each for each in start.scan.damage if not is_covered(each[:2], verdicts)]
        if unjudged:
            begin, end, why = unjudged[0]
            raise LogRefusedError(
                files.paths.commit_log,
                "the slave's log is damaged",
                "a whole log, or none",
                f"log positions {begin} to {end}: {why}",
                advice="If the master has that part, move this data directory away: the slave then "
                "copies its log. If it has not, this may be the only copy",
            )
        self._files = FollowedFiles(files.log, files.checkpoint, pos=start.scan.pos)
        self._end_pos = self._whole_pos = start.scan.pos
        self._replayed_pos = start.scan.pos
        self._shown_pos = 0
        self._marked_ns = 0
        self._is_saving = False
        start.runs.ids.end_replay()
        self._checkpoint.lower_flushed(start.scan.pos)
        files.log.remove_empty()
        self._files.cut()
        self._begin_pointers()
        self._note_applied()
        self._checkpoint.rewrite(start.scan.pos)
        found = [KnownDamage(begin, end - begin, why) for begin, end, why in start.scan.damage]
        start.state.damage = [*start.damage, *found]
        start.queues.flushed = lambda: files.log.pointers.flushed
        start.state.projections.moved.start = files.log.start_pos
        self.checkpoints = make_checkpointer(files, start, config)
        self.head = FollowedHead(files, start.state, self.checkpoints, left)
        self._has_caught_up = has_caught_up(files.fs, files.paths)
        self.is_promoted = False

    @property
    def unsaved_timer_bytes(self) -> int:
        """Memory of changes of timers and ids that no checkpoint has."""
        return self._start.runs.delta_bytes

    @property
    def timer_memory(self) -> TimerMemory:
        """Decides which timers are in memory."""
        return self._start.runs.timer_memory

    @property
    def id_read_count(self) -> int:
        """Ids that were read from the disk since the start."""
        return self._start.runs.ids.read_count

    def wait(self) -> Iterator[Progress]:
        """Yield until the slave is promoted."""
        while not self.is_promoted:
            yield Progress("following", self._end_pos, 0)

    @property
    def wants_start(self) -> bool:
        """The files were changed below what is applied: only a new start can go on."""
        return self._wants_start

    @property
    def has_caught_up(self) -> bool:
        """The log was once all of the master's log; it may have fallen behind since."""
        return self._has_caught_up

    def note_caught_up(self) -> None:
        """Remember durably that all of the master's log is durable here.

        Raises:
            StorageError: it could not be written.
        """
        if not self._has_caught_up:
            note_caught_up(self._data.fs, self._data.paths)
            self._has_caught_up = True

    @property
    def term(self) -> int:
        """The newest term that this node knows; 0 if it knows none yet."""
        return self._role.record.term

    @property
    def next_term(self) -> int:
        """The term that a promotion begins."""
        return next_term(self.term, self._node)

    def adopt_term(self, term: int, master: Address) -> None:
        """Remember durably which term the master is of, before anything of it counts here.

        Args:
            term: at least `term`.
            master: where it replicates.

        Raises:
            StorageError: it could not be written.
        """
        self._role.change(term=term, is_master=False, peer=master, has_yielded=False)

    def _forget_caught_up(self) -> None:
        self._has_caught_up = False
        forget_caught_up(self._data.fs, self._data.paths)

    # What the master asks for

    @property
    def has_log(self) -> bool:
        """There is a whole frame."""
        return self.last_pos >= 0

    @property
    def cluster(self) -> bytes:
        """Id of the cluster that the log belongs to; zeros if it is empty."""
        return self._start.state.cluster.bytes if self.has_log else bytes(16)

    @property
    def node(self) -> int:
        """Which node of the pair this is: 1 or 2."""
        return self._node

    @property
    def format_version(self) -> int:
        """The highest version of frames that this node reads."""
        return FORMAT_VERSION

    @property
    def segment_size_bytes(self) -> int:
        return self._segment_size_bytes

    @property
    def start_pos(self) -> int:
        return self._log.start_pos if self.has_log else self._end_pos

    @property
    def end_pos(self) -> int:
        """Log position after the last whole frame, up to which all frames are applied."""
        return self._end_pos

    @property
    def received_pos(self) -> int:
        """Log position of the next byte: a part of a frame may be there already."""
        return self._files.pos

    @property
    def durable_pos(self) -> int:
        """Log position up to which all whole frames are on the disk."""
        return self._files.durable

    @property
    def last_pos(self) -> int:
        """Log position of the last frame; -1 if there is none."""
        return self._start.last_frame[0]

    @property
    def last_crc(self) -> int:
        """CRC of the last frame; 0 if there is none."""
        return self._start.last_frame[1]

    def epochs(self) -> list[tuple[int, int]]:
        """Each epoch with its start position, ascending."""
        return self._start.state.epochs.all()

    # What the master sends

    def restart(self, start_pos: int) -> None:
        """Let the log begin where the master's begins.

        Args:
            start_pos: the base position of a segment.

        Raises:
            ReplicaError: the log was not empty. It is now, and a new start must begin; what there
                was is in diverged/.
        """
        self._forget_caught_up()
        if self.has_log:
            self._check_not_saving()
            self._wants_start = True
            move_log(self._data, epoch=self._start.scan.epoch)
            raise ReplicaError("the log shared nothing with the master's and was moved to diverged")
        self._log.files.cut(0)  # a part of a frame
        self._files.begin_at(start_pos)
        self._start.begin_at(start_pos)
        self.head.forget_master()
        self._end_pos = self._whole_pos = start_pos
        self._begin_pointers()

    def truncate(self, pos: int, *, may_be_acknowledged: bool = False) -> None:
        """Let the log end where that of the master agrees with it.

        Args:
            pos: the end of a whole frame.
            may_be_acknowledged: what the master wrote and lost since may be.

        Raises:
            ReplicaError: it ended later. The rest is kept aside, and a new start must read the log.
                Or it is kept where it is, because the master acknowledged it and lost it since.
            StorageError: a file could not be changed.
        """
        if pos < self._end_pos:
            if may_be_acknowledged and not self._is_own(pos):
                raise ReplicaError(
                    f"the master lost the end of its log from {pos} on, which this slave has to "
                    f"{self._end_pos} and which may be acknowledged: promote this slave"
                )
            self._check_not_saving()
            self._wants_start = True
            self._forget_caught_up()
            keep_tail(self._data, pos, self._end_pos, epoch=self._start.scan.epoch)
            cut_log(self._data, pos)
            raise ReplicaError(f"the log had {self._end_pos - pos} bytes that the master's lacks")
        self._files.go_back(self._end_pos)

    def _check_not_saving(self) -> None:
        """A thread that saves what is cut off would vouch for it afterwards."""
        if self._is_saving:
            raise ReplicaError("a checkpoint is being written: the log is cut after it")

    def _is_own(self, pos: int) -> bool:
        """Whether this node was the master that wrote the frame at a log position."""
        epoch = max((each for each, start in self.epochs() if start <= pos), default=0)
        return epoch % 2 == self._node % 2

    def read(self, pos: int, size: int) -> bytes:
        """Return bytes of the log, to the end of a segment at most; may run on any thread.

        Args:
            pos: log position.
            size: at least 1.

        Raises:
            ReplicaError: the log does not have them.
            StorageError: the disk cannot read it.
        """
        end_pos = self._end_pos
        if not self._log.start_pos <= pos < end_pos:
            raise ReplicaError(f"the log has nothing at {pos}: it ends at {end_pos}")
        return self._log.read(pos, min(size, end_pos - pos))

    def append(self, pos: int, data: bytes | memoryview) -> IdLookup | None:
        """Write bytes of the master's log, and apply the frames that are whole now.

        Args:
            pos: log position of the first byte; must be `received_pos`.
            data: they may end within a frame, and do not cross the end of a segment.

        Returns:
            What a thread must run before the frames can be applied, because they name ids that are
            on the disk alone; `end_lookup` follows, before anything else is appended. None if they
            are applied.

        Raises:
            ReplicaError: they do not follow, or are not frames of this log. What was applied before
                stays; the bytes after `end_pos` are worth nothing.
            StorageError: they could not be written; the same holds.
        """
        if pos != self.received_pos:
            raise ReplicaError(
                f"bytes at {pos} do not follow the log, which ends at {self.received_pos}"
            )
        try:
            self._files.append(data)
        except ValueError as error:
            raise ReplicaError(str(error)) from None
        self._whole_pos = self._files.find_whole(self._end_pos, pos, data)
        return self._go_on(pos, data)

    def end_lookup(self, lookup: IdLookup) -> IdLookup | None:
        """Take what a look-up of `append` has found, and go on.

        Returns:
            As `append`: a checkpoint may have ended meanwhile.

        Raises:
            ReplicaError: as `append`.
            StorageError: a run cannot be read; the process must end.
            CorruptionError: a run is damaged; the same holds.
        """
        self._start.runs.ids.take(lookup)
        return self._go_on(self.received_pos, b"")

    def _go_on(self, pos: int, data: bytes | memoryview) -> IdLookup | None:
        """Apply the whole frames, or return the look-up of ids that they wait for.

        Args:
            pos, data: as of `append`; frames that begin before are read from the file.
        """
        if self._whole_pos == self._end_pos:
            return None
        ids = self._start.runs.ids
        if not ids.is_whole:
            frames = self._unapplied(pos, data)
            keys = uncertain_ids(self._start.state.projections, frames, self._end_pos)
            if keys:
                return ids.look_up(keys)
        self._apply(self._whole_pos)
        return None

    def _unapplied(self, pos: int, data: bytes | memoryview) -> bytes | memoryview:
        size = self._whole_pos - self._end_pos
        if pos == self._end_pos:
            return memoryview(data)[:size]
        return self._log.files.read_raw(self._end_pos, size)

    def _apply(self, end: int) -> None:
        try:
            self._start.follow(end)
        except CorruptionError as error:
            raise ReplicaError(str(error)) from error
        finally:
            self._end_pos = self._start.scan.pos
            self._note_applied()

    # What consumers may read

    def show(self, master_visible_pos: int) -> list[Partition]:
        """Let consumers read what is durable and applied here, and may be read on the master.

        Runs on the loop.

        Args:
            master_visible_pos: the end of what may be read there, as it last said.

        Returns:
            The partitions with new records and parked fetches.
        """
        pos = min(self.durable_pos, master_visible_pos)
        if pos <= self._shown_pos:
            return []
        self._shown_pos = pos
        return self._start.state.projections.advance_visible(pos)

    @property
    def shown_pos(self) -> int:
        """The end of what consumers may read, by the last `show`."""
        return self._shown_pos

    @property
    def is_readable(self) -> bool:
        """No partition shows more than the master does.

        The replay of a start shows all of this log, and the master may not have shown all of it
        yet, or have lost the end of it since.
        """
        return self.has_log and not self._wants_start and self._shown_pos >= self._replayed_pos

    # The pointers of the log, as a checkpoint of a broker reads them

    def _begin_pointers(self) -> None:
        self._log.pointers = Pointers(self._end_pos, sync_flush=True)
        self._log.tail = LogTail(self._log.pointers, reserve_bytes=0)

    def _note_applied(self) -> None:
        """Note on the loop where the log ends, and what was learned of it."""
        log, start, scan = self._log, self._start, self._start.scan
        state = start.state
        state.salt = state.salt or scan.salt
        state.lost = scan.lost_ranges
        if self.has_log and log.tail.epoch != scan.epoch:
            log.tail = LogTail(log.pointers, reserve_bytes=0)
            log.tail.begin_epoch(scan.epoch, scan.salt)
        log.tail.last_pos, log.tail.last_crc = start.last_frame
        log.pointers.advance_wrote(self._end_pos)
        log.pointers.advance_committed(self._end_pos)
        self._note_identity()

    def _note_flushed(self) -> None:
        pointers = self._log.pointers
        pointers.advance_flushed(max(pointers.flushed, min(self.durable_pos, pointers.committed)))

    # Checkpoints, and the begin of the log

    def step_job(self) -> Job | None:
        """Continue a checkpoint, or begin one that is due, or free segments; call it often.

        Runs on the loop.

        Returns:
            A job to run on a thread and then pass to `end_job`, or None.

        Raises:
            StorageError: the disk failed; the process must end.
        """
        if self._wants_start or self._is_saving or not self.has_log:
            return None
        self._note_flushed()
        job = self.checkpoints.step() or self.head.step(self.durable_pos)
        self._is_saving = job is not None
        return job

    def end_job(self, job: Job) -> None:
        """Note that a job has run."""
        self._is_saving = False
        if isinstance(job, FreeJob):
            self.head.end(job)
        else:
            self.checkpoints.end(job)

    # The disk

    def begin_raise(self) -> WatermarkJob | None:
        """See `ReplicaLog.begin_raise`."""
        return self._files.begin_raise() if self.has_log else None

    def end_raise(self, job: WatermarkJob) -> None:
        """See `ReplicaLog.end_raise`."""
        self._files.end_raise(job)

    def flush(self) -> int:
        """Make durable what was received; may run on a thread while more is received.

        Returns:
            `durable_pos` after it.

        Raises:
            StorageError: a sync failed, which ends the process.
        """
        whole = self._end_pos  # more may come while this runs
        job = self._files.begin_flush()
        if job is not None:
            job.run()
            self._files.end_flush(job)
        self._files.durable = max(self._files.durable, whole)
        if job is not None:
            self._mark()
        return self.durable_pos

    def close(self) -> StorageError | CorruptionError | None:
        """End the following cleanly, without a promotion; no job of a checkpoint may run.

        What was received as whole frames is durable, the rest is cut.

        Returns:
            The error if no checkpoint could be written; the next start replays more.

        Raises:
            StorageError: it could not be made durable.
        """
        self._files.pos = self._end_pos
        self._files.cut()
        self._note_flushed()
        error = self.checkpoints.finish() if self.has_log else None
        self._checkpoint.end(self._end_pos)
        return error

    def _mark(self) -> None:
        """Write now and then how far the log is durable: a start judges its tail by that."""
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._marked_ns >= MARK_STEP_NS:
            self._marked_ns = now_ns
            self._checkpoint.note_flushed(self.durable_pos)

    def _note_identity(self) -> None:
        state, scan = self._start.state, self._start.scan
        self._checkpoint.log = LogIdentity(
            cluster=state.cluster if scan.salt else NO_CLUSTER,
            start=self._log.start_pos,
            own_from=NOT_OWN,
            salt=scan.salt,
            epoch=scan.epoch,
        )

    def end(self) -> None:
        """Let the log end after its last whole frame, durably, and let the start go on.

        No job of a checkpoint may run.

        Raises:
            StorageError: it could not be made so.
        """
        self.checkpoints.abandon()
        self._files.pos = self._end_pos
        self._files.cut()
        self._checkpoint.note_flushed(self._end_pos)

    def promote(self, term: int = 0) -> None:
        """End the following: everything received as whole frames is durable, the rest is cut.

        Then this node is the master of a new term, durably, though it has not served yet. No job of
        a checkpoint may run.

        Args:
            term: that etcd knows of; the new one is this one, or a later one of this node.

        Raises:
            StorageError: it could not be made so.
        """
        self.end()
        self._role.change(term=max(term, self.next_term), is_master=True)
        self._forget_caught_up()  # as a slave again it lacks what the other master wrote
        self.is_promoted = True
