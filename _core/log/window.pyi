from collections.abc import Callable, Sequence
from typing import Self

class LogWindow:
    unreadable: list[tuple[int, int, str]]
    def __new__(cls, read: Callable[[int, memoryview], Sequence[tuple[int, int, str]]]) -> Self: ...
    def take_unreadable(self) -> list[tuple[int, int, str]]: ...
