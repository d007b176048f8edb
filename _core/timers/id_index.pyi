from typing import Self, final

PENDING: int
CANCELLED: int
DELIVERED: int

def siphash_128(key: bytes, message: bytes) -> bytes: ...

@final
class IdIndex:
    count: int
    def __new__(cls, key: bytes) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    def lookup(
        self, topic_id: int, name: bytes, now_ms: int
    ) -> tuple[int, int, int, int, int, int] | None: ...
    def put_timer(
        self,
        topic_id: int,
        name: bytes,
        *,
        position: int,
        record_index: int,
        partition: int,
        due_ms: int,
        forget_at_ms: int = 0,
        state: int = 1,
    ) -> None: ...
    def complete_timer(
        self,
        topic_id: int,
        name: bytes,
        *,
        position: int,
        record_index: int,
        state: int,
        forget_at_ms: int,
    ) -> bool: ...
    def forget(self, topic_id: int) -> None: ...
    def expire_some(self, now_ms: int, budget: int) -> int: ...
    def fill(self, topic_id: int, first: int, count: int) -> None: ...
