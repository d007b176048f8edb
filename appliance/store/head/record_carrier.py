"""Carries visible records: appends again what partitions keep of the log below a cut.

    loop     begin    from the first kept record on
    thread   ReadJob  reads the next part of the log, and checks its frames
    loop     step     appends the records that are still kept, a slice a turn

It reads the log in order, so a disk reads it sequentially and the records of a partition keep their
order. Whether a frame is still needed is decided when it is appended: what expires, is deleted, or
is carried meanwhile is left behind. Records that were appended are served from their new place at
once, and the old place is still there until the segment is freed. So a pass can end anywhere: a
crash leaves both places, and the later one counts.

Durability: the head may be freed when the log is flushed up to where it ended after the last slice.
The ConsumeQueue files need no sync. A start that loads a state from before the slice replays its
frames, and a checkpoint syncs the units before it names a state from after them.

Layer 2. All methods but `ReadJob.run` run on the loop.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from _core.bytes.crc32c import crc32c
from _core.bytes.layout import AT_CRC, FRAME_HEADER_SIZE, KIND_BLANK
from _core.log.frames import read_header
from _core.log.view import Block
from _core.paths.carry import CarryPath
from _core.queue.partition import Partition
from _core.state.partition_rows import kept_bytes
from _core.state.writer import LogWriter
from appliance.errors import StorageError
from appliance.store.head.carrier import CarryJob
from appliance.store.log.commit_log import CommitLog
from appliance.store.log.frame_reader import FrameReader
from appliance.store.queue.consume_queue import ConsumeQueues
from appliance.store.state.state import State
from appliance.system.clock import Clock
from appliance.units import KIB, MIB

READ_BYTES: Final = 2 * MIB
"""Read and checked at a time."""

SLICE_BYTES: Final = 512 * KIB
"""Appended in one turn: less than a millisecond."""

SLICE_FRAMES: Final = 4_096
"""Handled in one turn; most may belong to nobody."""

MOVED_MAX: Final = 16_384
"""With more frames than this whose units are not saved, units are saved first: 40 bytes each.

That needs a flush of the frames.
"""

PARTITIONS_PER_SLICE: Final = 32
"""Partitions whose units are saved in one turn."""


@dataclass(slots=True, eq=False)
class ReadJob:
    """Reads the frames from a log position on, on a thread.

    Attributes:
        pos: where a frame begins, below the end of a segment.
        block: the whole frames there; None if there is none.
        end: log position after a blank frame, which fills the rest of its segment.
        fault: why the frame at `pos` cannot be read; None if it was.
    """

    log: CommitLog
    frames: FrameReader
    pos: int
    block: Block | None = None
    end: int = 0
    fault: str | None = None

    def run(self) -> None:
        """Read and check; may run on any thread."""
        try:
            header = self.log.read_header(self.pos)
        except StorageError as error:
            self.fault = str(error)
            return
        if _is_blank(header, self.pos):
            self.end = self.pos + read_header(header)["size"]
            return
        found = self.frames.read(self.pos, READ_BYTES)
        if isinstance(found, str):
            self.fault = found
        else:
            self.block = found


def _is_blank(header: bytes, pos: int) -> bool:
    """Whether these bytes are the header of a blank frame; what it fills is not read."""
    if len(header) < FRAME_HEADER_SIZE:
        return False
    fields = read_header(header)
    if fields["kind"] != KIND_BLANK or fields["position"] != pos:
        return False
    return crc32c(header[:AT_CRC]) == int.from_bytes(header[AT_CRC:], "big")


class RecordCarrier:
    """Carries visible records, one pass after another.

    Attributes:
        carried_bytes: bytes of the frames appended since the start of the broker.
        is_done: nothing below the cut is left to carry; with `blocked_at`, nothing below that.
        kept_from: returns a log position below which no record lies that is kept: where a frame
            begins, or 0. The broker sets it to what `Retention` knows.
        blocked_at: log position of a frame that cannot be read; its segment must stay. None if
            there is none. Once a sweep of `Retention` has found that nobody needs the frame, the
            next pass begins after it.
        is_full: the log had no room; the pass goes on when it has.
    """

    def __init__(
        self,
        clock: Clock,
        log: CommitLog,
        state: State,
        writer: LogWriter,
        queues: ConsumeQueues,
    ) -> None:
        """Start idle.

        Args:
            clock: for the carry time of frames.
            log, state, writer, queues: those of the store.
        """
        self._clock = clock
        self._log = log
        self._state = state
        self._queues = queues
        self._path = CarryPath(writer)
        self._frames = FrameReader(log)
        self._block: Block | None = None
        self._job: ReadJob | None = None
        self._unsaved: list[Partition] = []
        self._carried_end = 0
        self._cut = 0
        self._pos = 0
        self.kept_from: Callable[[], int] = lambda: 0
        self.carried_bytes = 0
        self.is_done = True
        self.is_full = False
        self.blocked_at: int | None = None

    @property
    def has_failed(self) -> bool:
        """The log had no room: the pass must end."""
        return self.is_full

    @property
    def is_waiting(self) -> bool:
        """Nothing is appended before what was appended is flushed."""
        is_much = self._path.moved_count >= MOVED_MAX and not self._unsaved
        return is_much and self._log.pointers.flushed < self._carried_end

    def kept_bytes(self) -> int:
        """About the bytes of all records that partitions keep. O(partitions), reads nothing."""
        return kept_bytes(self._state.projections)

    def begin(self, cut: int) -> None:
        """Begin a pass.

        Args:
            cut: the base of a segment; everything below it is flushed.
        """
        self.stop()
        self._cut = cut
        self._pos = max(self._log.start_pos, self.kept_from())
        self.is_done = self.is_full = False
        self.blocked_at = None

    def step(self) -> CarryJob | None:
        """Append a slice, or ask for a read.

        Returns:
            A job to run on a thread and then pass to `end`, or None.
        """
        if self.is_done or self._job is not None or self.is_waiting or self._save_units():
            return None
        if self._block is None:
            self._pass_over_lost()
            if self._pos >= self._cut:
                self._finish()
                return None
            self._job = ReadJob(self._log, self._frames, self._pos)
            return self._job
        path = self._path
        self._pos = path.carry(
            self._block,
            self._pos,
            stop=self._cut,
            bytes_max=SLICE_BYTES,
            frames_max=SLICE_FRAMES,
            now_ms=self._clock.wall_ms(),
        )
        self.carried_bytes = path.carried_bytes
        self._carried_end = self._log.pointers.wrote
        self.is_full = path.is_full
        if path.is_refused:
            self._block_at(self._pos)
        elif self._pos >= min(self._cut, self._block.pos + self._block.size):
            self._block = None
        return None

    def end(self, job: CarryJob) -> None:
        """Note that a job has run; one of a pass that was stopped is ignored."""
        done = self._job
        if done is None or job is not done:
            return
        self._job = None
        if done.end:
            self._pos = done.end
        elif done.block is not None:
            self._block = done.block
        else:
            self._block_at(done.pos)

    def stop(self) -> None:
        """Break off the pass. What was appended is harmless: the next pass leaves the rest."""
        self._block = self._job = None
        self.is_done = True

    def _pass_over_lost(self) -> None:
        """Pass over parts of the log that recovery declared lost: no offset refers to them."""
        for begin, end in self._state.lost:
            if begin <= self._pos < end:
                self._pos = end

    def _block_at(self, pos: int) -> None:
        self.blocked_at = pos
        self._block = None
        self._cut = min(self._cut, pos)
        self._pos = self._cut

    def _save_units(self) -> bool:
        """Save units of some partitions if there are many to save; False if there are few.

        REQUIRES: not `is_waiting`, so that all of them can be saved.
        """
        if not self._unsaved and self._path.moved_count >= MOVED_MAX:
            self._unsaved = self._path.take_touched()
        if not self._unsaved:
            return False
        for partition in self._unsaved[-PARTITIONS_PER_SLICE:]:
            if not partition.topic.deleted:
                self._queues.save(partition)
        del self._unsaved[-PARTITIONS_PER_SLICE:]
        return True

    def _finish(self) -> None:
        self._state.projections.note_carried(self._cut)
        self._path.take_touched()
        self.is_done = True
