from typing import Self, final

from _core.state.projections import Projections

@final
class RunLoader:
    timers: int
    ids: int
    def __new__(cls, projections: Projections) -> Self: ...
    def load_timers(self, rows: bytes) -> None: ...
    def load_ids(self, rows: bytes) -> None: ...
