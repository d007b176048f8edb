"""What may leave a broker at this moment: which answers, and whether due records.

An answer waits for the disk of this machine, as `flush.mode` says. In a sync pair most answers also
wait for the slave: all but those to Produce requests with acks 0 or 1. And none leaves while the
master has no lease. The lease is looked at here, when an answer is about to leave, and not when its
request came: this process may have been stopped in between. Layer 5; on the event loop.
"""

import asyncio
from typing import Final

from appliance.broker import Broker
from appliance.errors import NotReadyError
from appliance.replication.lease import NO_LEASE
from appliance.units import NS_PER_MS

DUE_BACKLOG_DIVISOR: Final = 4
"""While due records wait for the disk, the permitted backlog is divided by this."""


class Release:
    """Decides for one broker, and keeps those who wait for a log position.

    Attributes:
        unflushed_since_ns: monotonic time of the oldest byte that is not flushed; None if all are.
        delivered_pos: the end of what was delivered last.
        flushed_timers: how many timers were ever accepted and are flushed.
    """

    def __init__(self, broker: Broker) -> None:
        """Decide for a recovered broker."""
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._awaited: list[tuple[int, asyncio.Future[None]]] = []
        self.unflushed_since_ns: int | None = None
        self.delivered_pos = 0
        self.flushed_timers = broker.timers.accepted_count

    # The disk

    @property
    def unflushed_ms(self) -> int:
        """The age of the oldest unflushed byte in milliseconds; 0 if there is none."""
        since_ns = self.unflushed_since_ns
        if since_ns is None:
            return 0
        return (self._broker.clock.monotonic_ns() - since_ns) // NS_PER_MS

    @property
    def unflushed_timers(self) -> int:
        """The number of timers that were accepted and are not flushed."""
        return self._broker.timers.accepted_count - self.flushed_timers

    @property
    def is_flush_overdue(self) -> bool:
        """With async flush, nothing more may be acknowledged before the next flush."""
        return self.unflushed_ms > self._broker.config.flush_bound_ms

    @property
    def is_backed_up(self) -> bool:
        """So much waits for the disk that a new request would wait too long."""
        broker = self._broker
        limit_bytes = broker.config.flush_backlog_max_bytes
        if self.delivered_pos > broker.flushed_pos:
            # Due records wait for this sync, which takes longer the more producers put into it.
            limit_bytes //= DUE_BACKLOG_DIVISOR
        return self.unflushed_bytes() > limit_bytes

    def unflushed_bytes(self) -> int:
        """What must be on the disk before the last request is acknowledged."""
        broker = self._broker
        return broker.committed_pos - broker.flushed_pos if broker.is_sync_flush else 0

    # Acknowledgements

    @property
    def local_pos(self) -> int:
        """Log position up to which this machine has what an acknowledgement promises of it."""
        broker = self._broker
        if broker.is_sync_flush or self.is_flush_overdue:
            return broker.flushed_pos  # I3
        return broker.committed_pos

    @property
    def durable_pos(self) -> int:
        """The same, and the slave of a sync pair has it too."""
        return min(self.local_pos, self._broker.replicated_pos)

    def positions(self) -> tuple[int, int]:
        """Return `durable_pos` and `local_pos` for an answer that leaves now; 0 without a lease.

        What waits for no position may leave in any case.
        """
        if not self._broker.check_lease():
            return 0, 0
        local_pos = self.local_pos
        return min(local_pos, self._broker.replicated_pos), local_pos

    # Waits

    @property
    def waiting_count(self) -> int:
        """Those who wait in `reach`."""
        return len(self._awaited)

    def check(self) -> None:
        """Refuse what is about to change the log for somebody who waits for it.

        Raises:
            NotReadyError: without a lease.
        """
        if not self._broker.check_lease():
            raise NotReadyError(NO_LEASE)

    async def reach(self, pos: int) -> None:
        """Wait until an acknowledgement of everything below a log position may leave.

        Raises:
            NotReadyError: `fail` was called, or the lease is over: whether it stays is unknown.
        """
        while True:
            self.check()
            if self.durable_pos >= pos:
                return
            future = self._loop.create_future()
            self._awaited.append((pos, future))
            await future

    def notify(self) -> None:
        """Let go on who waited for what may be acknowledged now, and who waits without a lease."""
        if not self._awaited:
            return
        has_lease, durable_pos = self._broker.check_lease(), self.durable_pos
        for pos, future in self._awaited:
            if (pos <= durable_pos or not has_lease) and not future.done():
                future.set_result(None)
        self._awaited = [each for each in self._awaited if not each[1].done()]

    def fail(self, reason: str) -> None:
        """End all waits: there will be no more progress."""
        for _, future in self._awaited:
            if not future.done():
                future.set_exception(NotReadyError(reason))
        self._awaited = []
