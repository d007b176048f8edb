"""Moves pending timers from the head of the log to its end: the carrier of timers.

    loop     timers_now          the runs and a copy of the memtable; notes what completes from now
    thread   TimerChunks.next    the rows below the cut, and the frames that hold their records
    loop     TimerCarry.carry    a carry frame for each partition of a chunk

Layer 2.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from _core.log.view import NEAR_BYTES, WINDOW_BYTES, Block
from _core.paths.timer_carry import TimerCarry
from _core.state.projections import Projections
from _core.timers.row_places import accept_groups
from appliance.errors import CorruptionError, StorageError
from appliance.store.head.carrier import CarryJob
from appliance.store.log.commit_log import CommitLog
from appliance.store.log.frame_reader import FrameReader
from appliance.store.runs.run_set import RowsNow, Runs
from appliance.system.clock import Clock
from appliance.units import KIB

CHUNK_BYTES: Final = 512 * KIB
"""Bytes of frames read for one chunk, which is appended in one turn: about a millisecond."""

LONE_FRAME_BYTES: Final = 16 * KIB
"""Read for a frame if the next one is far away."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Chunk:
    """Rows of timers, and the frames that hold their records, ascending and without overlap."""

    rows: bytes
    blocks: list[Block]


class TimerChunks:
    """The timers below a cut, chunk by chunk. One thread at a time.

    They come in the order of their acceptance. A timer that was carried before is in a later frame
    than some that follow it.

    Attributes:
        blocked_at: the lowest log position of a frame that cannot be read. Its segment and all
            after it must stay, and what is there is left out from then on.
    """

    def __init__(
        self, timers: RowsNow, frames: FrameReader, cut: int, bases: Sequence[int]
    ) -> None:
        """Read nothing yet.

        Args:
            timers: all pending timers.
            frames: reads their frames.
            cut: log position.
            bases: of the segments of the log, ascending.
        """
        self._blocks = timers.rows_below(cut)
        self._frames = frames
        self._cut = cut
        self._bases = bases
        self._rows = b""
        self._is_ended = False
        self.blocked_at: int | None = None

    def next(self) -> Chunk | None:
        """Read the next chunk; None after the last.

        A chunk has all timers of an accept frame or none.

        Raises:
            StorageError: a run cannot be read.
            CorruptionError: a run is damaged.
        """
        if self._cut <= self._bases[0]:
            return None
        blocks: list[Block] = []
        rows: list[bytes] = []
        size = begin = 0
        groups = self._whole_groups()
        for number, (pos, end) in enumerate(groups):
            if size >= CHUNK_BYTES:
                break
            is_held = any(each.pos <= pos < each.pos + each.size for each in reversed(blocks))
            if pos < self._cut and not is_held:
                following = groups[number + 1][0] if number + 1 < len(groups) else pos
                is_near = pos < following <= pos + NEAR_BYTES
                block = self._read(pos, WINDOW_BYTES if is_near else LONE_FRAME_BYTES)
                if block is not None:
                    blocks.append(block)
                    size += block.size
            # Not below the cut any more if it cannot be read.
            if pos < self._cut:
                rows.append(self._rows[begin:end])
            begin = end
        if not begin:
            return None
        self._rows = self._rows[begin:]
        return Chunk(b"".join(rows), sorted(blocks, key=lambda block: block.pos))

    def _read(self, pos: int, size: int) -> Block | None:
        """Read the frame at a log position; lower the cut and return None if that fails."""
        block = self._frames.read(pos, size)
        if not isinstance(block, str):
            return block
        self.blocked_at = pos
        self._cut = max(base for base in self._bases if base <= pos)
        return None

    def _whole_groups(self) -> list[tuple[int, int]]:
        """The accept frames of the rows in memory, at least one; none at the end.

        For each the position of the frame that holds its timers now, and the end of its rows.
        """
        while True:
            groups = accept_groups(self._rows)
            if not self._is_ended:
                # The last one may continue in the next block.
                groups = groups[:-1]
            if groups or self._is_ended:
                return groups
            more = next(self._blocks, b"")
            self._rows += more
            self._is_ended = not more

    def close(self) -> None:
        """Close the files."""
        self._blocks.close()


@dataclass(slots=True, eq=False)
class ChunkJob:
    """Reads the next chunk, on a thread.

    Attributes:
        chunk: None after the last one.
        error: why the runs cannot be read; None if they were.
    """

    chunks: TimerChunks
    chunk: Chunk | None = None
    error: StorageError | CorruptionError | None = None

    def run(self) -> None:
        """Read it; may run on any thread."""
        try:
            self.chunk = self.chunks.next()
        except (StorageError, CorruptionError) as error:
            self.error = error


class TimerCarrier:
    """Carries pending timers; see `Carrier`."""

    def __init__(
        self,
        clock: Clock,
        log: CommitLog,
        runs: Runs,
        projections: Projections,
        path: TimerCarry,
    ) -> None:
        """Start without a pass.

        Args:
            clock: for store times.
            log: where the frames are.
            runs: say which timers are pending.
            projections: note the timers that are completed during a pass.
            path: appends carry frames.
        """
        self._clock = clock
        self._log = log
        self._runs = runs
        self._frames = FrameReader(log)
        self._projections = projections
        self._path = path
        self._cut = 0
        self._chunks: TimerChunks | None = None
        self._chunk: Chunk | None = None
        self.is_done = True
        self.has_failed = False

    @property
    def carried_bytes(self) -> int:
        """Bytes of carry frames appended since the start."""
        return self._path.carried_bytes

    @property
    def blocked_at(self) -> int | None:
        """The log position of a frame that cannot be read, None if there is none."""
        return None if self._chunks is None else self._chunks.blocked_at

    def begin(self, cut: int) -> None:
        """Start a pass."""
        self.stop()
        self._cut = cut
        self.is_done = False

    def step(self) -> CarryJob | None:
        """Append a chunk, or return a job that reads the next."""
        if self._chunks is None:
            timers = self._runs.timers_now()
            if timers is None:
                return None  # a checkpoint saves some of them: soon
            self._projections.begin_settled()
            bases = self._log.files.bases
            self._chunks = TimerChunks(timers, self._frames, self._cut, bases)
        if self._chunk is None:
            return ChunkJob(self._chunks)
        # The loop writes it and serves others before the next.
        chunk, self._chunk = self._chunk, None
        has_room = self._path.carry(chunk.rows, chunk.blocks, self._clock.wall_ms())
        self.has_failed = not has_room
        return None

    def end(self, job: CarryJob) -> None:
        """Note that a chunk was read."""
        assert isinstance(job, ChunkJob)
        self._chunk = job.chunk
        if job.error is not None:
            _log.warning("no segment is freed, the timers cannot be read: %s", job.error)
            self.has_failed = True
        self.is_done = job.chunk is None and not self.has_failed

    def stop(self) -> None:
        """End the pass."""
        if self._chunks is not None:
            self._chunks.close()
            self._projections.end_settled()
        self._chunks = self._chunk = None
        self.is_done, self.has_failed = True, False
