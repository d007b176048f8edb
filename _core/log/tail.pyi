from collections.abc import Callable
from typing import Self

from _core.log.pointers import Pointers

ROOM_RECORDS: int
ROOM_CONTROL: int
ROOM_DELIVERY: int

class LogTail:
    pointers: Pointers
    segment_end: int
    reserve_bytes: int
    is_refusing: bool
    full_text: str
    epoch: int
    salt: int
    roll: Callable[[int], bool]
    prepare_spare: Callable[[], bool]
    has_spare: bool
    has_held: bool
    last_pos: int
    last_crc: int
    unapplied_pos: int
    def __new__(cls, pointers: Pointers, *, reserve_bytes: int) -> Self: ...
    def begin_epoch(self, epoch: int, salt: int) -> None: ...
    def begin_change(self) -> None: ...
    def end_change(self) -> None: ...
    def enter_segment(self, end: int) -> None: ...
    def has_room(self, payload_size: int, room: int) -> bool: ...
    def append_control(
        self,
        kind: int,
        *,
        topic_id: int,
        store_time_ms: int,
        payload: bytes,
        flags: int = 0,
    ) -> int: ...
    def append_blank(self) -> None: ...
    def take(self) -> list[memoryview]: ...
    def taken(self) -> None: ...
    @property
    def has_pending(self) -> bool: ...
