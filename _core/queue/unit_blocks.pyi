from collections.abc import Callable
from typing import Self

UNITS_PER_BLOCK: int

class UnitBlocks:
    size_max: int
    size: int
    load: Callable[[int, int, int], bytes | None] | None
    def __new__(cls, *, size_max: int) -> Self: ...
    def put(self, handle: int, first: int, data: bytes) -> None: ...
    def drop(self, handle: int, start: int, stop: int) -> None: ...
