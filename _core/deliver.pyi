from typing import Self

from _core.log_view import LogView
from _core.log_writer import LogWriter

LATENESS_BOUNDS_MS: tuple[float, ...]

class DeliverPath:
    writer: LogWriter
    view: LogView
    cold: list[int]
    disk_full: bool
    damaged_timers: int
    frames: int
    lateness_sum_ms: int
    def __new__(
        cls, writer: LogWriter, view: LogView, *, chunk_max: int, batch_size_max: int
    ) -> Self: ...
    def deliver(self, now_ms: int, limit: int) -> int: ...
    @property
    def lateness(self) -> list[int]: ...
