from typing import Any

from _core.state.check import CheckedProjections
from _core.state.scan import LogScan
from _core.tables.copies import Copies
from _core.tables.timer_outcomes import TimerOutcomes

class HistoryProjections(CheckedProjections):
    outcomes: TimerOutcomes
    records: Copies
    deleted: dict[int, tuple[bytes, list[int]]]

class PlanScan(LogScan):
    zone_size: int
    def extend(
        self, segments: list[tuple[int, int]], *, known_flushed: int = -1, watermark: int = -1
    ) -> bool: ...
    def take_zones(self) -> list[tuple[Any, ...]]: ...
