"""Moves the ids of completed timers that are remembered to the end of the log: the carrier of ids.

An id whose timer is pending goes with the timer. The others are in the state as hashes, and are
carried so, wherever they are: what must be carried of an id does not depend on the cut. Layer 2.
"""

import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final

from _core.bytes.layout import FRAME_FLAG_CONTROL, KIND_CARRY, RUN_ID_SIZE
from _core.state.projections import Projections
from appliance.errors import CorruptionError, StorageError
from appliance.store.head.carrier import CarryJob
from appliance.store.runs.run_set import Runs
from appliance.store.state.carry_frames import VALUE_IDS, encode_carry, encode_ids
from appliance.store.state.snapshot import encode_value
from appliance.units import KIB

FRAME_BYTES: Final = 64 * KIB
"""A carry frame has at most this many bytes of ids, so that little of a full segment is lost."""

OVERHEAD_BYTES: Final = 64
"""What a payload has besides the rows, rounded up."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class IdsJob:
    """Reads the next ids, on a thread.

    Attributes:
        rows: rows of an id run; empty after the last.
        error: why the runs cannot be read; None if they were.
    """

    blocks: Generator[bytes, None, None]
    rows: bytes = b""
    error: StorageError | CorruptionError | None = None

    def run(self) -> None:
        """Read them; may run on any thread."""
        try:
            self.rows = next(self.blocks, b"")
        except (StorageError, CorruptionError) as error:
            self.error = error


class IdCarrier:
    """Carries remembered ids of completed timers; see `Carrier`."""

    blocked_at: Final = None

    def __init__(
        self,
        runs: Runs,
        projections: Projections,
        *,
        append: Callable[[int, bytes, int], bool],
        payload_max: int,
    ) -> None:
        """Start without a pass.

        Args:
            runs: the ids.
            projections: say what an id names now.
            append: (kind, payload, flags) appends a control frame; False if the disk is full.
            payload_max: bytes of the largest payload of a control frame.
        """
        self._runs = runs
        self._projections = projections
        self._append = append
        size = min(FRAME_BYTES, payload_max) - OVERHEAD_BYTES
        self._size = size // RUN_ID_SIZE * RUN_ID_SIZE
        self._blocks: Generator[bytes, None, None] | None = None
        self._rows = b""
        self.carried_bytes = 0
        self.is_done = True
        self.has_failed = False

    def begin(self, cut: int) -> None:
        """Start a pass."""
        self.stop()
        self.is_done = cut < 0

    def step(self) -> CarryJob | None:
        """Append some ids, or return a job that reads the next."""
        if self._rows:
            part, self._rows = self._rows[: self._size], self._rows[self._size :]
            self._carry(part)
            return None
        if self._blocks is None:
            # Counted only now: a timer that was completed before it could be carried is among them.
            if self._projections.ids.completed_count == 0:
                self.is_done = True
                return None
            ids = self._runs.ids_now()
            if ids is None:
                return None  # a checkpoint saves some of them: soon
            # A row that nothing in memory contradicts is true.
            self._projections.ids.hold(True)
            self._blocks = ids.blocks()
        return IdsJob(self._blocks)

    def _carry(self, rows: bytes) -> None:
        """Append what is still true of these rows: a change since has a frame of its own."""
        current = self._projections.ids.current_rows(rows)
        if not current:
            return
        payload = encode_carry([encode_value(VALUE_IDS, encode_ids(current))])
        if not self._append(KIND_CARRY, payload, FRAME_FLAG_CONTROL):
            _log.warning("no segment is freed: the disk became full")
            self.has_failed = True
            return
        self.carried_bytes += len(payload)

    def end(self, job: CarryJob) -> None:
        """Note that ids were read."""
        assert isinstance(job, IdsJob)
        self._rows = job.rows
        if job.error is not None:
            _log.warning("no segment is freed, the ids of timers cannot be read: %s", job.error)
            self.has_failed = True
        self.is_done = not job.rows and not self.has_failed
        if self.is_done or self.has_failed:
            self._projections.ids.hold(False)

    def stop(self) -> None:
        """End the pass."""
        self._projections.ids.hold(False)
        if self._blocks is not None:
            self._blocks.close()
        self._blocks, self._rows = None, b""
        self.is_done, self.has_failed = True, False
