"""Frees the first segments of the log when nothing in them is needed any longer.

    loop     limit     the first kept record, the oldest remembered ids
    thread   FindJob   the first pending timer, in the runs and in what no run holds yet
    loop     carry     appends the control state again, a slice a turn; waits for the flush
    thread   FreeJob   writes the new start into both copies of the checkpoint, removes the files

What a frame in these segments has set, and still holds, is carried to the end of the log before
they go. So the log is complete by itself at each moment: a crash before the new start is written
leaves the segments, and the carried values repeat what is known; a crash after it leaves files that
the next start removes. A record, a pending timer or a remembered timer id keeps its segment, and
all after it. Layer 2.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from _core.bytes.layout import FRAME_FLAG_CONTROL, KIND_CARRY
from _core.log.tail import ROOM_CONTROL
from appliance.errors import CorruptionError, StorageError
from appliance.store.head.control_values import control_values, frames_of
from appliance.store.log.data_files import DataFiles
from appliance.store.log.segment import Segment
from appliance.store.runs.run_set import Runs, TimersNow
from appliance.store.state.checkpointer import Checkpointer
from appliance.store.state.payload import COUNT
from appliance.store.state.snapshot import VALUE_HEAD
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

VALUE_OVERHEAD_BYTES: Final = COUNT.size + VALUE_HEAD.size
"""What a carry frame of one value has besides the payload that was a frame's."""

Phase: TypeAlias = Literal["idle", "finding", "carrying", "flushing", "freeing"]

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class FindJob:
    """Finds the first pending timer, on a thread.

    Attributes:
        found: the log position of its frame; None if nothing is pending.
        error: why the runs cannot be read; None if they were.
    """

    timers: TimersNow
    found: int | None = None
    error: StorageError | CorruptionError | None = None

    def run(self) -> None:
        """Read the runs as far as needed; may run on any thread."""
        try:
            self.found = self.timers.first_position()
        except (StorageError, CorruptionError) as error:
            self.error = error


@dataclass(slots=True, eq=False)
class FreeJob:
    """Writes durably where the log begins, and removes what is before it, on a thread.

    Attributes:
        freed: the segments, in order; after `run`, those whose files could not be removed.
        error: why not; a later job, or the next start, does it.
    """

    files: DataFiles
    freed: list[Segment]
    flushed: int
    error: StorageError | None = None

    def run(self) -> None:
        """Do it; may run on any thread.

        Raises:
            StorageError: the checkpoint could not be written; the process must stop.
        """
        self.files.checkpoint.rewrite(self.flushed)
        try:
            remove_segments(self.files, self.freed)
        except StorageError as error:
            if error.is_fatal:
                raise
            self.error = error


Job: TypeAlias = FindJob | FreeJob


def remove_segments(files: DataFiles, freed: list[Segment]) -> None:
    """Remove files of segments that the log no longer has, the first one first.

    Each removal is durable before the next, so that no gap can be left.

    Args:
        files: of the store.
        freed: ascending; whatever is removed is taken out.

    Raises:
        StorageError: one could not be removed; it and those after it stay.
    """
    while freed:
        path = freed[0].file.path
        # It may be gone, and only its directory not synced yet.
        if files.fs.exists(path):
            files.fs.unlink(path)
        files.fs.sync_dir(path.parent)
        del freed[0]


class HeadFreer:
    """Frees segments, one attempt after another. All methods run on the loop.

    Attributes:
        freed_bytes: bytes of segments freed since the start.
        carried_bytes: bytes of carry frames appended since the start.
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
        append: Callable[[int, bytes, int], bool],
        may_carry: Callable[[], bool],
        forget_damage: Callable[[int], None],
        id_memory_ms: int,
        payload_max: int,
        left: list[Segment],
    ) -> None:
        """Start idle.

        Args:
            files: the log and the checkpoint.
            state: what is carried.
            checkpoints: knows how large the state is, and saves it after its log was cut.
            runs: say which timers are pending.
            append: (kind, payload, flags) appends a control frame; False if the disk is full.
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
        self._append = append
        self.may_carry = may_carry
        self._forget_damage = forget_damage
        self._left = left
        self._id_memory_ms = id_memory_ms
        self._payload_max = payload_max
        self._phase: Phase = "idle"
        self._tried_ns: int | None = None
        self._cut = 0
        self._values: Iterator[list[bytes]] = iter(())
        self._carried_pos = 0
        self._pass_bytes = 0
        self._rest_ns = RETRY_NS
        self._pauses = 0
        self._had_room = True
        self._began_at = 0
        self._saved_from = self._log.start_pos
        self._freeing = 0, 0
        """Segments that a job removes, and their bytes."""
        self._timers_from = 0
        """No timer was pending below this log position when it was last looked for."""
        self.freed_bytes = 0
        self.carried_bytes = 0

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
        self._tried_ns = None
        self._rest_ns = RETRY_NS

    @property
    def is_carrying(self) -> bool:
        """Call `step` again soon."""
        return self._phase == "carrying"

    def reclaimable_bytes(self, kept_from: int) -> int:
        """Return the bytes of the first segments in which nothing is needed, as far as is known.

        Args:
            kept_from: as for `step`.
        """
        limit = min(kept_from, self._log.pointers.flushed, self._remembered_from())
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
        if self._phase == "carrying":
            self._carry()
        if self._pauses:
            return None
        if self._phase == "flushing" and self._log.pointers.flushed >= self._carried_pos:
            return self._free()
        return None

    def end(self, job: Job) -> None:
        """Note that a job has run."""
        if isinstance(job, FreeJob):
            self._end_free(job)
            return
        self._phase = "idle"
        if job.error is not None:
            _log.warning("no segment is freed, the timers cannot be read: %s", job.error)
            return
        self._timers_from = self._began_at if job.found is None else job.found
        if job.found is not None:
            self._cut = min(self._cut, self._base_of(job.found))
        if self._is_worth(self._cut) and self._has_room():
            self._phase = "carrying"
            self._values = control_values(self._state)
            self._pass_bytes = 0

    def _has_room(self) -> bool:
        """Whether the control state fits into what is left; deliveries need the rest of that.

        Without this, each attempt on a full disk would use up some of the reserve.
        """
        # The state may have grown since it was saved.
        size = 2 * self._checkpoints.snapshot_bytes + CARRY_MORE_BYTES
        had_room, self._had_room = self._had_room, True
        if not self._log.is_full:
            return True
        if size <= self._payload_max and self._log.tail.has_room(size, ROOM_CONTROL):
            return True
        self._had_room = False
        if had_room:
            _log.warning(
                "no segment is freed although nothing needs it: the disk is full, and the topics, "
                "groups and offsets that must be kept take %s, for which the reserve has no room; "
                "free space on the disk",
                counted(self._checkpoints.snapshot_bytes, "byte"),
            )
        return False

    # What can go

    def _is_rested(self) -> bool:
        rest_ns = RETRY_NS if self._log.is_full else self._rest_ns
        now_ns = self._files.clock.monotonic_ns()
        return self._tried_ns is None or now_ns - self._tried_ns >= rest_ns

    def _begin(self, kept_from: int) -> FindJob | None:
        """Find how far the log may be freed, except for timers; look for these on a thread."""
        log = self._log
        limit = min(kept_from, log.pointers.flushed, self._remembered_from())
        cut = self._base_of(limit)
        if cut <= log.start_pos:
            return None
        self._tried_ns = self._files.clock.monotonic_ns()
        if not self._checkpoints.snapshot_bytes and self._checkpoints.failure is None:
            # The first checkpoint says how much there is to carry. If the disk is too full for it,
            # a segment that goes makes room for it.
            self._checkpoints.ask()
            return None
        timers = self._runs.timers_now() if self._is_worth(cut) else None
        if timers is None:
            return None
        self._rest_ns = min(2 * self._rest_ns, RETRY_MAX_NS)
        self._phase = "finding"
        self._began_at = log.pointers.committed
        self._cut = cut
        return FindJob(timers)

    def _remembered_from(self) -> int:
        """A log position below which no frame completed a timer whose id is remembered."""
        state = self._state
        if state.projections.ids.count == 0 or state.expiry is None:
            return self._log.pointers.flushed
        return state.expiry.position_before(self._id_memory_ms)

    def _base_of(self, pos: int) -> int:
        """The base of the segment that holds a log position; the log keeps it and all after it."""
        return max((base for base in self._log.files.bases if base <= pos), default=0)

    def _is_worth(self, cut: int) -> bool:
        """Whether a carry costs little beside what is freed."""
        return cut - self._log.start_pos > CARRY_DIVISOR * self._checkpoints.snapshot_bytes

    # Carry

    def _carry(self) -> None:
        values = next(self._values, None)
        if values is None:
            self._phase = "flushing"
            self._carried_pos = self._log.pointers.wrote
            return
        for payload in frames_of(values, self._payload_max):
            if not self._append_carry(payload):
                # What was carried repeats what is known, so it does no harm.
                self._phase = "idle"
                return

    def _append_carry(self, payload: bytes) -> bool:
        if len(payload) > self._payload_max + VALUE_OVERHEAD_BYTES:
            _log.warning(
                "no segment is freed: a topic or group takes %s, which a frame of the log cannot "
                "hold: raise store.segment_size_bytes",
                counted(len(payload), "byte"),
            )
            return False
        if not self._append(KIND_CARRY, payload, FRAME_FLAG_CONTROL):
            _log.warning("no segment is freed: the disk became full")
            return False
        self._pass_bytes += len(payload)
        self.carried_bytes += len(payload)
        return True

    # Free

    def _free(self) -> FreeJob:
        checkpoint = self._files.checkpoint
        self._left += self._log.forget_head(self._cut)
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
        return FreeJob(self._files, self._left, self._log.pointers.flushed)

    def _end_free(self, job: FreeJob) -> None:
        self._phase = "idle"
        count, size = self._freeing
        count -= len(job.freed)
        size -= sum(segment.size for segment in job.freed)
        if self._log.start_pos != self._saved_from:
            # Without a saved state inside the log, a start would replay all of it.
            self._saved_from = self._log.start_pos
            self._checkpoints.ask()
        if count:
            self.freed_bytes += size
            _log.info(
                "freed %s, %d bytes; the log begins at %d; %d bytes were carried",
                counted(count, "segment"),
                size,
                self._log.start_pos,
                self._pass_bytes,
            )
        if job.error is None:
            self.hurry()
            return
        self._tried_ns = self._files.clock.monotonic_ns()
        self._rest_ns = min(2 * self._rest_ns, RETRY_MAX_NS)
        _log.warning("a freed segment cannot be removed, it is tried again: %s", job.error)
