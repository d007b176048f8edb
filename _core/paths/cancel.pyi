from typing import Self

from _core.queue.partition import Partition, Topic
from _core.state.writer import LogWriter

class CancelPath:
    writer: LogWriter
    disk_full: bool
    def __new__(cls, writer: LogWriter) -> Self: ...
    def cancel_all(
        self, partition: Partition, timers: list[tuple[int, int, bytes, int, int]], now_ms: int
    ) -> bool: ...
    def cancel(self, topic: Topic, user_id: bytes, now_ms: int) -> bool: ...
