from typing import Self, final

@final
class TimeWheel:
    slot_ms: int
    from_ms: int
    total: int
    allocated_bytes: int
    def __new__(cls, slot_ms: int) -> Self: ...
