from _core.tables.copies import Copies

OUTCOMES: tuple[str, ...]
IS_COPY: int

class TimerOutcomes:
    count: int
    copies: Copies
    def outcome(self, accept_pos: int, index: int) -> tuple[str, int] | None: ...
    def is_row_at(self, pos: int, accept_pos: int, index: int) -> bool: ...
    def between(
        self,
        start: int,
        end: int,
        read: tuple[int, int, int, int] = ...,
        held_from: int = ...,
    ) -> bytes: ...
