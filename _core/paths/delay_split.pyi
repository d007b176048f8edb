from typing import Self

from _core.paths.recurrences import _InstantRules
from _core.paths.retry_rules import RetryRules

class BatchSplitter:
    def __new__(
        cls,
        level_ms: list[int],
        *,
        record_size_max: int,
        header_count_max: int,
        header_size_max: int,
        delayed_count_max: int,
        retry_rules: RetryRules | None = None,
        instant_rules: _InstantRules | None = None,
    ) -> Self: ...
