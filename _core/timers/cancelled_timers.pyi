from typing import final

@final
class CancelledTimers:
    cancelled_count: int
    orphan_count: int
    allocated_bytes: int
    def __init__(self) -> None: ...
