from collections.abc import Callable
from typing import Self

class Reply:
    pieces: list[bytes]
    end_pos: int
    wait_ms: int
    late: Callable[[], bytes] | None
    def __new__(
        cls,
        payload: bytes | list[bytes],
        end_pos: int = 0,
        *,
        wait_ms: int = ...,
        late: Callable[[], bytes] | None = None,
    ) -> Self: ...
    @property
    def payload(self) -> bytes: ...

class Answer: ...
