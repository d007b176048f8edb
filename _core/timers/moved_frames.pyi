from typing import final

@final
class MovedFrames:
    start: int
    count: int
    def place(self, accept_pos: int) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
