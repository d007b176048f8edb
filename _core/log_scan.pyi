from collections.abc import Callable
from typing import Self

from _core.frames import FAULTS as FAULTS
from _core.projections import Projections

EPOCH_FELL: str

class LogScan:
    projections: Projections
    pos: int
    epoch: int
    frames: int
    damage: list[tuple[int, int, str]]
    tail_fault: str | None
    done: bool
    has_leftovers: bool
    newer_version: bool
    garbage_end: int
    def __new__(
        cls,
        projections: Projections,
        segments: list[tuple[int, memoryview]] | list[tuple[int, bytes]],
        control: Callable[[int, int, bytes, int], None],
        *,
        known_flushed: int = -1,
        reach: int = -1,
        written: Callable[[int], list[tuple[int, int]]] | None = None,
    ) -> Self: ...
    def step(self, budget: int) -> bool: ...
