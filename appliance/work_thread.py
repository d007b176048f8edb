"""One thread for the work of requests that would keep the loop too long, such as unpacking.

Who needs it waits for its turn, and says only then what to do. So whoever waits holds no data for
it, and may have gone away meanwhile. Addresses take turns; within one it is first come, first
served.

A small request may become a batch of megabytes in the log, and the flush of these keeps everybody
else waiting. So such work waits while large ones before it wait for the disk: a record of another
client shares its flush with one of them at most. Layer 5.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from appliance.fair_queue import FairQueue
from appliance.system.process import yield_to_others
from appliance.units import MIB

UNFLUSHED_MAX_BYTES: Final = 2 * MIB
"""While more waits for the disk, no work begins that appends: ten milliseconds of a usual disk."""

FLUSHES_MAX: Final = 4
"""After so many flushes it begins nevertheless: others may write all the time."""

Work: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Turn:
    """What one request wants of the thread; all but the work itself is called on the loop.

    Args:
        begin: called when its turn comes; returns the work, or None if there is none any more.
        then: called after the work.
        failed: called in place of `then` with the exception that ended the work.
        address: of the client; addresses take turns.
        is_append: `then` may append much to the log.
    """

    begin: Callable[[], Work | None]
    then: Callable[[], None]
    failed: Callable[[Exception], None]
    address: str = ""
    is_append: bool = False


class WorkThread:
    """The thread and those who wait for it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        guard: Callable[[Callable[[], None]], None],
        unflushed_bytes: Callable[[], int],
    ) -> None:
        """Start without work.

        Args:
            loop: where everything but the work is called.
            guard: runs a step of the loop; an error in it ends the broker.
            unflushed_bytes: returns how much waits for the disk.
        """
        self._loop = loop
        self._guard = guard
        self._unflushed_bytes = unflushed_bytes
        self._flush_count = 0
        """Flushes that the first in the queue has waited for."""
        self._executor = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="latermq-work", initializer=yield_to_others
        )
        self._waiting: FairQueue[Turn] = FairQueue()
        self._is_busy = False

    @property
    def waiting_count(self) -> int:
        """How many wait for their turn."""
        return len(self._waiting)

    def ask(self, turn: Turn) -> None:
        """Wait for the thread. Nothing of `turn` is called before this returns."""
        self._waiting.append(turn.address, turn)
        self._go_on_soon()

    def note_flush(self) -> None:
        """Note that a flush has ended, and the next one has begun if there is more."""
        self._flush_count += 1
        self._go_on_soon()

    def shutdown(self) -> None:
        """End the thread after the work in progress; may be called on any thread."""
        self._executor.shutdown()

    def _go_on_soon(self) -> None:
        if not self._is_busy and self._waiting and self._may_begin(self._waiting.first):
            self._is_busy = True
            self._loop.call_soon(self._guard, self._begin)

    def _may_begin(self, turn: Turn) -> bool:
        is_late = self._flush_count >= FLUSHES_MAX
        return not turn.is_append or is_late or self._unflushed_bytes() <= UNFLUSHED_MAX_BYTES

    def _begin(self) -> None:
        self._flush_count = 0
        turn = self._waiting.pop()
        work = turn.begin()
        if work is None:
            self._end()
            return
        future = self._loop.run_in_executor(self._executor, work)
        future.add_done_callback(lambda done: self._guard(partial(self._finish, turn, done)))

    def _finish(self, turn: Turn, future: asyncio.Future[None]) -> None:
        error = future.exception()
        if error is None:
            turn.then()
        elif isinstance(error, Exception):
            turn.failed(error)
        else:
            raise error
        self._end()

    def _end(self) -> None:
        self._is_busy = False
        self._go_on_soon()
