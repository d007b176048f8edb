from typing import Self, final

PENDING: int
CANCELLED: int
DELIVERED: int

@final
class IdIndex:
    count: int
    completed_count: int
    forget_pos: int
    def __new__(cls, key: bytes) -> Self: ...
    @property
    def memory_bytes(self) -> int: ...
    def current_rows(self, rows: bytes) -> bytes: ...
    def forget_below(self, pos: int) -> None: ...
    def expire_some(self, budget: int) -> int: ...
