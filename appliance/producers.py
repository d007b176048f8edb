"""How many idempotent producers are remembered, and who is forgotten for a new one.

The broker remembers the last batches of each producer on each partition, so that a resend is stored
once. Anybody can make new producers, with ids that the broker gave away or invented ones. So there
are limits: on all of them, and on new ones of an address.

At the limit of all, the producer that is idle longest is forgotten for the new one, if it is idle
for FORGETTABLE_MS. Clients resend for two minutes by default, so that nobody who is forgotten then
resends a batch; it may go on with its next sequence number. If none is idle for so long, the new
one has to wait: its client tries again. No producer that may still resend is ever forgotten.
docs/decisions/0022 has the reasons. Layer 3; does no I/O.
"""

import logging
from collections.abc import Callable
from typing import Final

from _core.state.projections import Projections
from appliance.allowance import Allowance
from appliance.client_log import ClientLog
from appliance.config.config import Config
from appliance.system.clock import Clock
from appliance.units import MS_PER_HOUR, MS_PER_MINUTE, NS_PER_MS

FORGETTABLE_MS: Final = 10 * MS_PER_MINUTE
"""Five times as long as clients resend (delivery.timeout.ms), by the age of the store."""

BURST: Final = 20_000
"""New producers of an address at once, each counted for its id and on each of its partitions: a
hundred processes that start together and write to a hundred partitions need as many."""

PER_S: Final = 50
"""The same in each second, for ever: 30,000 until the first can be forgotten."""

EXPIRED_MAX: Final = 256
"""Producers that expire in one slice, in about a millisecond: 2,560 in a second."""

WAIT_MS: Final = 2 * MS_PER_MINUTE
"""How long a batch that was refused is expected again: delivery.timeout.ms."""

WAITING_MAX: Final = 100
"""Producers of an address of which that is remembered."""

WAITING_ADDRESSES_MAX: Final = 1_000
"""Addresses of which that is remembered."""

_log = logging.getLogger(__name__)


class Producers:
    """Admits new producers, and lets idle ones expire.

    Attributes:
        address: IP address of the client whose requests are handled.
        forgotten_count: producers that were forgotten for new ones.
        refused: new producers that had to wait, by the limit.
    """

    def __init__(
        self, projections: Projections, config: Config, clock: Clock, lines: ClientLog
    ) -> None:
        """Take over the producers that are known.

        Args:
            projections: has the producers of all partitions.
            config: has the limit of all, and when they expire.
            clock: its monotonic time counts for addresses.
            lines: says when the limit of all is reached.
        """
        self._projections = projections
        self._table = projections.producers
        # Sorts those of a saved state now, before clients are served: 0.1 s for 200,000.
        assert self._table.oldest_pos >= 0
        self._config = config
        self._clock = clock
        self._lines = lines
        self._allowance = Allowance(BURST, PER_S)
        self._forgettable_pos = 0
        self._waiting: dict[str, dict[tuple[int, int], tuple[int, int]]] = {}
        """By address, partition handle and producer id: the first sequence that was refused, and
        when. One address pushes out only its own."""
        self.address = ""
        self.forgotten_count = 0
        self._said_ms: int | None = None
        self.refused: dict[str, int] = {}

    @property
    def count(self) -> int:
        """Producers that are remembered, each counted on each of its partitions."""
        return self._table.count

    def admit(
        self, handle: int, producer_id: int, sequence: int, is_again: bool = False
    ) -> str | None:
        """Make room for a producer of `address` on a partition.

        Args:
            handle: of the partition.
            producer_id: of the producer.
            sequence: of the first record of its batch.
            is_again: it was admitted for this batch already, which had to wait for something else.

        Returns:
            None, or why the producer must wait.
        """
        now_ms = self._clock.monotonic_ns() // NS_PER_MS
        key = handle, producer_id
        waiting = self._waiting.get(self.address, {})
        first, since_ms = waiting.get(key, (sequence, now_ms))
        # With five requests in flight, the second batch must not be taken for its first one.
        if sequence > first and now_ms - since_ms < WAIT_MS:
            return f"sequence {first} of producer {producer_id} was refused: send it first"
        reason = self._admit(now_ms, is_again=is_again)
        waiting.pop(key, None)
        if reason is not None:
            self.await_again(handle, producer_id, sequence)
        elif not waiting:
            self._waiting.pop(self.address, None)
        return reason

    def await_again(self, handle: int, producer_id: int, sequence: int) -> None:
        """Expect a batch of a producer of `address` again, which was refused.

        If the producer is not known then, its later batches are refused until that one comes.

        Args:
            handle: of the partition.
            producer_id: of the producer.
            sequence: of the first record of the batch.
        """
        waiting = self._waiting.setdefault(self.address, {})
        key = handle, producer_id
        waiting.pop(key, None)
        waiting[key] = sequence, self._clock.monotonic_ns() // NS_PER_MS
        if len(waiting) > WAITING_MAX:
            del waiting[next(iter(waiting))]
        if len(self._waiting) > WAITING_ADDRESSES_MAX:
            del self._waiting[next(iter(self._waiting))]

    def _admit(self, now_ms: int, *, is_again: bool) -> str | None:
        count_max = self._config.producer_count_max
        if not self._has_room():
            return self._refuse_for_count()
        if not is_again and not self._allowance.take(self.address, now_ms):
            return self._refuse(
                "address",
                f"too many new producers from this address: {PER_S} a second are admitted",
            )
        # More than one only if a start with a lower limit restored them.
        excess = self._table.count - count_max + 1
        if excess > 0:
            excess = min(excess, EXPIRED_MAX)
            self.forgotten_count += self._forget(self._forgettable_pos, excess)
            self._say_forgotten(now_ms)
        return None if self._table.count < count_max else self._refuse_for_count()

    def _has_room(self) -> bool:
        """Return whether the limit of all is not reached, or a producer can be forgotten."""
        is_full = self._table.count >= self._config.producer_count_max
        return not is_full or self._table.oldest_pos <= self._forgettable_pos

    def _say_forgotten(self, now_ms: int) -> None:
        """Say that the limit of all is reached, once an hour: it may be so for ever."""
        if self._said_ms is None or now_ms - self._said_ms >= MS_PER_HOUR:
            self._said_ms = now_ms
            _log.warning(
                "producers.count_max = %d is reached: those that are idle longest are forgotten "
                "for new ones, so far %d",
                self._config.producer_count_max,
                self.forgotten_count,
            )

    def _refuse_for_count(self) -> str:
        return self._refuse(
            "count",
            f"too many producers, and none is idle for {FORGETTABLE_MS // MS_PER_MINUTE} minutes: "
            f"producers.count_max = {self._config.producer_count_max} is reached",
        )

    def _refuse(self, limit: str, reason: str) -> str:
        self.refused[limit] = self.refused.get(limit, 0) + 1
        self._lines.write(
            _log, logging.WARNING, ("producer", self.address), "a producer must wait: %s", reason
        )
        return reason

    def may_allocate(self, address: str) -> bool:
        """Return whether a client may have a new producer id now; if so, it counts.

        Args:
            address: IP address of the client.
        """
        self.address = address
        if not self._has_room():
            self._refuse_for_count()
            return False
        if not self._allowance.take(self.address, self._clock.monotonic_ns() // NS_PER_MS):
            self._refuse("address", "no producer id is given away: too many from this address")
            return False
        return True

    def expire(self, position_before: Callable[[int], int]) -> None:
        """Let producers expire, in a slice; call it about ten times a second.

        Args:
            position_before: returns the log position of an age in ms.
        """
        expiry_ms = self._config.producer_id_expiry_ms
        self._forget(position_before(expiry_ms), EXPIRED_MAX)
        self._forgettable_pos = position_before(min(FORGETTABLE_MS, expiry_ms))

    def _forget(self, below_pos: int, count_max: int) -> int:
        """Forget some of the producers whose last batch is below a log position."""
        for count in range(count_max):
            if self._table.oldest_pos > below_pos:
                return count
            # A checkpoint in progress must still include them.
            partition = self._projections.partitions[self._table.oldest_handle]
            assert partition is not None
            self._projections.captured.note(partition)
            self._table.forget_below(below_pos, 1)
        return count_max
