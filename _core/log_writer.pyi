from collections.abc import Callable

from _core.log_tail import LogTail
from _core.partition import Topic
from _core.projections import Projections

class LogWriter:
    tail: LogTail
    projections: Projections
    frame_size_max: int
    def __init__(
        self,
        tail: LogTail,
        projections: Projections,
        *,
        frame_size_max: int,
        topic_payload: Callable[[Topic], bytes],
    ) -> None: ...
