from typing import Self, final

@final
class TimerMemtable:
    is_sorted: bool
    def __new__(cls) -> Self: ...
    def absorb(self, newer: TimerMemtable) -> None: ...
    def sort(self) -> None: ...
    def next_block(self, kind: int) -> bytes: ...
    def release(self) -> None: ...
    def row_count(self, kind: int) -> int: ...
    def push_timer(
        self,
        due_ms: int,
        position: int,
        record_index: int,
        *,
        topic_id: int,
        partition: int,
        level: int = 0,
        level_offset: int = -1,
    ) -> None: ...
    def complete_timer(self, position: int, record_index: int) -> None: ...
    def name_timer(
        self,
        hash_high: int,
        hash_low: int,
        topic_id: int,
        *,
        position: int,
        partition: int = 0,
        due_ms: int = 0,
        forget_at_ms: int = 0,
        state: int = 1,
    ) -> None: ...
    @property
    def memory_bytes(self) -> int: ...
