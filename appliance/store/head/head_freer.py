"""Frees the first segments of the log; what still lives in them is moved to its end first.

    loop     limit     the first kept record
    thread   FindJob   the first frame with a pending timer, in the runs and in what no run has yet
    loop     carry     appends again what lives below the cut, a slice a turn; waits for the flush
    thread   FreeJob   writes the new start into both copies of the checkpoint, removes the files

Segments in which nothing lives but control values are freed at once. Otherwise the log is left to
grow until it has more than twice its live bytes: until then, a segment is copied again and again
for little. Then one segment after another is carried.

The log is complete by itself at each moment: a crash before the new start is written leaves the
segments, and what was carried repeats what is known; a crash after it leaves files that the next
start removes. Layer 2.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from _core.bytes.layout import RUN_ID_SIZE, RUN_TIMER_SIZE
from _core.log.tail import ROOM_CONTROL
from appliance.errors import CorruptionError, StorageError
from appliance.store.head.carrier import Carrier, CarryJob
from appliance.store.head.carriers import Carriers
from appliance.store.head.slave_hold import SlaveHold
from appliance.store.log.data_files import DataFiles
from appliance.store.log.segment import FreedSegment
from appliance.store.runs.run_set import RowsNow, Runs
from appliance.store.state.checkpointer import Checkpointer
from appliance.store.state.state import State
from appliance.units import MS_PER_MINUTE, MS_PER_SECOND, NS_PER_MS, counted

CARRY_DIVISOR: Final = 4
"""A carry may take a quarter of the bytes that it frees."""

CARRY_MORE_BYTES: Final = 1_024
"""Headers and padding of carry frames of a small state."""

RETRY_NS: Final = 10 * MS_PER_SECOND * NS_PER_MS
"""The pause after an attempt that freed nothing. It doubles with each: each copies a memtable."""

RETRY_MAX_NS: Final = 10 * MS_PER_MINUTE * NS_PER_MS
"""The longest pause; a full disk does not wait so long."""

LIVE_FACTOR: Final = 2
"""What lives is carried once the log is larger than this many times its live bytes."""

POOR_PART: Final = 0.75
"""A carry that copies more than this part of what it frees gains little."""

TIMER_BYTES: Final = 512
"""What a pending timer takes in the log, as long as none was accepted."""

Phase: TypeAlias = Literal["idle", "saving", "finding", "carrying", "flushing", "freeing"]

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class FindJob:
    """Finds the first frame that holds a pending timer, on a thread.

    Attributes:
        cut: count the timers whose records are below this log position; 0: do not.
        found: the log position of that frame; None if nothing is pending.
        below: number of timers below the cut.
        error: why the runs cannot be read; None if they were.
    """

    timers: RowsNow
    cut: int = 0
    found: int | None = None
    below: int = 0
    error: StorageError | CorruptionError | None = None

    def run(self) -> None:
        """Read the runs as far as needed; may run on any thread."""
        try:
            self.found = self.timers.first_place()
            if self.cut:
                sizes = map(len, self.timers.rows_below(self.cut))
                self.below = sum(sizes) // RUN_TIMER_SIZE
        except (StorageError, CorruptionError) as error:
            self.error = error


@dataclass(slots=True, eq=False)
class FreeJob:
    """Writes durably where the log begins, and removes what is before it, on a thread.

    Attributes:
        freed: the segments, in order; after `run`, those whose files could not be removed.
        spare_bytes: size of a file that is kept as the spare; 0 if none is wanted.
        has_spare: one was kept.
        error: why not all could be removed; a later job, or the next start, does it.
    """

    files: DataFiles
    freed: list[FreedSegment]
    flushed: int
    spare_bytes: int = 0
    has_spare: bool = False
    error: StorageError | None = None

    def run(self) -> None:
        """Do it; may run on any thread.

        Raises:
            StorageError: the checkpoint could not be written; the process must stop.
        """
        self.files.checkpoint.rewrite(self.flushed)
        try:
            self.has_spare = remove_segments(self.files, self.freed, self.spare_bytes)
        except StorageError as error:
            if error.is_fatal:
                raise
            self.error = error


Job: TypeAlias = FindJob | FreeJob | CarryJob


def remove_segments(files: DataFiles, freed: list[FreedSegment], spare_bytes: int = 0) -> bool:
    """Remove files of segments that the log no longer has, the first one first.

    Each removal is durable before the next, so that no gap can be left.

    Args:
        files: of the store.
        freed: ascending; whatever is removed is taken out.
        spare_bytes: one file of that size may become the spare; 0: remove all.

    Returns:
        Whether one has become the spare.

    Raises:
        StorageError: one could not be removed; it and those after it stay.
    """
    has_spare = False
    while freed:
        # It may be gone, and only its directory not synced yet.
        if files.fs.exists(freed[0].path):
            has_spare |= freed[0].remove(files.fs, 0 if has_spare else spare_bytes)
        files.fs.sync_dir(freed[0].path.parent)
        del freed[0]
    return has_spare


class HeadFreer:
    """Frees segments, one attempt after another. All methods run on the loop.

    Attributes:
        freed_bytes: bytes of segments freed since the start.
        hold: keeps what a connected slave lacks.
        may_carry: whether records and timers that live on may be moved now. Control state may
            always: it is little beside what it frees.
    """

    def __init__(
        self,
        files: DataFiles,
        state: State,
        checkpoints: Checkpointer,
        runs: Runs,
        *,
        carriers: Carriers,
        hold: SlaveHold,
        may_carry: Callable[[], bool],
        forget_damage: Callable[[int], None],
        id_memory_ms: int,
        payload_max: int,
        left: list[FreedSegment],
    ) -> None:
        """Start idle.

        Args:
            files: the log and the checkpoint.
            state: says what lives.
            checkpoints: knows how large the control state is, and saves it after its log was cut.
            runs: say which timers are pending.
            carriers: move what lives.
            hold: keeps what a connected slave lacks.
            may_carry: whether records and timers that live on may be moved now.
            forget_damage: (start) forgets damage before the log position where the log begins.
            id_memory_ms: how long ids of completed timers are remembered.
            payload_max: bytes of the largest payload of a control frame.
            left: freed segments, ascending, whose files could not be removed yet.
        """
        self._files = files
        self._log = files.log
        self._state = state
        self._checkpoints = checkpoints
        self._runs = runs
        self._carriers = carriers
        self._all = [*carriers.movers, *carriers.repeaters]
        self.hold = hold
        self.may_carry = may_carry
        self._forget_damage = forget_damage
        self._left = left
        self._id_memory_ms = id_memory_ms
        self._payload_max = payload_max
        self._phase: Phase = "idle"
        self._tried_ns: int | None = None
        self._looked_ns: int | None = None
        self._cut = 0
        self._carry_cut = 0
        """Where to cut if what lives below it must be moved; the start of the log: not now."""
        self._moving: list[Carrier] = []
        self._carried_pos = 0
        self._carried_before = 0
        self._required_cut = 0
        self._leaves_ids = False
        self._kept_from = 0
        self._began_full = False
        self._poor_until = 0
        """After a carry that gained little, the log must reach this position for the next."""
        self._blocked_at: int | None = None
        self._rest_ns = RETRY_NS
        self._pauses = 0
        self._had_room = True
        self._is_carry_running = False
        self._began_at = 0
        self._saved_from = self._log.start_pos
        self._freeing = 0, 0
        """Segments that a job removes, and their bytes."""
        self._timers_from = 0
        """No timer was pending below this log position when it was last looked for."""
        self.freed_bytes = 0

    @property
    def carried_bytes(self) -> int:
        """Bytes of carry frames appended since the start."""
        return sum(each.carried_bytes for each in self._all)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Remove no segment in this context."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def hurry(self) -> None:
        """Let the next attempt follow at once: something else may be freed now."""
        self._tried_ns = self._looked_ns = None
        self._rest_ns = RETRY_NS

    def require(self, cut: int) -> None:
        """Move what lives below a log position, whatever the size of the log and the hour."""
        self._required_cut = cut

    @property
    def is_carrying(self) -> bool:
        """Call `step` again soon, and not only after a flush."""
        is_ready = self._phase == "carrying" and not self._is_carry_running
        return is_ready and not self._carriers.records.is_waiting

    def reclaimable_bytes(self, kept_from: int) -> int:
        """Return the bytes of the first segments in which nothing is needed, as far as is known.

        Args:
            kept_from: as for `step`.
        """
        limit = min(kept_from, self._log.pointers.flushed)
        if self._state.projections.due.pending:
            limit = min(limit, self._timers_from)
        return max(0, self._base_of(limit) - self._log.start_pos)

    def next_cut(self) -> int | None:
        """Return the first log position up to which freeing is worth its carry; None if none is."""
        return next((base for base in self._log.files.bases[1:] if self._is_worth(base)), None)

    def step(self, kept_from: int) -> Job | None:
        """Continue, or begin if something can be freed; call it at the end of a turn.

        Args:
            kept_from: a log position before which no partition has a record that is kept.

        Returns:
            A job to run on a thread and then pass to `end`, or None.
        """
        if self._phase == "idle" and self._is_rested():
            return self._remove_left() or self._begin(kept_from)
        if self._phase == "saving":
            return self._find()
        if self._phase == "carrying" and not self._is_carry_running:
            job = self._carry()
            self._is_carry_running = job is not None
            if job is not None:
                return job
        if self._pauses:
            return None
        is_flushed = self._log.pointers.flushed >= self._carried_pos
        if self._phase == "flushing" and is_flushed and not self.hold.is_held(self._cut):
            return self._free()
        return None

    def end(self, job: Job) -> None:
        """Note that a job has run."""
        if isinstance(job, FreeJob):
            self._end_free(job)
        elif isinstance(job, FindJob):
            self._end_find(job)
        else:
            self._is_carry_running = False
            if self._moving:
                self._moving[0].end(job)

    def _end_find(self, job: FindJob) -> None:
        self._phase = "idle"
        if job.error is not None:
            _log.warning("no segment is freed, the timers cannot be read: %s", job.error)
            return
        self._timers_from = self._began_at if job.found is None else job.found
        if job.found is not None:
            self._cut = min(self._cut, self._base_of(job.found))
        if self._log.is_full and not self._began_full:
            return  # what may go, and what is left out, was not decided for a full disk: try again
        if self._is_worth(self._cut):
            self._begin_carry(self._cut, self._carriers.repeaters)
        elif self._carry_cut > self._log.start_pos and self._may_move(job):
            self._begin_carry(self._carry_cut, self._all)

    def _may_move(self, job: FindJob) -> bool:
        """Whether what lives below the cut may be moved: on a full disk only a few timers."""
        if not self._log.is_full:
            return True
        has_records = self._kept_from < self._carry_cut
        return not has_records and self._fits(job.below * self._timer_bytes)

    def _has_room(self) -> bool:
        """Whether the control state fits into what is left; deliveries need the rest of that.

        Without this, each attempt on a full disk would use up some of the reserve.
        """
        had_room, self._had_room = self._had_room, True
        if self._fits():
            return True
        self._had_room = False
        if had_room:
            _log.warning(
                "no segment is freed although nothing needs it: the disk is full, and the topics, "
                "groups, offsets and ids that must be kept take %s, for which the reserve has no "
                "room; free space on the disk",
                counted(self._state_bytes, "byte"),
            )
        return False

    def _fits(self, more_bytes: int = 0) -> bool:
        """Whether the control state, and as many bytes more, fit into what is left."""
        if not self._log.is_full:
            return True
        # The state may have grown since it was saved.
        size = 2 * (self._state_bytes + more_bytes) + CARRY_MORE_BYTES
        return size <= self._payload_max and self._log.tail.has_room(size, ROOM_CONTROL)

    # What can go

    def _is_rested(self) -> bool:
        rest_ns = RETRY_NS if self._log.is_full else self._rest_ns
        now_ns = self._files.clock.monotonic_ns()
        return self._tried_ns is None or now_ns - self._tried_ns >= rest_ns

    def _begin(self, kept_from: int) -> FindJob | None:
        """Find how far the log may be freed, except for timers; look for these on a thread."""
        log = self._log
        cut = self.hold.limit(self._base_of(min(kept_from, log.pointers.flushed)))
        self._leaves_ids = False
        self._began_full = log.is_full
        self._carry_cut = self._choose_carry_cut(self._base_of(log.pointers.flushed))
        if max(cut, self._carry_cut) > log.start_pos and not self._fits():
            # The disk is full. The saved state has the ids; a replay of the log alone would need
            # them only if their timers were accepted in the segments that go.
            self._leaves_ids = True
            self._carry_cut = log.start_pos
            cut = min(cut, self._base_of(self._remembered_from()))
        if max(cut, self._carry_cut) <= log.start_pos:
            return None
        self._tried_ns = self._files.clock.monotonic_ns()
        if not self._checkpoints.snapshot_bytes and self._checkpoints.failure is None:
            # The first checkpoint says how much there is to carry. If the disk is too full for it,
            # a segment that goes makes room for it.
            self._checkpoints.ask()
            return None
        is_worth = self._is_worth(cut) or self._carry_cut > log.start_pos
        if not is_worth:
            return None
        self._rest_ns = min(2 * self._rest_ns, RETRY_MAX_NS)
        self._cut = cut
        self._kept_from = kept_from
        return self._find()

    def _find(self) -> FindJob | None:
        """Look for the first pending timer, or wait while a checkpoint saves most of them."""
        timers = self._runs.timers_now()
        if timers is None:
            self._phase = "saving"
            return None
        self._phase = "finding"
        self._began_at = self._log.pointers.committed
        return FindJob(timers, self._carry_cut if self._log.is_full else 0)

    def _base_of(self, pos: int) -> int:
        """The base of the segment that holds a log position; the log keeps it and all after it."""
        return max((base for base in self._log.files.bases if base <= pos), default=0)

    def _is_worth(self, cut: int) -> bool:
        """Whether a carry of the control values costs little beside what is freed."""
        return cut - self._log.start_pos > CARRY_DIVISOR * self._state_bytes

    @property
    def _state_bytes(self) -> int:
        """What control values and remembered ids take in carry frames."""
        ids = self._state.projections.ids
        id_count = 0 if self._leaves_ids else ids.completed_count
        return self._checkpoints.snapshot_bytes + id_count * RUN_ID_SIZE

    def _remembered_from(self) -> int:
        """A log position below which no frame completed a timer whose id is remembered."""
        expiry = self._state.expiry
        return 0 if expiry is None else expiry.position_before(self._id_memory_ms)

    @property
    def live_bytes(self) -> int:
        """About how many bytes of the log are needed: records, timers and control values."""
        return self._carriers.records.kept_bytes() + self.timers_bytes + self._state_bytes

    @property
    def timers_bytes(self) -> int:
        """About how many bytes of the log pending timers take."""
        return self._state.projections.due.pending * self._timer_bytes

    @property
    def _timer_bytes(self) -> int:
        """What a timer takes in the log, on average."""
        projections = self._state.projections
        if projections.timers_accepted == 0:
            return TIMER_BYTES
        return projections.held_bytes // projections.timers_accepted

    def _choose_carry_cut(self, limit: int) -> int:
        """The next segment's base, if the log is so large that the first one must be carried.

        Args:
            limit: the base of a segment that must stay.
        """
        log = self._log
        start = log.start_pos
        wrote = log.pointers.wrote
        if start < self._required_cut <= limit:
            return self._required_cut
        first_size = min((base for base in log.files.bases if base > start), default=wrote) - start
        if wrote < self._poor_until or not self._is_time_to_look() or not self.may_carry():
            return start
        if wrote - start - first_size <= LIVE_FACTOR * self.live_bytes:
            return start
        cuts = [base for base in log.files.bases if base <= limit and self._is_worth(base)]
        return min(cuts, default=start)

    def _is_time_to_look(self) -> bool:
        """Whether to count the live bytes, which takes a while with many partitions."""
        now_ns = self._files.clock.monotonic_ns()
        if self._looked_ns is not None and now_ns - self._looked_ns < RETRY_NS:
            return False
        self._looked_ns = now_ns
        return True

    # Carry

    def _begin_carry(self, cut: int, carriers: Sequence[Carrier]) -> None:
        if not self._has_room():
            return
        self._phase = "carrying"
        self._began_full = self._log.is_full
        self._cut = cut
        self._moving = list(carriers)
        if self._leaves_ids:
            self._moving.remove(self._carriers.ids)
        self._carried_before = self.carried_bytes
        for carrier in self._moving:
            carrier.begin(cut)

    def _carry(self) -> CarryJob | None:
        carrier = self._moving[0]
        is_short = self._log.is_full and not self._began_full and carrier in self._carriers.movers
        if carrier.has_failed or is_short:
            # The reserve of a full disk is for others. What was carried does no harm.
            self._end_carry()
        elif not carrier.is_done:
            return carrier.step()
        elif carrier.blocked_at is not None and not self._lower_cut(carrier.blocked_at):
            self._end_carry()
        elif len(self._moving) > 1:
            self._moving.pop(0).stop()
        else:
            self._end_carry()
            self._phase = "flushing"
            self._carried_pos = self._log.pointers.wrote
        return None

    def _lower_cut(self, blocked_at: int) -> bool:
        """Keep the segment of a frame that cannot be read; whether others can still be freed."""
        self._cut = min(self._cut, self._base_of(blocked_at))
        if blocked_at != self._blocked_at:
            self._blocked_at = blocked_at
            path, offset = self._log.path_of(blocked_at)
            _log.warning(
                "%s stays: the frame at offset %d cannot be read, and holds a pending timer or a "
                "record that is kept",
                path,
                offset,
            )
        return self._cut > self._log.start_pos

    def _end_carry(self) -> None:
        for carrier in self._moving:
            carrier.stop()
        self._moving = []
        self._phase = "idle"

    # Free

    def _free(self) -> FreeJob:
        checkpoint = self._files.checkpoint
        self._left += self._log.forget_head(self._cut)
        self._state.projections.moved.start = self._cut
        checkpoint.log = replace(checkpoint.log, start=self._cut)
        self._forget_damage(self._cut)
        return self._remove()

    def _remove_left(self) -> FreeJob | None:
        """Try again to remove what could not be removed."""
        return self._remove() if self._left and not self._pauses else None

    def _remove(self) -> FreeJob:
        """Remove all files that are left, the first one first: a later one alone leaves a gap."""
        self._phase = "freeing"
        self._freeing = len(self._left), sum(segment.size for segment in self._left)
        flushed, spare_bytes = self._log.pointers.flushed, self._log.wanted_spare_bytes
        return FreeJob(self._files, self._left, flushed, spare_bytes)

    def _end_free(self, job: FreeJob) -> None:
        self._phase = "idle"
        count, size = self._freeing
        count -= len(job.freed)
        size -= sum(segment.size for segment in job.freed)
        if job.has_spare:
            self._log.note_recycled()
        if self._log.start_pos != self._saved_from:
            # Without a saved state inside the log, a start would replay all of it.
            self._saved_from = self._log.start_pos
            self._checkpoints.ask()
        if count:
            self._note_freed(count, size)
        if job.error is None:
            self.hurry()
            return
        self._tried_ns = self._files.clock.monotonic_ns()
        self._rest_ns = min(2 * self._rest_ns, RETRY_MAX_NS)
        _log.warning("a freed segment cannot be removed, it is tried again: %s", job.error)

    def _note_freed(self, count: int, size: int) -> None:
        carried_bytes = self.carried_bytes - self._carried_before
        self.freed_bytes += size
        if carried_bytes > POOR_PART * size:
            self._poor_until = self._log.pointers.wrote + size // 2
        _log.info(
            "freed %s, %d bytes; the log begins at %d; %d bytes were carried",
            counted(count, "segment"),
            size,
            self._log.start_pos,
            carried_bytes,
        )
