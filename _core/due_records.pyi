from typing import Self

from _core.log_view import LogView

class HeldRecords:
    def __new__(cls, view: LogView) -> Self: ...
