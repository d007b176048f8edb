"""Limits of connections: their number, their idle time, and their memory.

This module only decides; compat.kafka.network.connection acts. The reasons are the labels of the
metrics `connections_refused` and `connections_closed`. Layer 3; does no I/O and reads no clock.
"""

from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeAlias, TypeVar

from appliance.config.config import Config
from appliance.units import KIB

SMALL_BYTES: Final = 64 * KIB
"""Memory that a connection may use even when memory is scarce: a usual request and response."""

SCARCE_TIMEOUT_MS: Final = 5_000
"""While memory is scarce, a connection above SMALL_BYTES must make progress within this time."""

LOW_WATER: Final = 0.75
"""Fraction of the limit at which all connections resume; at a higher one few would progress."""

RefusalReason: TypeAlias = Literal["count", "address"]
CloseReason: TypeAlias = Literal["idle", "slow_request", "slow_reader", "memory", "request"]


class Admission:
    """Counts the connections, in total and by address."""

    def __init__(self, config: Config) -> None:
        self._count_max = config.connection_count_max
        self._count_max_per_address = config.connection_count_max_per_address
        self._count = 0
        self._by_address: dict[str, int] = {}

    def admit(self, address: str) -> RefusalReason | None:
        """Count a connection from an address, or return which limit refuses it."""
        if self._count >= self._count_max:
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
    """

    requests: int
    partial_bytes: int
    taken_bytes: int
    unsent_bytes: int
    is_owed: bool
    is_held_back: bool
    is_large: bool


class IdleDetector:
    """Detects connections without progress by regular checks."""

    __slots__ = ("_config", "_moved_ms", "_partial_since_ms", "_seen")

    def __init__(self, config: Config, now_ms: int) -> None:
        """Start for a connection opened at `now_ms` (monotonic ms)."""
        self._config = config
        self._moved_ms = now_ms
        self._partial_since_ms: int | None = None
        self._seen = (0, 0, 0)

    def still_ms(self, now_ms: int) -> int:
        """Return the time without progress as of the last check, ms."""
        return now_ms - self._moved_ms

    def judge(
        self, now_ms: int, sight: ConnectionStats, *, is_scarce: bool
    ) -> tuple[CloseReason, str] | None:
        """Return why the connection must be closed, as a label and a message, or None.

        Args:
            now_ms: monotonic ms, not below that of the last call.
            sight: the current state of the connection.
            is_scarce: memory is scarce.
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
        if since_ms is not None and now_ms - since_ms > config.receive_timeout_ms:
            return "slow_request", (
                f"a request did not arrive completely within network.receive_timeout_ms = "
                f"{config.receive_timeout_ms}"
            )
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


Member = TypeVar("Member")


class MemoryBudget(Generic[Member]):
    """Shares the memory for requests and responses among connections.

    Once it is used up, a connection in the middle of a large request is held back: the broker does
    not read from it until memory is free. One such connection may always proceed, however little
    memory is free, so that its request completes and frees memory. This prevents deadlock.

    Attributes:
        total_bytes: the memory of all connections together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.total_bytes = 0
        self._held: dict[Member, int] = {}
        self._waiting: dict[Member, None] = {}  # in order
        self._ahead: Member | None = None

    @property
    def is_scarce(self) -> bool:
        return self.total_bytes > self._limit_bytes

    @property
    def is_ample(self) -> bool:
        """Less than half is used, so that buffers can be kept for reuse."""
        return self.total_bytes < self._limit_bytes // 2

    def is_held_back(self, member: Member) -> bool:
        return member in self._waiting

    def update(self, member: Member, held_bytes: int, *, is_large: bool) -> list[Member]:
        """Update the memory use of a connection.

        Args:
            member: the connection.
            held_bytes: its memory.
            is_large: more than SMALL_BYTES of an incomplete request have arrived.

        Returns:
            Connections that are no longer held back.
        """
        self.total_bytes += held_bytes - self._held.get(member, 0)
        self._held[member] = held_bytes
        if not is_large:
            self._leave(member)
        elif self.is_scarce and member is not self._ahead:
            if self._ahead is None:
                self._ahead = member
            else:
                self._waiting[member] = None
        return self._release()

    def forget(self, member: Member) -> list[Member]:
        """Remove a closed connection. Returns those that are no longer held back."""
        self.total_bytes -= self._held.pop(member, 0)
        self._leave(member)
        return self._release()

    def _leave(self, member: Member) -> None:
        self._waiting.pop(member, None)
        if member is self._ahead:
            self._ahead = None

    def _release(self) -> list[Member]:
        if not self._waiting:
            return []
        if self.total_bytes <= LOW_WATER * self._limit_bytes:
            released = list(self._waiting)
            self._waiting.clear()
            return released
        if self._ahead is not None:
            return []
        self._ahead = next(iter(self._waiting))
        del self._waiting[self._ahead]
        return [self._ahead]
