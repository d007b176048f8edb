from collections.abc import Collection
from typing import Self, final

from typing_extensions import Buffer

class RowCheck:
    rows: int
    def __new__(cls, kind: int) -> Self: ...
    def find_unsound(self, block: Buffer) -> int: ...

@final
class RunMerge:
    kind: int
    out_rows: int
    def __new__(
        cls,
        kind: int,
        *,
        source_count: int,
        topics: Collection[int],
        is_whole: bool,
        forget_pos: int,
    ) -> Self: ...
    def feed(self, source: int, block: bytes) -> None: ...
    def run(self) -> int: ...
    def take(self) -> bytes: ...
