from typing import Self

class BatchSplitter:
    def __new__(
        cls,
        level_ms: list[int],
        *,
        record_size_max: int,
        header_count_max: int,
        header_size_max: int,
    ) -> Self: ...
    def describe_fault(self, fault: int) -> str: ...
