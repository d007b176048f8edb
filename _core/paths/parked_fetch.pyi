from typing import Protocol

from _core.paths.session import Session

class _Timer(Protocol):
    def cancel(self) -> None: ...

class ParkedFetch:
    session: Session | None
    wait_ms: int
    cold: list[int | tuple[int, int]]
    answered: bool
    is_unfinished: bool
    was_woken: bool
    timer: _Timer | None
    is_expired: bool
    def unpark(self) -> None: ...
    def may_have_enough(self, visible_pos: int) -> bool: ...
    def drop(self) -> None: ...
