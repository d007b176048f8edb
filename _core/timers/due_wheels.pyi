from typing import Self, final

from _core.timers.due_tree import DueTree
from _core.timers.time_wheel import TimeWheel

@final
class DueWheels:
    minutes: TimeWheel
    seconds: TimeWheel
    @property
    def is_whole(self) -> bool: ...
    def save(self) -> bytes | None: ...
    def restore(self, saved: bytes | None) -> None: ...
    def __new__(cls, tree: DueTree) -> Self: ...
