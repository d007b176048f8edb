from collections.abc import Callable, Sequence
from typing import Self

from _core.log.frames import FAULTS as FAULTS
from _core.state.projections import Projections

EPOCH_FELL: str

class LogScan:
    projections: Projections
    pos: int
    epoch: int
    frames: int
    last_pos: int
    last_crc: int
    lost_ranges: list[tuple[int, int]]
    damage: list[tuple[int, int, str]]
    tail_fault: str | None
    done: bool
    salt: int
    unknown: dict[int, int]
    has_leftovers: bool
    newer_version: bool
    garbage_end: int
    @property
    def unreadable(self) -> list[tuple[int, int, str]]: ...
    def __new__(
        cls,
        projections: Projections,
        segments: list[tuple[int, int]],
        read: Callable[[int, memoryview], Sequence[tuple[int, int, str]]],
        control: Callable[[int, int, bytes, int], None],
        *,
        start: int = -1,
        epoch: int = 0,
        lost: Sequence[tuple[int, int]] = (),
        known_flushed: int = -1,
        watermark: int = -1,
        written: Callable[[int], list[tuple[int, int]]] | None = None,
        verdicts: Sequence[tuple[int, int]] = (),
        topics: dict[int, bytes | None] | None = None,
        salt: int = 0,
        own_from: int = 0,
    ) -> Self: ...
    def take_unreadable(self) -> list[tuple[int, int, str]]: ...
    def step(self, budget: int) -> bool: ...
