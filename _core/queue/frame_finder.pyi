from typing import Self

from typing_extensions import Buffer

from _core.log.view import LogView
from _core.queue.partition import Partition

LOST: int

class FrameFinder:
    place: int | tuple[int, int] | None
    header: dict[str, int]
    first_offset: int
    next_offset: int
    def __new__(cls, view: LogView) -> Self: ...
    def look(self, partition: Partition, offset: int) -> bool: ...

def holds_offset(
    frame: Buffer, *, topic_id: int, partition: int, offset: int, is_lost: bool
) -> bool: ...
def find_candidate(data: Buffer, pos: int, start: int) -> int: ...

class UnitScan:
    topic_id: int
    partition: int
    first: int
    stop: int
    reached: int
    def __new__(
        cls, *, topic_id: int, partition: int, first: int, stop: int, is_unordered: bool = False
    ) -> Self: ...
    def feed(self, data: Buffer, pos: int) -> int: ...
    def finish(self) -> bytes: ...
