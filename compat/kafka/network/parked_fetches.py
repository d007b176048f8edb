"""The fetches of one connection that could not be answered at once: their timers and retries.

Layer 5; on the event loop.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from _core.paths.parked_fetch import ParkedFetch
from appliance.units import MS_PER_SECOND
from compat.kafka.network.driven import Driver, ServedBroker


class _Server(Protocol):
    broker: ServedBroker
    loop: asyncio.AbstractEventLoop

    @property
    def pump(self) -> Driver: ...

    def guard(self, step: Callable[[], None]) -> None: ...


class _Connection(Protocol):
    @property
    def address(self) -> str: ...

    def retry(self, parked: ParkedFetch) -> bool: ...

    def ask_for_step(self, step: Callable[[], None]) -> None: ...


class ParkedFetches:
    """Waits for data, for the disk, for its turn, or for the time-out of each fetch."""

    def __init__(self, server: _Server, connection: _Connection) -> None:
        """Begin without fetches.

        Args:
            server: of the connection.
            connection: tries a fetch again, and asks for a turn of the loop.
        """
        self._server = server
        self._connection = connection
        self._parked: set[ParkedFetch] = set()

    def __len__(self) -> int:
        return len(self._parked)

    def add(self, parked: ParkedFetch) -> None:
        """Start the timer of a fetch that could not be answered at once."""
        if parked.answered:
            return  # answered at the end of the turn in which it arrived
        self._parked.add(parked)
        wait_ms = min(max(parked.wait_ms, 0), self._server.broker.config.fetch_wait_max_ms)
        parked.timer = self._server.loop.call_later(
            wait_ms / MS_PER_SECOND, self._server.guard, partial(self._expire, parked)
        )
        self._go_on(parked)

    def look_again(self, parked: ParkedFetch) -> None:
        """Retry a parked fetch, for which there may be more data."""
        if parked.is_unfinished:
            parked.was_woken = True
        else:
            self._look_on(parked)

    def end(self, parked: ParkedFetch) -> None:
        """Forget a fetch that was answered."""
        self._parked.discard(parked)
        _cancel(parked)

    def drop_all(self) -> None:
        """Forget all fetches: the connection is closed."""
        for parked in self._parked:
            _cancel(parked)
            parked.drop()
        self._parked.clear()

    def _go_on(self, parked: ParkedFetch) -> None:
        """Read what the fetch needs of the disk, or let it go on in a later turn."""
        if parked.cold:
            address = self._connection.address
            self._server.pump.read_cold(parked.cold, lambda: self.look_again(parked), address)
        elif parked.is_unfinished:
            self._connection.ask_for_step(partial(self._look_on, parked))

    def _look_on(self, parked: ParkedFetch) -> None:
        """Try a parked fetch, or the next part of one that names many partitions."""
        if not parked.answered and not self._connection.retry(parked):
            self._go_on(parked)

    def _expire(self, parked: ParkedFetch) -> None:
        parked.is_expired = True
        self.look_again(parked)


def _cancel(parked: ParkedFetch) -> None:
    if parked.timer is not None:
        parked.timer.cancel()
        parked.timer = None
