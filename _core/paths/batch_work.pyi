from typing import Self

class BatchWork:
    is_packed: bool
    is_made: bool
    is_done: bool
    is_split: bool
    def __new__(cls, is_packed: bool) -> Self: ...
    def refuse(self, message: str) -> None: ...
    def run(self) -> None: ...
