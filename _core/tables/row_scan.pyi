from collections.abc import Callable, Sequence
from typing import Any, Self

COLUMN_NAMES: tuple[str, ...]

class RowScan:
    pos: int
    faults: list[tuple[int, str]]
    def __new__(
        cls,
        *,
        read: Callable[[int, memoryview], Sequence[tuple[int, int, str]]],
        ranges: list[tuple[int, int, int, int]],
        topics: dict[int, tuple[bytes, list[int]]],
        columns: Sequence[str],
        decompress: Callable[[int, memoryview], bytes | memoryview],
        verifies: bool = True,
        salt: int = 0,
        timestamps: tuple[int | None, int | None] = ...,
        stored: tuple[int | None, int | None] = ...,
        due: tuple[int | None, int | None] = ...,
        partition: int = -1,
        outcomes: Sequence[bytes] | None = None,
        kinds: tuple[bytes, ...] = (),
        takes_others: bool = True,
        left_out: bytes = b"",
    ) -> Self: ...
    def take_faults(self) -> list[tuple[int, str]]: ...
    def pass_segment(self) -> None: ...
    def step(self, row_max: int, size_max: int) -> dict[str, tuple[Any, ...]] | None: ...
