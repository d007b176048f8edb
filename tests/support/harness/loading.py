"""Lets every start load the timers in small pieces, as one with millions of them does."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

from appliance.store.runs.saved_ids import SavedIds
from appliance.store.runs.timer_memory import MEMORY_BYTES, TIMER_BYTES, TimerMemory

ROWS: Final = 3

_BEGIN: Final[Any] = TimerMemory.__init__
_BEGIN_IDS: Final[Any] = SavedIds.__init__


def _no_room(ids: SavedIds, *args: Any) -> None:
    _BEGIN_IDS(ids, *args[:-1], 0)


@contextmanager
def in_pieces(rows: int = ROWS, *, count_max: int | None = None) -> Iterator[None]:
    """In this context a start loads no timer; `BrokerHarness` loads some later.

    Args:
        rows: timers of a piece.
        count_max: about how many timers are in memory, and no ids that are saved; None: as many as
            in a real broker.
    """
    limit_bytes = MEMORY_BYTES if count_max is None else count_max * TIMER_BYTES

    def limited(memory: TimerMemory, *args: Any) -> None:
        _BEGIN(memory, *args[:-1], limit_bytes)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(TimerMemory, "__init__", limited))
        for name, value in (
            ("timer_memory.LOADED_AT_ONCE", -1),
            ("timer_memory.NEAR_PIECES", 0),
            ("timer_load.ROWS_AT_ONCE", rows),
        ):
            stack.enter_context(mock.patch(f"appliance.store.runs.{name}", value))
        if count_max is not None:
            stack.enter_context(mock.patch.object(SavedIds, "__init__", _no_room))
            stack.enter_context(mock.patch("appliance.store.runs.timer_memory.KEPT_MS", 100))
        yield
