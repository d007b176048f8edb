"""Work on a thread, and what the event loop does with its result. Layer 5."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class ThreadJobs:
    """Runs work on threads, and what follows on the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, guard: Callable[[Callable[[], None]], None]
    ) -> None:
        """Start without work.

        Args:
            loop: runs what follows.
            guard: runs a step of the loop; an error in it ends the broker.
        """
        self._loop = loop
        self._guard = guard

    def begin(
        self, threads: ThreadPoolExecutor, work: Callable[[], T], then: Callable[[T], None]
    ) -> asyncio.Future[T]:
        """Run work on a thread, and pass its result on.

        Args:
            threads: one of them runs the work.
            work: an error in it goes to the guard, and `then` is not called.
            then: called on the loop.

        Returns:
            The future of the work.
        """
        future = self._loop.run_in_executor(threads, work)
        future.add_done_callback(lambda done: self._guard(lambda: then(done.result())))
        return future
