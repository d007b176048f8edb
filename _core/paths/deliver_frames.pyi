from typing import Self

from _core.paths.recurrences import _InstantRules
from _core.state.writer import LogWriter

class DeliverFrames:
    def __new__(
        cls, writer: LogWriter, rules: _InstantRules | None, *, batch_size_max: int
    ) -> Self: ...
