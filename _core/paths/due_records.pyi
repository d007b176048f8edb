from typing import Self

from _core.log.view import LogView

class HeldRecords:
    def __new__(cls, view: LogView) -> Self: ...
