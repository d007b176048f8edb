from collections.abc import Callable
from typing import Self

from _core.paths.session import Session

class Reply:
    pieces: list[bytes]
    end_pos: int
    wait_ms: int
    late: Callable[[], bytes] | None
    kept_bytes: int
    def __new__(
        cls,
        payload: bytes | list[bytes],
        end_pos: int = 0,
        *,
        wait_ms: int = ...,
        late: Callable[[], bytes] | None = None,
        kept_bytes: int = 0,
    ) -> Self: ...
    @property
    def payload(self) -> bytes: ...

class Answer: ...

class ResponseSlot:
    session: Session | None
    answered: bool
    def complete(self, reply: Reply) -> None: ...
