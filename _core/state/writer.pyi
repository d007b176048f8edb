from collections.abc import Callable
from typing import Self

from _core.log.tail import LogTail
from _core.queue.partition import Partition, Topic
from _core.state.projections import Projections

class LogWriter:
    tail: LogTail
    projections: Projections
    frame_size_max: int
    def __new__(
        cls,
        tail: LogTail,
        projections: Projections,
        *,
        frame_size_max: int,
        topic_payload: Callable[[Topic], bytes],
    ) -> Self: ...
    def append_gap(self, partition: Partition, *, end_offset: int, store_time_ms: int) -> bool: ...
