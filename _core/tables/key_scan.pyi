from collections.abc import Callable, Collection
from typing import Any, Self

from typing_extensions import Buffer

PLACE_RECORD: int
PLACE_TIMER: int
PLACE_COMPLETED: int
PLACE_CANCEL: int
HASH_KEY: int
HASH_ID: int
HASH_ORIGIN: int
KEY_ROW_SIZE: int

_Decompress = Callable[[int, memoryview], bytes]

class FrameWalk:
    unpacked_failures: int
    last_pos: int
    last_crc: int
    def __new__(
        cls, decompress: _Decompress, salt: int = ..., *args: Any, **kwargs: Any
    ) -> Self: ...
    def walk(self, data: Buffer, pos: int, limit: int) -> tuple[int, int]: ...
    def find_frame(self, data: Buffer, pos: int, limit: int) -> int | None: ...

class KeyRows(FrameWalk):
    def __new__(
        cls, decompress: _Decompress, salt: int, secret: bytes, left_out: Collection[int] = ...
    ) -> Self: ...
    @property
    def row_count(self) -> int: ...
    @property
    def stored(self) -> tuple[int, int] | None: ...
    @property
    def topics_left_out(self) -> tuple[int, ...]: ...
    def take(self) -> bytes: ...

class KeyMatch(FrameWalk):
    def __new__(
        cls,
        decompress: _Decompress,
        salt: int,
        *,
        key: bytes | None = ...,
        user_id: bytes | None = ...,
        topics: Collection[int] | None = ...,
        partition: int = ...,
        offset: int = ...,
        origin: int = ...,
        stored: tuple[int | None, int | None] = ...,
        hit_max: int = ...,
    ) -> Self: ...
    @property
    def hit_count(self) -> int: ...
    def take(self) -> list[tuple[int, int, int]]: ...

def hash_of(secret: bytes, kind: int, name: bytes) -> int: ...
