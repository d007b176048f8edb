from collections.abc import Callable
from typing import Self

from _core.paths.delay_split import BatchSplitter
from _core.state.writer import LogWriter

NOTICES_MAX: int

class DelayNotice:
    client_id: bytes | None
    topic: str
    partition: int
    record: int
    offset: int
    count: int
    reason: str
    message: str

class ProducePath:
    writer: LogWriter
    splitter: BatchSplitter
    batches: int
    refused: dict[int, int]
    notices: list[DelayNotice]
    requests: int
    received_bytes: int
    work_bytes: int
    def __new__(
        cls,
        writer: LogWriter,
        splitter: BatchSplitter,
        decompress: Callable[[int, memoryview, int], bytes],
        *,
        item_count_max: int,
        unpacked_batch_max: int,
        unpacked_size_max: int,
        closed_topics: frozenset[bytes],
    ) -> Self: ...
    @property
    def refused_delays(self) -> dict[str, int]: ...
    @property
    def passed_delays(self) -> dict[str, int]: ...
    def take_notices(self) -> list[DelayNotice]: ...
