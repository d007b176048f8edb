from collections.abc import Callable
from typing import Self

from _core.paths.delay_notices import DelayNotices
from _core.paths.delay_split import BatchSplitter
from _core.paths.replies import Replies
from _core.paths.retry_rules import RetryRules
from _core.paths.timer_quota import TimerQuota
from _core.state.writer import LogWriter

AMPLIFICATION_MAX: int

class ProducePath:
    writer: LogWriter
    splitter: BatchSplitter
    replies: Replies
    retry_rules: RetryRules | None
    batches: int
    refused: dict[int, int]
    delays: DelayNotices
    missing_replica: str | None
    is_slave: bool
    missing_lease: str | None
    admit_producer: Callable[[int, int, int], str | None] | None
    quota: TimerQuota
    requests: int
    received_bytes: int
    work_bytes: int
    amplified_bytes: int
    defers_packed: bool
    def __new__(
        cls,
        writer: LogWriter,
        splitter: BatchSplitter,
        decompress: Callable[[int, memoryview, int], bytes],
        *,
        item_count_max: int,
        record_count_max: int,
        unpacked_batch_max: int,
        unpacked_size_max: int,
        delayed_size_max: int,
        closed_topics: frozenset[bytes],
        quota: TimerQuota,
    ) -> Self: ...
