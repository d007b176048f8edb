"""Drives what a slave serves to clients: reads of the disk, and waits for records.

A slave writes nothing, so answers wait for no flush and no turn ends with a commit. Layer 5: runs
on the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from _core.paths.parked_fetch import ParkedFetch
from appliance.cold_readers import ColdReaders
from appliance.model import ColdPlace
from appliance.slave_broker import NO_LIMIT, SlaveBroker
from appliance.store.cold_reads import ColdRead
from appliance.thread_jobs import ThreadJobs
from appliance.work_thread import WorkThread

_log = logging.getLogger(__name__)


class NothingWaits:
    """What may leave a slave: all, as it writes nothing that a flush or a peer has to confirm."""

    local_pos = NO_LIMIT
    is_backed_up = False
    unflushed_ms = 0

    def positions(self) -> tuple[int, int]:
        """Return log positions beyond everything."""
        return NO_LIMIT, NO_LIMIT


class SlavePump:
    """Drives one slave on the running event loop.

    Attributes:
        failure: completes with the error that ended the work.
        is_stopped: it has failed or was stopped.
        work: does work of requests that would keep the loop too long.
        progressed: called with parked fetches that have new records.
        release: lets every answer leave.
    """

    def __init__(self, broker: SlaveBroker) -> None:
        """Make a pump of a slave that follows."""
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        jobs = ThreadJobs(self._loop, self._guard)
        self._readers = ColdReaders(jobs, broker.read_cold, self._note_read)
        self.work = WorkThread(self._loop, self._guard, lambda: 0)
        self.release = NothingWaits()
        self.progressed: Callable[[list[ParkedFetch]], None] = lambda _: None
        self.is_stopped = False
        self.failure: asyncio.Future[BaseException] = self._loop.create_future()

    def start(self) -> None:
        """Nothing happens by itself."""

    async def stop(self) -> None:
        """Stop, and wait for reads in flight: nothing uses the files after it."""
        self.is_stopped = True
        for threads in (self._readers, self.work):
            await asyncio.to_thread(threads.shutdown)

    @property
    def has_failed(self) -> bool:
        return self.failure.done()

    def fail(self, error: BaseException) -> None:
        """Record an error that cannot be repaired in place: the process must end."""
        self.is_stopped = True
        if not self.failure.done():
            self.failure.set_result(error)

    def _guard(self, step: Callable[[], None]) -> None:
        if self.is_stopped:
            return
        try:
            step()
        except Exception as error:  # noqa: BLE001 (the root of a callback: it ends the process)
            self.fail(error)

    def end_turn(self) -> None:
        """End a turn, in which nothing was written."""

    def show(self, woken: list[ParkedFetch]) -> None:
        """Answer what may be answered now."""
        if woken:
            self._guard(partial(self.progressed, woken))

    def read_cold(
        self, places: Sequence[ColdPlace], then: Callable[[], None], address: str = ""
    ) -> None:
        """Read and check frames and units on a thread, then call `then`; see `ColdReaders.read`."""
        self._readers.read(places, then, address=address)

    def _note_read(self, found: ColdRead) -> None:
        for damage in self._broker.note_read(found):
            _log.error("%s; consumers are sent to the master", damage)
