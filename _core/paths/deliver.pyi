from typing import Self

from _core.log.view import LogView
from _core.paths.held_back import HeldBack
from _core.state.writer import LogWriter

LATENESS_BOUNDS_MS: tuple[float, ...]

class DeliverPath:
    writer: LogWriter
    view: LogView
    held_back: HeldBack
    is_reading: bool
    ready: int
    disk_full: bool
    damaged_timers: int
    frames: int
    lateness_sum_ms: int
    late_ms_max: int
    def __new__(
        cls, writer: LogWriter, view: LogView, *, chunk_max: int, batch_size_max: int
    ) -> Self: ...
    def deliver(self, now_ms: int, limit: int) -> int: ...
    def next_cold(self) -> list[int]: ...
    def note_read(self) -> None: ...
    def look_ahead(self, until_ms: int) -> list[int]: ...
    @property
    def is_clogged(self) -> bool: ...
    @property
    def waiting(self) -> int: ...
    def kept(self, limit: int) -> list[tuple[int, int, int, int]]: ...
    @property
    def unreadable_count(self) -> int: ...
    @property
    def lateness(self) -> list[int]: ...
