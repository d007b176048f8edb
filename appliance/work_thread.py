"""One thread for the work of requests that would keep the loop too long, such as unpacking.

Who needs it waits for its turn, first come, first served, and says only then what to do. So whoever
waits holds no data for it, and may have gone away meanwhile. Layer 5.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

Work: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Turn:
    """What one request wants of the thread; all but the work itself is called on the loop.

    Args:
        begin: called when its turn comes; returns the work, or None if there is none any more.
        then: called after the work.
        failed: called in place of `then` with the exception that ended the work.
    """

    begin: Callable[[], Work | None]
    then: Callable[[], None]
    failed: Callable[[Exception], None]


class WorkThread:
    """The thread and those who wait for it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, guard: Callable[[Callable[[], None]], None]
    ) -> None:
        """Start without work.

        Args:
            loop: where everything but the work is called.
            guard: runs a step of the loop; an error in it ends the broker.
        """
        self._loop = loop
        self._guard = guard
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-work")
        self._waiting: deque[Turn] = deque()
        self._is_busy = False

    @property
    def waiting_count(self) -> int:
        """How many wait for their turn."""
        return len(self._waiting)

    def ask(self, turn: Turn) -> None:
        """Wait for the thread. Nothing of `turn` is called before this returns."""
        self._waiting.append(turn)
        self._go_on_soon()

    def shutdown(self) -> None:
        """End the thread after the work in progress; may be called on any thread."""
        self._executor.shutdown()

    def _go_on_soon(self) -> None:
        if not self._is_busy and self._waiting:
            self._is_busy = True
            self._loop.call_soon(self._guard, self._begin)

    def _begin(self) -> None:
        turn = self._waiting.popleft()
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
