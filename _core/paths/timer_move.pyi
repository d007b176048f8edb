from typing import Self

from _core.queue.partition import Partition
from _core.state.writer import LogWriter

class TimerMovePath:
    writer: LogWriter
    disk_full: bool
    def __new__(cls, writer: LogWriter) -> Self: ...
    def move(
        self,
        partition: Partition,
        timer: tuple[int, int, int],
        frame: bytes,
        due_ms: int,
        now_ms: int,
    ) -> int: ...
