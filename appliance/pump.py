"""Drives the broker: group commit, delivery at the due millisecond, housekeeping.

Every callback that may have changed the log ends with `end_turn`. It writes what was encoded,
starts a flush on a thread if one is needed and none is in flight, arms the wake timer and notifies
the waiters.

With sync flush, a flush starts as soon as anything is unflushed; requests that arrive while an
fdatasync is in flight gather for the next. With async flush, one starts every `flush_interval_ms`.
If the oldest unflushed byte gets older than `flush_bound_ms`, nothing more is acknowledged until it
is flushed, so a power cut loses at most that much (`appliance.release`).

Any StorageError, and any error that makes memory and log differ, ends the process. Layer 5: runs on
the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from _core.paths.parked_fetch import ParkedFetch
from appliance.broker import Broker
from appliance.cold_readers import ColdReaders
from appliance.errors import NotReadyError, StorageError
from appliance.file_maker import FileMaker
from appliance.flush_thread import FlushThread
from appliance.model import ColdPlace
from appliance.release import Release
from appliance.retention import Cleanup
from appliance.run_merging import RunMerging
from appliance.store.cold_reads import ColdRead
from appliance.store.head.head_freer import Job as HeadJob
from appliance.store.log.flush_job import FlushJob
from appliance.store.state.checkpointer import CheckpointJob
from appliance.system.clock import MovableClock, WakeTimer
from appliance.system.process import let_others_in, yield_to_others
from appliance.thread_jobs import ThreadJobs
from appliance.timer_loading import TimerLoading
from appliance.units import MS_PER_SECOND, NS_PER_MS
from appliance.work_thread import WorkThread

HOUSEKEEPING_S: Final = 0.1

LOOK_AHEAD_EVERY: Final = 3
"""One of this many turns of the housekeeping reads ahead for deliveries."""

LOOK_AHEAD_MS: Final = 2_000
"""How long before they are due records are read ahead; at most one chunk."""

ADVANCE_MAX_MS: Final = 30 * MS_PER_SECOND
"""How long it may take to deliver what is due after a virtual clock was advanced."""

ADVANCE_STEP_S: Final = 0.001

SLICE_PAUSE_S: Final = 0.005
"""Pause between two slices of a checkpoint; a slice takes a millisecond or two."""

_log = logging.getLogger(__name__)

T = TypeVar("T")
Progressed = Callable[[list[ParkedFetch]], None]


class Pump:
    """Drives one broker on the running event loop.

    Attributes:
        failure: completes with the error that ended the broker's work.
        is_stopped: it has failed or was stopped: no request handled from now on is written.
        release: decides what may be acknowledged.
        work: does work of requests that would keep the loop too long.
        committed: called after each turn in which the log may have grown.
        shown: called after each turn in which consumers may see more.
        progressed: called at the end of each turn with the parked fetches that have new records;
            answers may leave as `release` says.
    """

    def __init__(self, broker: Broker) -> None:
        """Make a stopped pump of a recovered broker."""
        self._broker = broker
        self.release = Release(broker)
        self._loop = asyncio.get_running_loop()
        # Each kind of work has its own threads, so that no flush waits for a consumer's cold reads.
        self._jobs = ThreadJobs(self._loop, self._guard)
        self._flusher = FlushThread(
            self._loop, self._guard, self._end_flush, broker.log.watermark.end_raise
        )
        self._files = FileMaker(self._jobs, broker)
        self._merging = RunMerging(self._jobs, broker.checkpoints)
        self._readers = ColdReaders(self._jobs, broker.read_cold, self._note_read)
        self.work = WorkThread(self._loop, self._guard, self.release.unflushed_bytes)
        self._bodies = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-bodies")
        self._saver = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-save")
        # A checkpoint may take minutes to write; readers wait a second for the flushed position.
        self._marker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-mark")
        self._snapshots = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-snap")
        self._space = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-space")
        # A merge takes seconds; a search of somebody who waits is not behind it.
        self._indexer = ThreadPoolExecutor(1, "latermq-index", yield_to_others)
        self._finder = ThreadPoolExecutor(1, "latermq-find", yield_to_others)
        self._loading = TimerLoading(
            broker.timer_memory, broker.clock, self._loop, self._guard, self._arm
        )
        self._timer = WakeTimer(broker.clock)
        self._armed_ms: int | None = None
        self._is_delivering = False
        self._is_looking_ahead = False
        self._is_expiring = False
        self._look_ahead_in = 0
        self._flushing: FlushJob | None = None
        self._flush_began_ns = 0
        self._next_unflushed_since_ns: int | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._housekeeping: asyncio.TimerHandle | None = None
        self._saving: asyncio.TimerHandle | None = None
        self._slice: asyncio.TimerHandle | None = None
        self._carry_slice: asyncio.TimerHandle | None = None
        self._awaited_flushes: list[asyncio.Future[None]] = []
        self._awaited_reads: set[asyncio.Future[None]] = set()
        self._cleaning = asyncio.Lock()
        self._cleanup: asyncio.Future[None] | None = None
        self._is_debug = _log.isEnabledFor(logging.DEBUG)
        self.committed: Callable[[], None] = lambda: None
        self.shown: Callable[[], None] = lambda: None
        self.progressed: Progressed = lambda _: None
        self.is_stopped = self._is_closed = False
        self.failure: asyncio.Future[BaseException] = self._loop.create_future()

    def start(self) -> None:
        """Start to flush, deliver and do housekeeping."""
        self._loop.add_reader(self._timer.fileno(), self._guard, self._on_timer)
        self._flusher.start()
        self._guard(self._housekeep)
        self._guard(self.end_turn)

    async def stop(self) -> None:
        """Stop, and wait for a flush in flight. May be called twice."""
        if self._is_closed:
            return
        self.is_stopped = self._is_closed = True
        self._fail_waiters()
        self._loop.remove_reader(self._timer.fileno())
        for handle in (
            self._flush_timer,
            self._housekeeping,
            self._saving,
            self._slice,
            self._carry_slice,
        ):
            if handle is not None:
                handle.cancel()
        self._broker.log.stop_prewriting()
        self._broker.key_index.stop()
        for stop in (self._flusher.stop, self._merging.stop):
            error = await stop()
            if error is not None:  # a later sync must not make this look like a clean stop
                self.fail(error)
        await self._loading.stop()
        for threads in (
            self._files,
            self._readers,
            self.work,
            self._bodies,
            self._saver,
            self._marker,
            self._snapshots,
            self._space,
            self._indexer,
            self._finder,
        ):
            await asyncio.to_thread(threads.shutdown)
        self._timer.close()

    @property
    def has_failed(self) -> bool:
        """Nothing may be accepted or acknowledged any more."""
        return self.failure.done()

    def fail(self, error: BaseException) -> None:
        """Record an error that cannot be repaired in place: the process must end."""
        self.is_stopped = True
        if not self.failure.done():
            self.failure.set_result(error)
        self._fail_waiters()

    def _guard(self, step: Callable[[], None]) -> None:
        """Run a step of the pump; no caller would see its error."""
        if self.is_stopped:
            return
        try:
            step()
        except Exception as error:  # noqa: BLE001 (the root of a callback: it ends the process)
            self.fail(error)

    # Turns

    def end_turn(self) -> None:
        """Write, flush, arm and notify. Raises StorageError; the caller passes it to `fail`."""
        woken = self._broker.commit()
        self.committed()
        self._want_flush()
        self._arm()
        self._notify(woken)

    def show(self, woken: list[ParkedFetch]) -> None:
        """Answer and deliver what may leave now: the slave has more, or nothing waits for it."""
        self._guard(self._arm)
        self._guard(partial(self._notify, woken))

    async def durable(self, pos: int) -> None:
        """End the turn, and wait until everything below a log position may be acknowledged.

        Raises:
            NotReadyError: the broker stops or has failed, or a master of a sync pair has no lease;
                whether it stays is unknown.
        """
        self._guard(self.end_turn)
        if self.is_stopped and self.release.durable_pos < pos:
            raise NotReadyError("the broker is stopping")
        await self.release.reach(pos)

    async def flushed(self, pos: int) -> None:
        """Wait until everything below a log position is on the disk, in either flush mode.

        Raises:
            NotReadyError: as `durable`.
        """
        self._guard(self.end_turn)
        while self._broker.flushed_pos < pos:
            if self._flush_timer is not None:
                self._flush_timer.cancel()
            self._guard(self._begin_flush)
            if self.is_stopped:
                raise NotReadyError("the broker is stopping")
            future = self._loop.create_future()
            self._awaited_flushes.append(future)
            await future

    async def advance_clock(self, clock: MovableClock, by_ms: int) -> int:
        """Advance the broker's clock, and wait until consumers see what is due by then.

        Args:
            clock: of this broker.
            by_ms: from 0 on.

        Returns:
            How many timers were delivered meanwhile.

        Raises:
            NotReadyError: the broker stops or has failed, or cannot deliver what is due.
        """
        timers = self._broker.timers
        before = timers.delivered_count
        self._broker.retention.advance(clock, by_ms)
        self._armed_ms = None
        self._guard(self._deliver)
        end_ns = clock.monotonic_ns() + ADVANCE_MAX_MS * NS_PER_MS
        while timers.is_any_due(clock.wall_ms()):
            if self.is_stopped or clock.monotonic_ns() > end_ns:
                raise NotReadyError("the clock is advanced, but due records are not delivered yet")
            await asyncio.sleep(ADVANCE_STEP_S)
        await self.durable(self._broker.wrote_pos)
        return timers.delivered_count - before

    async def snapshot(self, work: Callable[[], T]) -> T:
        """Run work on the thread of the snapshots, and wait for its result.

        Raises:
            NotReadyError: the broker stops or has failed.
            Exception: what the work raised; a failed sync also ends the process.
        """
        return await self._run(self._snapshots, work)

    async def find(self, work: Callable[[], T]) -> T:
        """Run a bounded search on the thread of searches, and wait for its result.

        Raises:
            NotReadyError, Exception: as `snapshot`.
        """

        def search() -> T:
            try:
                return work()
            finally:
                let_others_in()  # thousands of short searches a second may wait for the thread

        return await self._run(self._finder, search)

    async def _run(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if self.is_stopped:
            raise NotReadyError("the broker is stopping")
        try:
            return await self._loop.run_in_executor(threads, work)
        except StorageError as error:
            if error.is_fatal:
                self.fail(error)
            raise

    async def clean_up(self, cleanup: Cleanup) -> None:
        """Expire records now, and wait until that is done, though perhaps not durable.

        One runs at a time; the others wait.

        Raises:
            NotReadyError: the broker stops or has failed.
        """
        async with self._cleaning:
            if self.is_stopped:
                raise NotReadyError("the broker is stopping")
            future = self._cleanup = self._loop.create_future()
            cleanup.done = lambda: None if future.done() else future.set_result(None)
            self._broker.retention.ask(cleanup)
            try:
                await future
            finally:
                self._cleanup = None

    def _notify(self, woken: list[ParkedFetch]) -> None:
        """Notify all waiters of progress."""
        self.progressed(woken)
        self.shown()
        self.release.notify()

    def _fail_waiters(self) -> None:
        """End all waits: there will be no more progress."""
        cleanups = () if self._cleanup is None else (self._cleanup,)
        for future in (*self._awaited_flushes, *self._awaited_reads, *cleanups):
            if not future.done():
                future.set_exception(NotReadyError("the broker is stopping"))
        self._awaited_flushes = []
        self.release.fail("the broker is stopping")

    def _arm(self) -> None:
        # Without a lease nothing is delivered. Whoever renews it calls `show`.
        wake_ms = self._broker.next_wake_ms() if self._broker.has_lease else None
        if wake_ms != self._armed_ms:
            self._armed_ms = wake_ms
            self._timer.arm(wake_ms)

    # Flush

    def _want_flush(self) -> None:
        broker = self._broker
        if broker.flushed_pos == broker.committed_pos:
            return
        if self.release.unflushed_since_ns is None:
            self.release.unflushed_since_ns = broker.clock.monotonic_ns()
        raising = None if self._flusher.is_raising else broker.log.begin_raise()
        if raising is not None:
            self._flusher.begin_raise(raising)
        if self._flushing is not None:
            return
        if broker.is_sync_flush or self.release.is_flush_overdue:
            self._begin_flush()
        elif self._flush_timer is None:
            delay_s = broker.config.flush_interval_ms / MS_PER_SECOND
            self._flush_timer = self._loop.call_later(delay_s, self._guard, self._begin_flush)

    def _begin_flush(self) -> None:
        self._flush_timer = None
        job = self._broker.log.begin_flush()
        if job is None or self._flushing is not None:
            return
        self._flushing = job
        self._flushing_timers = self._broker.timers.accepted_count
        self._flush_began_ns = self._broker.clock.monotonic_ns()
        # Bytes committed from now on are younger than this.
        self._next_unflushed_since_ns = self._flush_began_ns
        self._flusher.begin(job)

    def _end_flush(self) -> None:
        job = self._flushing
        assert job is not None
        self._flushing = None
        self.release.flushed_timers = self._flushing_timers
        broker = self._broker
        took_ns = broker.clock.monotonic_ns() - self._flush_began_ns
        broker.metrics.flush_seconds.observe(took_ns / 1e9)
        if self._is_debug:
            _log.debug(
                "flush bytes=%d from=%d to=%d took_us=%d",
                job.target - job.flushed,
                job.flushed,
                job.target,
                took_ns // 1_000,
            )
        woken = broker.end_flush(job)
        for future in self._awaited_flushes:
            if not future.done():
                future.set_result(None)
        self._awaited_flushes = []
        is_behind = broker.flushed_pos < broker.committed_pos
        self.release.unflushed_since_ns = self._next_unflushed_since_ns if is_behind else None
        self._want_flush()
        self.work.note_flush()
        self._notify(woken)

    # Delivery

    def _on_timer(self) -> None:
        self._timer.drain()
        self._armed_ms = None
        self._deliver()

    def _deliver(self) -> None:
        """Deliver one chunk of due timers; the next follows after the loop has served others."""
        if self._is_delivering or not self._broker.has_lease:
            return
        delivery = self._broker.deliver_due()
        if delivery.cold:
            self._read_bodies(delivery.cold, self._deliver, is_delivery=True)
        if delivery.count:
            self.release.delivered_pos = self._broker.wrote_pos
        self.end_turn()
        if delivery.has_more:
            self._is_delivering = True
            self._loop.call_soon(self._guard, self._deliver_again)

    def _deliver_again(self) -> None:
        self._is_delivering = False
        self._deliver()

    # Cold reads

    def read_cold(
        self, places: Sequence[ColdPlace], then: Callable[[], None], address: str = ""
    ) -> None:
        """Read and check frames and units on a thread, then call `then`; see `ColdReaders.read`."""
        self._readers.read(places, then, address=address)

    async def cold(self, place: ColdPlace) -> None:
        """Do as `read_cold`, and wait for it.

        Raises:
            NotReadyError: the broker stops or has failed.
        """
        if self.is_stopped:
            raise NotReadyError("the broker is stopping")
        future = self._loop.create_future()
        self._awaited_reads.add(future)
        self.read_cold([place], lambda: None if future.done() else future.set_result(None))
        try:
            await future
        finally:
            self._awaited_reads.discard(future)

    def _read_bodies(
        self, places: Sequence[ColdPlace], then: Callable[[], None], *, is_delivery: bool = False
    ) -> None:
        """Read what deliveries need, on a thread of their own, then call `then`."""
        read = partial(self._broker.read_cold, list(places), is_sparse=True)

        def finish(found: ColdRead) -> None:
            self._note_read(found, is_delivery=is_delivery)
            then()

        self._jobs.begin(self._bodies, read, finish)

    def _note_read(self, found: ColdRead, *, is_delivery: bool = False) -> None:
        for damage in self._broker.note_read(found, is_delivery=is_delivery):
            _log.error("%s%s", damage, "" if damage.is_repaired else "; its records are not served")

    def _look_ahead(self) -> None:
        """Read on a thread the frames that deliveries will need soon."""
        self._look_ahead_in = (self._look_ahead_in + 1) % LOOK_AHEAD_EVERY
        if self._look_ahead_in == 0 and not self._is_looking_ahead:
            places = self._broker.look_ahead(LOOK_AHEAD_MS)
            if places:
                self._is_looking_ahead = True
                self._read_bodies(places, self._end_look_ahead)

    def _end_look_ahead(self) -> None:
        self._is_looking_ahead = False

    def _housekeep(self) -> None:
        if self._broker.housekeep() and self._saving is None:
            self._save_soon()
        self._loading.step()
        self._look_ahead()
        if self._broker.is_delivery_waiting:
            self._deliver()
        self._expire()
        self.end_turn()  # writes the expiries to the log
        self._files.step()
        self._merging.step()  # between two checkpoints
        self._checkpoint()
        self._free_head()
        self._mark_flushed()
        self._check_space()
        self._index()
        self._housekeeping = self._loop.call_later(HOUSEKEEPING_S, self._guard, self._housekeep)

    def _save_soon(self) -> None:
        self._saving = self._loop.call_later(SLICE_PAUSE_S, self._guard, self._save_units)

    def _save_units(self) -> None:
        self._saving = None
        if self._broker.units.save():
            self._save_soon()

    def _expire(self) -> None:
        """Read what the search for expired records needs next; it continues after that."""
        place = self._broker.retention.cold
        if place is not None and not self._is_expiring:
            self._is_expiring = True
            self.read_cold([place], self._expire_again)

    def _expire_again(self) -> None:
        self._is_expiring = False
        self._broker.retention.note_read()
        self._broker.retention.step()
        self._expire()
        self.end_turn()

    def _checkpoint(self) -> None:
        """Capture a slice of the next checkpoint; a thread writes its files."""
        job = self._broker.checkpoints.step()
        if job is not None:
            self._jobs.begin(self._saver, job.run, lambda _: self._end_checkpoint(job))
        elif self._broker.checkpoints.is_capturing and self._slice is None:
            self._slice = self._loop.call_later(SLICE_PAUSE_S, self._guard, self._checkpoint_again)

    def _checkpoint_again(self) -> None:
        self._slice = None
        self.end_turn()
        self._checkpoint()

    def _end_checkpoint(self, job: CheckpointJob) -> None:
        self._broker.checkpoints.end(job)
        if job.error is not None:
            _log.warning("checkpoint failed, will be retried: %s", job.error)

    def _free_head(self) -> None:
        """Free segments that nothing needs, a slice at a time; threads read and remove files."""
        broker = self._broker
        job = broker.head_freer.step(broker.retention.kept_from)
        if job is not None:
            self._jobs.begin(self._saver, job.run, lambda _: self._end_free_head(job))
        elif broker.head_freer.is_carrying:
            self.end_turn()
            if self._carry_slice is None:
                self._carry_slice = self._loop.call_later(
                    SLICE_PAUSE_S, self._guard, self._carry_again
                )

    def _carry_again(self) -> None:
        self._carry_slice = None
        self.end_turn()
        self._free_head()

    def _end_free_head(self, job: HeadJob) -> None:
        self._broker.head_freer.end(job)
        self._free_head()

    def _mark_flushed(self) -> None:
        """Publish the flushed position, if it is time; a thread writes it."""
        mark = self._broker.flushed_mark
        job = mark.step()
        if job is not None:
            self._jobs.begin(self._marker, job.run, lambda _: mark.end(job))

    def _check_space(self) -> None:
        """Ask how full the disk is, if it is time; a thread asks."""
        disk_space = self._broker.disk_space
        job = disk_space.step()
        if job is not None:
            self._jobs.begin(self._space, job.run, lambda _: disk_space.end(job))

    def _index(self) -> None:
        """Do the next work on the key index; a thread does it."""
        index = self._broker.key_index
        job = index.step()
        if job is not None:
            self._jobs.begin(self._indexer, job.run, lambda _: index.end(job))
