from typing import Self, final

PENDING: int
CANCELLED: int
DELIVERED: int

@final
class IdIndex:
    count: int
    def __new__(cls, key: bytes) -> Self: ...
    @property
    def memory_bytes(self) -> int: ...
    def expire_some(self, now_ms: int, budget: int) -> int: ...
