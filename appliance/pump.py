"""What turns the broker: group commit, delivery at the due millisecond, housekeeping.

Every callback that may have changed the log ends with `end_turn`: what was encoded is written, a
flush is started on a thread if one is wanted and none is in flight, the wake timer is armed, and
whoever waits is told.

Flush. sync: at once, whenever something is not flushed; while one fdatasync is in flight more
requests gather for the next. async: every `flush_interval_ms`; if the oldest byte that is not
flushed gets older than `flush_bound_ms`, no more is acknowledged until it is: so a power cut loses
at most that much.

Any StorageError, and any error that leaves memory and log apart, ends the process. Layer 5: runs on
the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from _core.session import ParkedFetch
from appliance.broker import Broker
from appliance.clock import WakeTimer
from appliance.errors import NotReadyError
from appliance.model import ColdPlace
from appliance.store.checkpointer import CheckpointJob, MarkJob
from appliance.store.commit_log import FlushJob
from appliance.store.segment import SpareJob
from appliance.units import MS_PER_SECOND, NS_PER_MS

HOUSEKEEPING_S: Final = 0.1

LOOK_AHEAD_EVERY: Final = 3
"""Of so many turns of the housekeeping one reads ahead for deliveries."""

LOOK_AHEAD_MS: Final = 2_000
"""So long before they are due records are read; the first chunk of them."""

SLICE_PAUSE_S: Final = 0.005
"""Between two slices of a checkpoint, each of a millisecond or two."""

DUE_BACKLOG_DIVISOR: Final = 4
"""Producers may be ahead of the disk by this much less while due records wait for it."""

_log = logging.getLogger(__name__)

Progressed = Callable[[list[ParkedFetch]], None]


class Pump:
    """Drives one broker on the running event loop.

    Attributes:
        failure: completes with the error that ended the broker's work.
    """

    def __init__(self, broker: Broker, progressed: Progressed) -> None:
        """Make a pump that stands still.

        Args:
            broker: a recovered broker.
            progressed: called at the end of each turn with the parked fetches that have more to
                see; answers may leave up to `durable_pos`.
        """
        self._broker = broker
        self._progressed = progressed
        self._loop = asyncio.get_running_loop()
        # Each kind of work has its own, so that no flush waits behind a consumer's cold reads.
        self._flusher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-flush")
        self._allocator = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-spare")
        self._readers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="latermq-read")
        self._bodies = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-bodies")
        self._saver = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-save")
        self._timer = WakeTimer()
        self._armed_ms: int | None = None
        self._is_delivering = False
        self._is_looking_ahead = False
        self._look_ahead_in = 0
        self._delivered_pos = 0
        self._flushing: FlushJob | None = None
        self._flush_future: asyncio.Future[None] | None = None
        self._unflushed_since_ns: int | None = None
        self._next_unflushed_since_ns: int | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._housekeeping: asyncio.TimerHandle | None = None
        self._slice: asyncio.TimerHandle | None = None
        self._awaited: list[tuple[int, asyncio.Future[None]]] = []
        self._is_stopped = False
        self._is_closed = False
        self.failure: asyncio.Future[BaseException] = self._loop.create_future()

    def start(self) -> None:
        """Begin to deliver."""
        self._loop.add_reader(self._timer.fileno(), self._guard, self._on_timer)
        self._guard(self._housekeep)
        self._guard(self.end_turn)

    async def stop(self) -> None:
        """Stand still; a flush in flight is waited for. May be called twice."""
        if self._is_closed:
            return
        self._is_stopped = self._is_closed = True
        self._disappoint()
        self._loop.remove_reader(self._timer.fileno())
        for handle in (self._flush_timer, self._housekeeping, self._slice):
            if handle is not None:
                handle.cancel()
        self._broker.stop_prewriting()
        for threads in (
            self._flusher,
            self._allocator,
            self._readers,
            self._bodies,
            self._saver,
        ):
            await asyncio.to_thread(threads.shutdown)
        if self._flush_future is not None:
            await asyncio.wait((self._flush_future,))
            error = self._flush_future.exception()
            if error is not None:  # nobody may sync again and call it a clean stop
                self.fail(error)
        self._timer.close()

    @property
    def has_failed(self) -> bool:
        """Nothing may be accepted or acknowledged any more."""
        return self.failure.done()

    @property
    def is_stopped(self) -> bool:
        """It has failed or was told to stop: what is handled from now on would not be written."""
        return self._is_stopped

    def fail(self, error: BaseException) -> None:
        """Something broke that cannot be mended in place: the process must end."""
        self._is_stopped = True
        if not self.failure.done():
            self.failure.set_result(error)
        self._disappoint()

    def _guard(self, step: Callable[[], None]) -> None:
        """Run a step of the pump; nobody above would see its error."""
        if self._is_stopped:
            return
        try:
            step()
        except Exception as error:  # noqa: BLE001 (the root of a callback: it ends the process)
            self.fail(error)

    # Turns

    @property
    def durable_pos(self) -> int:
        """Log position up to which requests may be acknowledged."""
        broker = self._broker
        if broker.is_sync_flush or self._is_flush_overdue():
            return broker.flushed_pos
        return broker.committed_pos

    @property
    def is_backed_up(self) -> bool:
        """So much waits for the disk that what comes now would wait too long."""
        broker = self._broker
        backlog_bytes = broker.committed_pos - broker.flushed_pos
        limit_bytes = broker.config.flush_backlog_max_bytes
        if self._delivered_pos > broker.flushed_pos:
            # What is due waits for a sync that is as long as what producers put into it.
            limit_bytes //= DUE_BACKLOG_DIVISOR
        return broker.is_sync_flush and backlog_bytes > limit_bytes

    @property
    def unflushed_ms(self) -> int:
        """For how long the oldest byte has waited for the disk that is not flushed; 0 if none."""
        since_ns = self._unflushed_since_ns
        if since_ns is None:
            return 0
        return (self._broker.clock.monotonic_ns() - since_ns) // NS_PER_MS

    def end_turn(self) -> None:
        """Write, flush, arm and tell. Raises StorageError; the caller hands it to `fail`."""
        woken = self._broker.commit()
        self._want_flush()
        self._arm()
        self._tell(woken)

    async def durable(self, pos: int) -> None:
        """End the turn, and wait until what lies below a log position may be acknowledged.

        Raises:
            NotReadyError: the broker stops or has failed; nobody can say what a restart finds.
        """
        self._guard(self.end_turn)
        while self.durable_pos < pos:
            if self._is_stopped:
                raise NotReadyError("the broker is stopping")
            future = self._loop.create_future()
            self._awaited.append((pos, future))
            await future

    def _tell(self, woken: list[ParkedFetch]) -> None:
        """Tell everybody who waits that there was progress."""
        self._progressed(woken)
        if self._awaited:
            durable_pos = self.durable_pos
            for pos, future in self._awaited:
                if pos <= durable_pos and not future.done():
                    future.set_result(None)
            self._awaited = [each for each in self._awaited if not each[1].done()]

    def _disappoint(self) -> None:
        """There will be no more progress."""
        for _, future in self._awaited:
            if not future.done():
                future.set_exception(NotReadyError("the broker is stopping"))
        self._awaited = []

    def _arm(self) -> None:
        wake_ms = self._broker.next_wake_ms()
        if wake_ms != self._armed_ms:
            self._armed_ms = wake_ms
            self._timer.arm(wake_ms)

    # Flush

    def _is_flush_overdue(self) -> bool:
        return self.unflushed_ms > self._broker.config.flush_bound_ms

    def _want_flush(self) -> None:
        broker = self._broker
        if broker.flushed_pos == broker.committed_pos:
            return
        if self._unflushed_since_ns is None:
            self._unflushed_since_ns = broker.clock.monotonic_ns()
        if self._flushing is not None:
            return
        if broker.is_sync_flush or self._is_flush_overdue():
            self._begin_flush()
        elif self._flush_timer is None:
            delay_s = broker.config.flush_interval_ms / MS_PER_SECOND
            self._flush_timer = self._loop.call_later(delay_s, self._guard, self._begin_flush)

    def _begin_flush(self) -> None:
        self._flush_timer = None
        job = self._broker.begin_flush()
        if job is None or self._flushing is not None:
            return
        self._flushing = job
        started_ns = self._broker.clock.monotonic_ns()
        # Bytes committed from now on are younger than this.
        self._next_unflushed_since_ns = started_ns
        future = self._loop.run_in_executor(self._flusher, job.run)
        self._flush_future = future
        future.add_done_callback(
            lambda done: self._guard(lambda: self._end_flush(done, started_ns))
        )

    def _end_flush(self, done: asyncio.Future[None], started_ns: int) -> None:
        job = self._flushing
        assert job is not None
        done.result()  # a failed fdatasync is raised here and ends the process
        self._flushing = None
        broker = self._broker
        broker.metrics.flush_seconds.observe((broker.clock.monotonic_ns() - started_ns) / 1e9)
        woken = broker.end_flush(job)
        is_behind = broker.flushed_pos < broker.committed_pos
        self._unflushed_since_ns = self._next_unflushed_since_ns if is_behind else None
        self._want_flush()
        self._tell(woken)

    # Delivery

    def _on_timer(self) -> None:
        self._timer.drain()
        self._armed_ms = None
        self._deliver()

    def _deliver(self) -> None:
        """One chunk of what is due; more of it after the loop had a turn for everybody else."""
        if self._is_delivering:
            return
        delivery = self._broker.deliver_due()
        if delivery.cold:
            self._read(self._bodies, delivery.cold, self._deliver, is_delivery=True)
        if delivery.count:
            self._delivered_pos = self._broker.wrote_pos
        self.end_turn()
        if delivery.has_more:
            self._is_delivering = True
            self._loop.call_soon(self._guard, self._deliver_again)

    def _deliver_again(self) -> None:
        self._is_delivering = False
        self._deliver()

    # Cold reads

    def read_cold(self, places: Sequence[ColdPlace], then: Callable[[], None]) -> None:
        """Read and check frames and units on a thread, then go on.

        Args:
            places: what to read.
            then: called on the loop when they are in memory, or known to be damaged.
        """
        self._read(self._readers, places, then)

    def _read(
        self,
        threads: ThreadPoolExecutor,
        places: Sequence[ColdPlace],
        then: Callable[[], None],
        *,
        is_delivery: bool = False,
    ) -> None:
        is_sparse = threads is self._bodies
        read = partial(self._broker.read_cold, list(places), is_sparse=is_sparse)
        future = self._loop.run_in_executor(threads, read)

        def finish() -> None:
            for damage in self._broker.note_read(future.result(), is_delivery=is_delivery):
                _log.error("%s%s", damage, "" if damage.is_mended else "; it is not served")
            then()

        future.add_done_callback(lambda _: self._guard(finish))

    def _look_ahead(self) -> None:
        """Have read what deliveries will need soon, before it is due."""
        self._look_ahead_in = (self._look_ahead_in + 1) % LOOK_AHEAD_EVERY
        if self._look_ahead_in == 0 and not self._is_looking_ahead:
            places = self._broker.look_ahead(LOOK_AHEAD_MS)
            if places:
                self._is_looking_ahead = True
                self._read(self._bodies, places, self._end_look_ahead)

    def _end_look_ahead(self) -> None:
        self._is_looking_ahead = False

    def _housekeep(self) -> None:
        self._broker.housekeep()
        self._look_ahead()
        if self._broker.is_delivery_waiting:
            self._deliver()
        self.end_turn()  # what expired goes into the log
        spare = self._broker.begin_spare()
        if spare is not None:
            self._loop.run_in_executor(self._allocator, _make_spare, spare)
        self._checkpoint()
        self._housekeeping = self._loop.call_later(HOUSEKEEPING_S, self._guard, self._housekeep)

    def _checkpoint(self) -> None:
        """A slice of the next checkpoint; a thread writes its files."""
        job = self._broker.checkpoints.step()
        if job is not None:
            future = self._loop.run_in_executor(self._saver, job.run)
            future.add_done_callback(
                lambda done: self._guard(lambda: self._end_checkpoint(done, job))
            )
        elif self._broker.checkpoints.is_capturing and self._slice is None:
            self._slice = self._loop.call_later(SLICE_PAUSE_S, self._guard, self._checkpoint_again)

    def _checkpoint_again(self) -> None:
        self._slice = None
        self.end_turn()
        self._checkpoint()

    def _end_checkpoint(self, done: asyncio.Future[None], job: CheckpointJob | MarkJob) -> None:
        done.result()  # a failed sync is raised here and ends the process
        self._broker.checkpoints.end(job)
        if job.error is not None:
            _log.warning("no checkpoint, it will be tried again: %s", job.error)


def _make_spare(spare: SpareJob) -> None:
    """Make the next segment, and prepare it as far as there is time."""
    spare.run()
    spare.prewrite()
