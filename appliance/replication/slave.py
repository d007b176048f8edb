"""The slave's side of replication on sockets: connects to its master, for ever, and follows it.

What arrives is appended on the loop as it comes, in parts of messages too, so nothing waits in
memory, except while a thread reads ids from the disk that frames name: at most the window of the
master. A thread of its own flushes, one flush at a time, as a master does: what arrives meanwhile
waits for the next. Layer 5; on the event loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_bytes
from typing import Final, TypeAlias

from appliance.client_log import ClientLog, LineKind
from appliance.config.setting import Address
from appliance.errors import LatermqError
from appliance.log_text import quoted
from appliance.replication import lease, transport, wire
from appliance.replication.facts import NO_FACTS, Facts
from appliance.replication.link import Link
from appliance.replication.link_limits import LinkLimits
from appliance.replication.logs import ReplicaError, ReplicaLog
from appliance.replication.slave_session import (
    Append,
    Begin,
    Order,
    Prepare,
    Read,
    SlaveSession,
    Take,
)
from appliance.replication.states import UP_TO_DATE, State
from appliance.replication.wire import Welcome
from appliance.store.log.watermark import WatermarkJob
from appliance.store.runs.saved_ids import IdLookup
from appliance.system.clock import Clock
from appliance.thread_jobs import ThreadJobs
from appliance.units import MS_PER_SECOND, NS_PER_MS

SAME_REASON_MS: Final = 60_000
"""A slave that fails again and again for one reason writes a line that often."""

_log = logging.getLogger(__name__)

MasterLink: TypeAlias = Link[SlaveSession]


@dataclass(frozen=True, slots=True)
class Following:
    """What the slave knows of its master, and what it has itself.

    Attributes:
        state: of its connection; LOST if there is none.
        reason: why it is LOST; "" if it is not.
        node, epoch: of the master; 0 before its first WELCOME.
        facts: what the master said of itself in its last WELCOME.
        start_pos, committed_pos, flushed_pos, visible_pos: of the master's log, as last reported.
        received_pos, durable_pos: what this slave appended and flushed on its last connection; 0
            before that.
        heard_ms: boottime at which the master was heard last; None before.
        acked_ms: boottime of the last ACK; None before. The master's lease is over when more
            than its length passed since.
        lease_ms: of the master; 0 if it needs none; None before its first WELCOME.
        lease_ends_ms: boottime at which its lease is over that this slave's ACKs renewed; 0 if they
            renewed none.
        has_caught_up: it did once, on this connection or an earlier one.
    """

    state: State
    reason: str = ""
    node: int = 0
    epoch: int = 0
    facts: Facts = NO_FACTS
    start_pos: int = 0
    committed_pos: int = 0
    flushed_pos: int = 0
    visible_pos: int = 0
    received_pos: int = 0
    durable_pos: int = 0
    heard_ms: int | None = None
    acked_ms: int | None = None
    lease_ms: int | None = None
    lease_ends_ms: int = 0
    has_caught_up: bool = False

    @property
    def lag_bytes(self) -> int:
        """What the master had committed by its last report, and is not durable here."""
        return max(0, self.committed_pos - self.durable_pos)


class HandOver:
    """What the owner of a client does when the master hands over; this one refuses."""

    def prepare(self, term: int) -> None:
        """Let nothing be in the way of a promotion, then call `ReplicationClient.ready`.

        Args:
            term: that this node is to begin.

        Raises:
            ReplicaError: this node cannot take over.
        """

    def take(self, term: int) -> None:
        """Be the master of a term from now on, durably. All received is durable.

        Raises:
            ReplicaError: it cannot be.
            StorageError: the disk failed; the process must end.
        """
        raise ReplicaError(f"cannot take over term {term}")


NO_HAND_OVER: Final = HandOver()


class ReplicationClient:
    """Follows one master from `start` until `stop`; start it once.

    Attributes:
        following: what is known.
        failure: completes with the error that ended its work: a StorageError, or a bug. The owner
            ends the process: a failed sync is never tried again.
    """

    def __init__(
        self,
        log: ReplicaLog,
        address: Address,
        secret: bytes,
        *,
        clock: Clock,
        lines: ClientLog,
        changed: Callable[[Following], None],
        caught_up: Callable[[], None],
        limits: LinkLimits | None = None,
        facts: Callable[[], Facts] = Facts,
        welcomed: Callable[[Welcome], None] = lambda _: None,
        hands_over: HandOver = NO_HAND_OVER,
        make_nonce: Callable[[int], bytes] = token_bytes,
    ) -> None:
        """Make a client that does not connect yet.

        Args:
            log: what follows.
            address: of the master.
            secret: what both nodes know, at least SECRET_SIZE_MIN_BYTES.
            clock: its boottime counts.
            lines: writes the lines of the log.
            changed: called on the loop with `following` after each change of it.
            caught_up: called on the loop, once, when the slave has caught up for the first time.
            limits: as the master has them; None: the default ones.
            facts: returns what this node says of itself.
            welcomed: called on the loop with each WELCOME, before the log is changed because of it.
                Its error ends the work.
            hands_over: does what a hand-over asks for.
            make_nonce: returns that many random bytes.
        """
        self._replica = log
        self._address = address
        self._secret = secret
        self._clock = clock
        self._lines = lines
        self._changed = changed
        self._caught_up = caught_up
        self._limits = limits or LinkLimits()
        self._facts, self._welcomed, self._hands_over = facts, welcomed, hands_over
        self._make_nonce = make_nonce
        self._loop = asyncio.get_running_loop()
        self._jobs = ThreadJobs(self._loop, self._guard)
        self._flusher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-repl-flush")
        self._flushing: asyncio.Future[int] | None = None
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-repl-ids")
        self._lookup: asyncio.Future[None] | None = None
        self._raiser = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-repl-raise")
        self._raising: asyncio.Future[None] | None = None
        self._orders: deque[Order] = deque()
        """Of the master, which wait for the end of the look-up."""
        self._flushed_at_pos: int | None = None
        """What was received when the last flush began; None: the next one is due at once."""
        self._take: Take | None = None
        self._link: MasterLink | None = None
        self._ended: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._shown = ("", 0)
        self.following = Following(State.LOST, "not connected yet")
        self.failure: asyncio.Future[Exception] = self._loop.create_future()

    def start(self) -> None:
        """Begin to connect."""
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """Close the connection and wait for a flush in flight. May be called twice.

        When it returns, the log has seen its last call.
        """
        self._is_stopped = True
        # At once: an ACK that left now could renew the master's lease without a trace here.
        self._drop("this node stops")
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._drop("this node stops")
        await self._finish()
        for threads in (self._reader, self._raiser, self._flusher):
            threads.shutdown()

    def ready(self) -> None:
        """Say that a promotion would not have to wait."""
        if self._link is not None:
            self._link.session.ready()
            self._link.step()

    def handle(self, link: MasterLink, data: bytes) -> None:
        """Do what the master's bytes ask for."""
        if self._is_stopped or link is not self._link:
            return
        self._orders.extend(link.session.received(data, link.now_ms()))
        self._obey(link)

    def _obey(self, link: MasterLink) -> None:
        """Do what the master asked for, in its order; the rest waits if ids must be looked up.

        Of a connection that is lost meanwhile only the bytes of the log count.
        """
        try:
            while self._orders and self._lookup is None:
                order = self._orders.popleft()
                if isinstance(order, Append):
                    self._applied(link, order, self._replica.append(order.pos, order.data))
                elif link is self._link and link.session.state is not State.LOST:
                    self._do(link, order)
        except ReplicaError as error:
            self._refuse(link, error)

    def _do(self, link: MasterLink, order: Begin | Read | Prepare | Take) -> None:
        session, log = link.session, self._replica
        if isinstance(order, Begin):
            assert session.welcome is not None
            self._welcomed(session.welcome)
            if order.is_anew:
                log.restart(order.pos)
            else:
                log.truncate(order.pos, may_be_acknowledged=order.may_be_acknowledged)
            session.begun(link.now_ms())
        elif isinstance(order, Read):
            self._read(link, order)
        elif isinstance(order, Prepare):
            self._hands_over.prepare(order.term)
        else:
            self._take = order
            self._take_over(link)

    def _applied(self, link: MasterLink, order: Append, lookup: IdLookup | None) -> None:
        """Note that the bytes of an order are applied, or begin the look-up that they wait for."""
        if lookup is not None:
            self._lookup = self._jobs.begin(
                self._reader, lookup.run, lambda _: self._looked_up(link, order, lookup)
            )
        elif link is self._link:
            link.session.appended(order.pos, len(order.data), link.now_ms())

    def _looked_up(self, link: MasterLink, order: Append, lookup: IdLookup) -> None:
        self._lookup = None
        try:
            self._applied(link, order, self._replica.end_lookup(lookup))
        except ReplicaError as error:
            self._refuse(link, error)
        self._obey(link)
        link.step()

    def _refuse(self, link: MasterLink, error: ReplicaError) -> None:
        self._orders.clear()
        link.session.fail(error.message)

    def _guard(self, step: Callable[[], None]) -> None:
        if self.failure.done():
            return
        try:
            step()
        except Exception as error:  # noqa: BLE001 (the root of a callback: it ends the process)
            self.fail(error)

    async def _finish(self) -> None:
        """Wait until nothing goes on that the last connection began."""
        while self._lookup is not None:
            await asyncio.wait([self._lookup])
            if self.failure.done():
                break  # what was read is not used
        for future in (self._flushing, self._raising):
            if future is not None:
                await asyncio.wait([future])

    def _read(self, link: MasterLink, order: Read) -> None:
        """Read what the master lost; one piece at a time, because the master waits for each."""
        future = self._loop.run_in_executor(
            self._flusher, self._replica.read, order.pos, order.size
        )
        future.add_done_callback(partial(self._has_read, link, order.pos))

    def _has_read(self, link: MasterLink, pos: int, future: asyncio.Future[bytes]) -> None:
        if link is not self._link or self._is_stopped:
            return
        error = future.exception()
        if error is None:
            link.session.read(pos, future.result())
        elif isinstance(error, LatermqError):
            link.session.fail(error.message)
        else:
            assert isinstance(error, Exception)
            self.fail(error)
            return
        link.step()

    def _take_over(self, link: MasterLink) -> None:
        """Become the master, if the master has yielded and no flush is in flight."""
        if self._take is not None and self._flushing is None:
            order, self._take = self._take, None
            self._hands_over.take(order.term)
            link.session.taken()

    def stepped(self, link: MasterLink) -> None:
        """Flush if there is something to flush, and report what changed."""
        if self._is_stopped or link is not self._link:
            return
        self._flush_on(link)
        self._raise_on(link)
        self._show(link)
        self._report(link)
        is_lost = link.session.state is State.LOST
        if is_lost and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def fail(self, error: Exception) -> None:
        """End all work."""
        self._is_stopped = True
        self._drop("this node fails")
        if not self.failure.done():
            self.failure.set_result(error)

    async def _run(self) -> None:
        limits = self._limits
        back_off_ms = limits.back_off_min_ms
        try:
            while not self._is_stopped:
                await self._follow()
                link = self._link
                if link and (link.shown is State.STREAMING or link.session.was_compared):
                    back_off_ms = limits.back_off_min_ms
                await asyncio.sleep(back_off_ms / MS_PER_SECOND)
                back_off_ms = min(2 * back_off_ms, limits.back_off_max_ms)
        except Exception as error:  # noqa: BLE001 (the root of a task: it ends the process)
            self.fail(error)

    async def _follow(self) -> None:
        """Connect, and return when the connection is over and nothing of it goes on."""
        self._ended = self._loop.create_future()
        self._flushed_at_pos = None
        self._link = self._take = None
        try:
            async with asyncio.timeout(self._limits.silence_ms / MS_PER_SECOND):
                await transport.connect(self._address, self._make_link)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error) or "it does not answer"
            self._drop(reason)
            self._lose(f"cannot connect: {reason}")
            return
        await self._ended
        await self._finish()

    def _drop(self, reason: str) -> None:
        if self._link is not None:
            self._link.drop(reason)
            self._link = None

    def _make_link(self) -> MasterLink:
        session = SlaveSession(
            self._replica,
            self._secret,
            nonce=self._make_nonce(wire.NONCE_SIZE),
            now_ms=self._clock.boottime_ns() // NS_PER_MS,
            limits=self._limits,
            facts=self._facts,
        )
        self._link = Link(session, self, self._clock)
        return self._link

    def _flush_on(self, link: MasterLink) -> None:
        session = link.session
        if self._flushing is not None or not session.is_begun:
            return
        if self._flushed_at_pos is None or session.received_pos > self._flushed_at_pos:
            self._flushed_at_pos = session.received_pos
            then = partial(self._flushed, link)
            self._flushing = self._jobs.begin(self._flusher, self._replica.flush, then)

    def _flushed(self, link: MasterLink, durable_pos: int) -> None:
        self._flushing = None
        if link is self._link and not self._is_stopped:
            link.session.flushed(durable_pos, link.now_ms())
            self._end_waiting(link)
            link.step()

    def _raise_on(self, link: MasterLink) -> None:
        """Raise the watermark on a thread, also during a flush, which may take long."""
        if self._raising is not None or not link.session.is_begun:
            return  # before the stream begins, the log may be cut
        job = self._replica.begin_raise()
        if job is not None:
            self._raising = self._jobs.begin(self._raiser, job.run, lambda _: self._raised(job))

    def _raised(self, job: WatermarkJob) -> None:
        self._raising = None
        self._replica.end_raise(job)

    def _end_waiting(self, link: MasterLink) -> None:
        try:
            self._take_over(link)
        except ReplicaError as error:
            link.session.fail(error.message)
        except LatermqError as error:
            self.fail(error)

    def _report(self, link: MasterLink) -> None:
        session = link.session
        welcome, beat = session.welcome, session.beat
        old = self.following
        is_streaming = session.state in UP_TO_DATE
        lease_ends_ms = old.lease_ends_ms
        if session.acked_ms is not None and welcome is not None and welcome.facts.lease_ms:
            until_ms = session.acked_ms + lease.wait_ms(welcome.facts.lease_ms)
            lease_ends_ms = max(lease_ends_ms, until_ms)
        self._set(
            Following(
                state=session.state,
                reason=session.reason,
                node=old.node if welcome is None else welcome.node,
                facts=old.facts if welcome is None else welcome.facts,
                epoch=beat.epoch if beat else welcome.epoch if welcome else old.epoch,
                start_pos=beat.start_pos if beat else old.start_pos,
                committed_pos=beat.committed_pos if beat else old.committed_pos,
                flushed_pos=beat.flushed_pos if beat else old.flushed_pos,
                visible_pos=beat.visible_pos if beat else old.visible_pos,
                received_pos=session.received_pos if session.is_begun else old.received_pos,
                durable_pos=session.durable_pos if session.is_begun else old.durable_pos,
                heard_ms=session.heard_ms if welcome else old.heard_ms,
                acked_ms=session.acked_ms or old.acked_ms,
                lease_ms=old.lease_ms if welcome is None else welcome.facts.lease_ms,
                lease_ends_ms=lease_ends_ms,
                has_caught_up=old.has_caught_up or is_streaming,
            )
        )
        if is_streaming and not old.has_caught_up:
            self._caught_up()

    def _set(self, following: Following) -> None:
        if following != self.following:
            self.following = following
            self._changed(following)

    def _show(self, link: MasterLink) -> None:
        """Write a line for a new state."""
        session = link.session
        if session.state is link.shown:
            return
        if session.state is State.LOST:
            self._write_lost(session.reason)
            return
        link.shown = session.state
        if session.welcome is None:  # the master compares
            return
        message = "replication %s master=%s from=%d received=%d"
        facts = (self._address, session.welcome.common_pos, session.received_pos)
        source: tuple[LineKind, str] = "replication", str(self._address)
        self._lines.write(_log, logging.INFO, source, message, session.state.value, *facts)

    def _lose(self, reason: str) -> None:
        """Note that there was no connection."""
        self._write_lost(reason)
        self._set(replace(self.following, state=State.LOST, reason=reason))

    def _write_lost(self, reason: str) -> None:
        now_ms = self._clock.boottime_ns() // NS_PER_MS
        shown, shown_ms = self._shown
        if reason == shown and now_ms - shown_ms < SAME_REASON_MS:
            return
        self._shown = reason, now_ms
        message = "replication lost master=%s reason=%s"
        facts = self._address, quoted(reason, char_count_max=300)
        source: tuple[LineKind, str] = "replication", str(self._address)
        self._lines.write(_log, logging.WARNING, source, message, *facts)
