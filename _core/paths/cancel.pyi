from typing import Self

from _core.queue.partition import Topic
from _core.state.writer import LogWriter

class CancelPath:
    writer: LogWriter
    disk_full: bool
    def __new__(cls, writer: LogWriter) -> Self: ...
    def cancel(self, topic: Topic, user_id: bytes, now_ms: int) -> bool: ...
