class BatchSplitter:
    def __init__(
        self,
        level_ms: list[int],
        *,
        record_size_max: int,
        header_count_max: int,
        header_size_max: int,
    ) -> None: ...
    def describe_fault(self, fault: int) -> str: ...
