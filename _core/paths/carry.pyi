from typing import Self

from _core.log.view import Block
from _core.queue.partition import Partition
from _core.state.writer import LogWriter

class CarryPath:
    is_full: bool
    is_refused: bool
    carried_bytes: int
    moved_count: int
    def __new__(cls, writer: LogWriter) -> Self: ...
    def carry(
        self, block: Block, pos: int, *, stop: int, bytes_max: int, frames_max: int, now_ms: int
    ) -> int: ...
    def take_touched(self) -> list[Partition]: ...
