from typing import Self

from _core.log_writer import LogWriter
from _core.partition import Topic

class CancelPath:
    writer: LogWriter
    disk_full: bool
    def __new__(cls, writer: LogWriter) -> Self: ...
    def cancel(self, topic: Topic, user_id: bytes, now_ms: int) -> bool: ...
