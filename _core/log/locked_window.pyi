from typing import Literal

WINDOW_MAX_BYTES: int

class LockedWindow: ...

def lock_window(
    fd: int, offset: int, size: int, owner: object = None
) -> memoryview | Literal[False] | None: ...
