"""Lets every start load the timers in small pieces, as one with millions of them does."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest import mock

ROWS: Final = 3


@contextmanager
def in_pieces(rows: int = ROWS) -> Iterator[None]:
    """In this context a start loads no timer; `BrokerHarness` loads some later.

    Args:
        rows: timers of a piece.
    """
    with ExitStack() as stack:
        for name, value in (
            ("run_set.LOADED_AT_ONCE", -1),
            ("timer_load.NEAR_PIECES", 0),
            ("timer_load.ROWS_AT_ONCE", rows),
        ):
            stack.enter_context(mock.patch(f"appliance.store.runs.{name}", value))
        yield
