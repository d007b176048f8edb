"""Limits of connections: their number, and their idle time.

This module only decides; compat.kafka.network.connection acts. The reasons are the labels of the
metrics `connections_refused` and `connections_closed`. Layer 3; does no I/O and reads no clock.
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from appliance.config.config import Config
from appliance.units import KIB, MIB, MS_PER_SECOND

SMALL_BYTES: Final = 64 * KIB
"""Memory that a connection may use even when memory is scarce: a usual request and response."""

SCARCE_TIMEOUT_MS: Final = 5_000
"""While memory is scarce, a connection above SMALL_BYTES must make progress within this time."""

RATE_MIN_BYTES_PER_S: Final = MIB
"""A granted request must arrive, and answers of more than SMALL_BYTES must be read, at this rate
while others wait for memory, after SCARCE_TIMEOUT_MS. A large request has a second more than a
small one for each so many bytes."""

FILES_RESERVED: Final = 2_048
"""Open files that are left for segments, queues, runs and the admin address, if there are as many
again: without a file for the next segment the broker would have to end."""

RefusalReason: TypeAlias = Literal["count", "address"]
CloseReason: TypeAlias = Literal["idle", "slow_request", "slow_reader", "memory", "request"]


class Admission:
    """Counts the connections, in total and by address.

    Attributes:
        count_max: connections at most.
    """

    def __init__(self, config: Config, file_limit: int | None = None) -> None:
        """Begin without connections.

        Args:
            config: bounds them.
            file_limit: open files that this process may have; None if it is not bounded.
        """
        self.count_max = config.connection_count_max
        if file_limit is not None:
            left = max(file_limit - FILES_RESERVED, file_limit // 2)
            self.count_max = min(self.count_max, left)
        # The same part of them as without that limit, or one address could take all.
        share = config.connection_count_max_per_address / config.connection_count_max
        self._count_max_per_address = min(
            config.connection_count_max_per_address, max(1, round(share * self.count_max))
        )
        self._count = 0
        self._by_address: dict[str, int] = {}

    def admit(self, address: str) -> RefusalReason | None:
        """Count a connection from an address, or return which limit refuses it."""
        if self._count >= self.count_max:
            return "count"
        of_address = self._by_address.get(address, 0)
        if of_address >= self._count_max_per_address:
            return "address"
        self._count += 1
        self._by_address[address] = of_address + 1
        return None

    def forget(self, address: str) -> None:
        """Stop counting an admitted connection that was closed."""
        left = self._by_address[address] - 1
        self._count -= 1
        if left:
            self._by_address[address] = left
        else:
            del self._by_address[address]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionStats:
    """The state of a connection at one moment.

    Args:
        requests: requests handled so far.
        partial_bytes: received bytes of an incomplete request; 0 if there is none.
        taken_bytes: response bytes that the client has received so far.
        unsent_bytes: response bytes that are not sent yet.
        is_owed: the client waits for the broker: for data, the disk, or other group members.
        is_held_back: the broker does not read from the connection.
        is_large: the connection uses more than SMALL_BYTES.
        claimed_bytes: size of the incomplete request if it is larger than LARGE_BYTES; else 0.
    """

    requests: int
    partial_bytes: int
    taken_bytes: int
    unsent_bytes: int
    is_owed: bool
    is_held_back: bool
    is_large: bool
    claimed_bytes: int = 0


class IdleDetector:
    """Detects connections without progress by regular checks."""

    __slots__ = ("_config", "_moved_ms", "_partial_since_ms", "_seen", "_unread")

    def __init__(self, config: Config, now_ms: int) -> None:
        """Start for a connection opened at `now_ms` (monotonic ms)."""
        self._config = config
        self._moved_ms = now_ms
        self._partial_since_ms: int | None = None
        self._seen = (0, 0, 0)
        self._unread: tuple[int, int] | None = None
        """Since when others wait for what the client reads, and how much it had read then."""

    def still_ms(self, now_ms: int) -> int:
        """Return the time without progress as of the last check, ms."""
        return now_ms - self._moved_ms

    def judge(
        self, now_ms: int, sight: ConnectionStats, *, is_scarce: bool, is_awaited: bool = False
    ) -> tuple[CloseReason, str] | None:
        """Return why the connection must be closed, as a label and a message, or None.

        Args:
            now_ms: monotonic ms, not below that of the last call.
            sight: the current state of the connection.
            is_scarce: memory is scarce.
            is_awaited: others wait for memory that is granted to the connection, or for answers.
        """
        config = self._config
        seen = (sight.requests, sight.partial_bytes, sight.taken_bytes)
        is_our_turn = (sight.is_owed and not sight.unsent_bytes) or sight.is_held_back
        if sight.requests != self._seen[0] or not sight.partial_bytes or is_our_turn:
            self._partial_since_ms = None
        if sight.partial_bytes and self._partial_since_ms is None:
            self._partial_since_ms = now_ms
        if seen != self._seen or is_our_turn:
            self._moved_ms = now_ms
        self._seen = seen
        still_ms = now_ms - self._moved_ms
        since_ms = self._partial_since_ms
        if since_ms is not None:
            refusal = self._judge_arrival(now_ms - since_ms, sight, is_awaited=is_awaited)
            if refusal is not None:
                return refusal
        refusal = self._judge_reading(now_ms, sight, is_awaited=is_awaited)
        if refusal is not None:
            return refusal
        if still_ms > config.idle_timeout_ms:
            after = f"network.idle_timeout_ms = {config.idle_timeout_ms}"
            if sight.unsent_bytes:
                return "slow_reader", f"the client read no response for {after}"
            return "idle", f"the client sent nothing for {after}"
        is_greedy = is_scarce and sight.is_large and not sight.is_held_back
        if is_greedy and still_ms > min(SCARCE_TIMEOUT_MS, config.idle_timeout_ms):
            return "memory", (
                "no progress while memory is scarce: network.inflight_max_bytes = "
                f"{config.inflight_max_bytes} is reached"
            )
        return None

    def _judge_arrival(
        self, arriving_ms: int, sight: ConnectionStats, *, is_awaited: bool
    ) -> tuple[CloseReason, str] | None:
        """Return why a request that arrives for so long must end, or None."""
        timeout_ms = self._config.receive_timeout_ms
        whole_ms = sight.claimed_bytes * MS_PER_SECOND // RATE_MIN_BYTES_PER_S
        if arriving_ms > timeout_ms + whole_ms:
            more = f" and {whole_ms} for its size" if whole_ms else ""
            return "slow_request", (
                f"a request did not arrive completely within network.receive_timeout_ms = "
                f"{timeout_ms}{more}"
            )
        wanted_bytes = (arriving_ms - SCARCE_TIMEOUT_MS) * RATE_MIN_BYTES_PER_S // MS_PER_SECOND
        if is_awaited and sight.claimed_bytes and sight.partial_bytes < wanted_bytes:
            return "memory", (
                f"a request of {sight.claimed_bytes} bytes arrives at less than "
                f"{RATE_MIN_BYTES_PER_S} bytes a second while others wait for memory"
            )
        return None

    def _judge_reading(
        self, now_ms: int, sight: ConnectionStats, *, is_awaited: bool
    ) -> tuple[CloseReason, str] | None:
        """Return why a client that reads so slowly must be closed, or None."""
        if not (is_awaited and sight.is_large and sight.unsent_bytes):
            self._unread = None
            return None
        if self._unread is None:
            self._unread = now_ms, sight.taken_bytes
        since_ms, before_bytes = self._unread
        wanted_bytes = (now_ms - since_ms - SCARCE_TIMEOUT_MS) * RATE_MIN_BYTES_PER_S
        if sight.taken_bytes - before_bytes < wanted_bytes // MS_PER_SECOND:
            return "memory", (
                f"the client reads its answers at less than {RATE_MIN_BYTES_PER_S} bytes a second "
                "while others wait for memory"
            )
        return None
