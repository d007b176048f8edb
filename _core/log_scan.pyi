from collections.abc import Callable

from typing_extensions import Buffer

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
    newer_version: bool
    def __init__(
        self,
        projections: Projections,
        segments: list[tuple[int, Buffer]],
        control: Callable[[int, int, bytes, int], None],
        *,
        known_flushed: int = -1,
    ) -> None: ...
    def step(self, budget: int) -> bool: ...
