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
from appliance.store.log.segment import FreedSegment
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
        spare_bytes: size of a file that is kept as the spare; 0 if none is wanted.
        has_spare: one was kept.
        error: why a file could not be removed; the next start does it.
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


Job: TypeAlias = FindJob | FreeJob


def remove_segments(files: DataFiles, freed: list[FreedSegment], spare_bytes: int = 0) -> bool:
    """Remove files of segments that the log no longer has, the first one first.

    Each removal is durable before the next, so that no gap can be left.

    Args:
        files: the log.
        freed: the segments.
        spare_bytes: one file of that size may become the spare; 0: remove all.

    Returns:
        Whether one has become the spare.

    Raises:
        StorageError: one could not be removed.
    """
    has_spare = False
    for segment in freed:
        has_spare |= segment.remove(files.fs, 0 if has_spare else spare_bytes)
        files.fs.sync_dir(segment.path.parent)
    return has_spare


class HeadFreer:
    """Frees segments, one attempt after another. All methods run on the loop.

    Attributes:
        freed_bytes: bytes of segments freed since the start.
        carried_bytes: bytes of carry frames appended since the start.
    """

    def __init__(
        self,
        files: DataFiles,
        state: State,
        checkpoints: Checkpointer,
        runs: Runs,
        *,
        append: Callable[[int, bytes, int], bool],
        id_memory_ms: int,
        payload_max: int,
    ) -> None:
        """Start idle.

        Args:
            files: the log and the checkpoint.
            state: what is carried.
            checkpoints: knows how large the state is, and saves it after its log was cut.
            runs: say which timers are pending.
            append: (kind, payload, flags) appends a control frame; False if the disk is full.
            id_memory_ms: how long ids of completed timers are remembered.
            payload_max: bytes of the largest payload of a control frame.
        """
        self._files = files
        self._log = files.log
        self._state = state
        self._checkpoints = checkpoints
        self._runs = runs
        self._append = append
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

    @property
    def is_carrying(self) -> bool:
        """Call `step` again soon."""
        return self._phase == "carrying"

    def step(self, kept_from: int) -> Job | None:
        """Continue, or begin if something can be freed; call it at the end of a turn.

        Args:
            kept_from: a log position before which no partition has a record that is kept.

        Returns:
            A job to run on a thread and then pass to `end`, or None.
        """
        if self._phase == "idle" and self._is_rested():
            return self._begin(kept_from)
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
        timers = self._runs.timers_now() if self._is_worth(cut) else None
        if timers is None:
            return None
        self._rest_ns = min(2 * self._rest_ns, RETRY_MAX_NS)
        self._phase = "finding"
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
        self._phase = "freeing"
        checkpoint = self._files.checkpoint
        freed = self._log.forget_head(self._cut)
        checkpoint.log = replace(checkpoint.log, start=self._cut)
        spare_bytes = self._log.wanted_spare_bytes
        return FreeJob(self._files, freed, self._log.pointers.flushed, spare_bytes)

    def _end_free(self, job: FreeJob) -> None:
        self._phase = "idle"
        self._tried_ns = None
        self._rest_ns = RETRY_NS
        # Without a saved state inside the log, a start would replay all of it.
        self._checkpoints.ask()
        if job.has_spare:
            self._log.note_recycled()
        freed_bytes = sum(segment.size for segment in job.freed)
        self.freed_bytes += freed_bytes
        _log.info(
            "freed %s, %d bytes; the log begins at %d; %d bytes were carried",
            counted(len(job.freed), "segment"),
            freed_bytes,
            self._log.start_pos,
            self._pass_bytes,
        )
        if job.error is not None:
            _log.warning("a freed segment could not be removed: %s", job.error)
