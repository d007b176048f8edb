"""Reads timers that are not in memory, for a list or a count: they stay on the disk. Layer 2."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass

from _core.bytes.layout import RUN_TIMER_SIZE
from _core.timers.row_places import (
    count_due,
    rows_accepted_below,
    rows_due_after,
    rows_of_topic,
)
from appliance.errors import CorruptionError, StorageError
from appliance.store.runs.run_files import TIMER_ROW
from appliance.store.runs.timer_load import TimerLoad


@dataclass(slots=True, kw_only=True, eq=False)
class TimerPage:
    """The first timers of a load that are wanted, in the order of their due times.

    Attributes:
        load: reads the timers of an interval of due times; they are not taken into memory.
        limit: timers at most.
        topic_id, partition: only those that are delivered there; -1: all.
        end_pos: only those that were accepted below this log position.
        after: only those after this one: due time, accept position and index; None for all.
        rows: after `run`: them, as a whole merge has them.
        fault: after `run`: why the TimerLog cannot be read; None if it can.
    """

    load: TimerLoad
    limit: int
    topic_id: int = -1
    partition: int = -1
    end_pos: int
    after: tuple[int, int, int] | None = None
    rows: bytes = b""
    fault: StorageError | CorruptionError | None = None

    @property
    def is_full(self) -> bool:
        """It has as many timers as it may; more may follow in the interval."""
        return len(self.rows) == self.limit * RUN_TIMER_SIZE

    @property
    def last(self) -> tuple[int, int, int]:
        """The due time, accept position and index of the last one."""
        accept_pos, index, _, _, due_ms, *_ = TIMER_ROW.unpack(self.rows[-RUN_TIMER_SIZE:])
        return due_ms, accept_pos, index

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Read until the page is full, or `goes_on` says no; may run on any thread."""
        last = b"" if self.after is None else _row_at(self.after)
        size = self.limit * RUN_TIMER_SIZE
        try:
            while len(self.rows) < size and self.fault is None and goes_on():
                piece = self.load.read()
                if not piece:
                    break
                self.fault = self.load.fault
                self.rows += self._wanted(rows_due_after(piece, last))
        except (StorageError, CorruptionError) as error:
            self.fault = error
        finally:
            self.load.close()
        self.rows = self.rows[:size]

    def _wanted(self, rows: bytes) -> bytes:
        rows = _rows_wanted(rows, self.topic_id, self.partition)
        return rows_accepted_below(rows, self.end_pos)


@dataclass(slots=True, kw_only=True, eq=False)
class TimerTally:
    """Counts the timers of a load by intervals of their due times.

    Attributes:
        load, topic_id, partition, fault: as of `TimerPage`.
        from_ms, step_ms, counts: as for `count_due`.
    """

    load: TimerLoad
    topic_id: int
    partition: int
    from_ms: int
    step_ms: int
    counts: "array[int]"
    fault: StorageError | CorruptionError | None = None

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Read all of them, or until `goes_on` says no; may run on any thread."""
        try:
            while self.fault is None and goes_on() and (piece := self.load.read()):
                self.fault = self.load.fault
                rows = _rows_wanted(piece, self.topic_id, self.partition)
                count_due(rows, self.from_ms, self.step_ms, self.counts)
        except (StorageError, CorruptionError) as error:
            self.fault = error
        finally:
            self.load.close()


def _rows_wanted(rows: bytes, topic_id: int, partition: int) -> bytes:
    """Return the rows of a topic; -1: all."""
    return rows if topic_id < 0 else rows_of_topic(rows, topic_id, partition)


def _row_at(place: tuple[int, int, int]) -> bytes:
    """Return a row that has the place of a timer, and nothing else."""
    due_ms, accept_pos, index = place
    return TIMER_ROW.pack(accept_pos, index, 1, 0, due_ms, 0, 0, 0, 0)
