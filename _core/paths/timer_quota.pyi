from collections.abc import Callable
from typing import Self

from _core.state.projections import Projections

ACCOUNTS_MAX: int
UNSAVED_MAX_BYTES: int

class TimerQuota:
    count_max: int
    second_max: int
    unsaved_max_bytes: int
    refusal: str | None
    address: str
    await_again: Callable[[int, int, int], None] | None
    def __new__(cls, projections: Projections, *, count_max: int, second_max: int) -> Self: ...
    @property
    def account_count(self) -> int: ...
    def charged_to(self, address: str, *, now_ms: int) -> int: ...
