from array import array
from collections.abc import Sequence
from typing import Self, final

from _core.timers.due_queue import DueQueue

@final
class DueList:
    def __new__(
        cls,
        queue: DueQueue,
        from_ms: int = 0,
        until_ms: int = ...,
        end_pos: int = ...,
        wanted: bytes | bytearray | None = None,
    ) -> Self: ...
    def page(
        self, after: tuple[int, int, int] | None, limit: int, budget: int
    ) -> tuple[list[tuple[int, int, int, int]], tuple[int, int, int], bool]: ...
    def holds(self, places: Sequence[tuple[int, int, int]]) -> bytes: ...
    def count(self, counts: array[int], step_ms: int, reached: int, budget: int) -> int: ...
