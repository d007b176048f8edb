"""`latermq check`: is everything in a data directory as it was written, and as the log says?

The log is read once, frame by frame, and applied to a state as a start does it. What else is in the
directory is compared with that state. Nothing is written. Layer 4.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from appliance.config import Config
from appliance.offline.check_queues import QueueCheck
from appliance.offline.data_dir import DataDir
from appliance.offline.findings import Fault, Findings
from appliance.offline.log_state import LogState
from appliance.offline.log_walk import LogWalk
from appliance.store.checkpoint import COPY_SIZE

_DEFAULTS: Final = Config()


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was looked at.

    Attributes:
        start, end: log positions between which frames lie.
        frames, units: whole frames, and ConsumeQueue units that follow from them.
        epoch: of the last frame.
        is_clean: the last broker stopped as it should.
        is_live: a broker was working on it; what it wrote meanwhile was not looked at.
        faults: how many.
    """

    start: int
    end: int
    frames: int
    units: int
    epoch: int
    is_clean: bool
    is_live: bool
    faults: int


class Check:
    """One check of an open data directory. `run`, then `report`."""

    def __init__(self, data: DataDir, findings: Findings) -> None:
        self._data = data
        self._findings = findings
        self._queues = QueueCheck(data, findings, {})
        self._walk = LogWalk(data, findings, self._new_state)

    def _new_state(self, fault: Callable[[int, str, str], None]) -> LogState:
        return LogState(
            level_count=len(_DEFAULTS.delay_levels),
            fired_id_memory_ms=_DEFAULTS.fired_id_memory_ms,
            fault=fault,
            removed=self._queues.forget_topic,
        )

    def run(self) -> Iterator[tuple[int, int]]:
        """Look at everything.

        Yields:
            Bytes of the log looked at so far, and all of them.

        Raises:
            FormatVersionError: a newer latermq wrote to the log.
            StorageError: a file cannot be opened.
        """
        total = self._data.log.written_bytes
        start = self._data.log.start
        for _ in self._walk.slices():
            self._queues.compare(self._walk.state, self._walk.damage)
            yield min(self._walk.pos - start, total), total
        self._walk.note_tail()
        self._check_checkpoint()
        self._queues.finish()

    def _check_checkpoint(self) -> None:
        checkpoint = self._data.checkpoint
        for place, (raw, copy) in enumerate(zip(checkpoint.raw, checkpoint.copies, strict=True)):
            # A place that was never written is no damage; nor, after a crash, is a torn one, if
            # the other is whole.
            if copy is not None or not any(raw):
                continue
            if not self._data.is_clean and checkpoint.newest is not None:
                text = "this copy is torn, as an unclean stop may leave it; the other one is whole"
                self._findings.note(checkpoint.path, place * COPY_SIZE, text)
                continue
            self._findings.fault(
                Fault(
                    checkpoint.path,
                    place * COPY_SIZE,
                    "a whole copy of the checkpoint",
                    "one whose magic, version, positions or CRC are wrong",
                    COPY_SIZE,
                )
            )
        newest = checkpoint.newest
        if newest is not None and newest.reach < self._walk.pos and not self._data.is_live:
            self._findings.fault(
                Fault(
                    checkpoint.path,
                    newest.sequence % 2 * COPY_SIZE,
                    f"a reach of {self._walk.pos} or more, where the log ends",
                    f"{newest.reach}",
                )
            )

    def report(self) -> CheckReport:
        """What was looked at."""
        return CheckReport(
            start=self._data.log.start,
            end=self._walk.pos,
            frames=self._walk.frames,
            units=self._queues.units,
            epoch=self._walk.epoch,
            is_clean=self._data.is_clean,
            is_live=self._data.is_live,
            faults=self._findings.fault_count,
        )
