"""Threads that read from the disk what is not in memory, for consumers and searches.

Addresses take turns, so that whoever reads old records on hundreds of connections does not keep
others waiting. Layer 5.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from appliance.fair_queue import FairQueue
from appliance.model import ColdPlace
from appliance.store.cold_reads import ColdRead
from appliance.thread_jobs import ThreadJobs

READER_COUNT: Final = 2


class ColdReaders:
    """The threads, and what waits for them."""

    def __init__(
        self,
        jobs: ThreadJobs,
        read: Callable[[list[ColdPlace]], ColdRead],
        note: Callable[[ColdRead], None],
    ) -> None:
        """Start without work.

        Args:
            jobs: runs work on threads.
            read: reads and checks frames and units; called on a thread.
            note: applies what was read; called on the loop.
        """
        self._jobs = jobs
        self._read = read
        self._note = note
        self._threads = ThreadPoolExecutor(READER_COUNT, thread_name_prefix="latermq-read")
        self._waiting: FairQueue[tuple[list[ColdPlace], Callable[[], None]]] = FairQueue()
        self._running = 0

    def read(
        self, places: Sequence[ColdPlace], then: Callable[[], None], *, address: str = ""
    ) -> None:
        """Read and check frames and units on a thread, then call `then`.

        Args:
            places: what to read.
            then: called on the loop when they are in memory or known to be damaged.
            address: of the client that it is for; "" for the broker's own.
        """
        self._waiting.append(address, (list(places), then))
        self._begin()

    def shutdown(self) -> None:
        """End the threads after the work in progress; may be called on any thread."""
        self._threads.shutdown()

    def _begin(self) -> None:
        if self._waiting and self._running < READER_COUNT:
            self._running += 1
            places, then = self._waiting.pop()
            self._jobs.begin(self._threads, partial(self._read, places), partial(self._end, then))

    def _end(self, then: Callable[[], None], found: ColdRead) -> None:
        self._running -= 1
        self._begin()  # the thread reads on while the loop answers
        self._note(found)
        then()
