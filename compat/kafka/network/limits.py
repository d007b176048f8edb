"""Limits of connections: their number, their idle time, and their memory.

This module only decides; compat.kafka.network.connection acts. The reasons are the labels of the
metrics `connections_refused` and `connections_closed`. Layer 3; does no I/O and reads no clock.
"""

from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeAlias, TypeVar

from appliance.config.config import Config
from appliance.units import KIB, MIB, MS_PER_SECOND

SMALL_BYTES: Final = 64 * KIB
"""Memory that a connection may use even when memory is scarce: a usual request and response."""

SCARCE_TIMEOUT_MS: Final = 5_000
"""While memory is scarce, a connection above SMALL_BYTES must make progress within this time."""

LARGE_BYTES: Final = MIB
"""A larger request is read only once its whole size is granted."""

SHARE: Final = 0.5
"""Part of the memory that the large requests of one address may have at a time."""

SMALL_SHARE: Final = 0.2
"""Part of the memory that large requests leave to smaller ones and to responses: a claim costs its
client nothing. With the default limit two of 100 MiB fit beside it."""

RATE_MIN_BYTES_PER_S: Final = MIB
"""A granted request must arrive, and answers of more than SMALL_BYTES must be read, at this rate
while others wait for memory, after SCARCE_TIMEOUT_MS. A large request has a second more than a
small one for each so many bytes."""

LOW_WATER: Final = 0.75
"""Fraction of what large requests leave at which all connections resume; at a higher one few would
progress."""

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


Member = TypeVar("Member")


@dataclass(frozen=True, slots=True)
class Claim:
    """An incomplete request that is larger than LARGE_BYTES: it needs a grant to be read.

    Args:
        number: which request of its connection it is.
        size_bytes: its size.
        address: of its client.
    """

    number: int
    size_bytes: int
    address: str


class MemoryBudget(Generic[Member]):
    """Shares the memory for requests and responses among connections.

    A large request is read only once its whole size is granted, so that half-received ones never
    fill the memory: each one that is being received can be received to its end. Grants are given
    in the order in which the requests began. All requests of one address have at most SHARE of the
    memory at a time, and those of others pass them meanwhile. One request is granted in any case.

    Smaller requests and responses have the memory that grants leave, SMALL_SHARE of it in any case.
    Once that is used up, memory is scarce, and a connection in the middle of a smaller request is
    held back as well: the broker does not read from it until memory is free. One such connection
    may always proceed. This prevents deadlock.

    So the memory exceeds the limit by at most SMALL_BYTES for each connection, the smaller request
    that may proceed, and the large one that is granted in any case.

    Attributes:
        total_bytes: the memory of all connections together, with what is granted.
        reserved_bytes: the part of it that is granted and has not arrived.
        shared_bytes: the part of it that belongs to no single connection.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.total_bytes = 0
        self.reserved_bytes = 0
        self.shared_bytes = 0
        self._charged: dict[Member, int] = {}
        self._waiting: dict[Member, None] = {}  # in order
        self._ahead: Member | None = None
        self._claims: dict[Member, Claim] = {}
        self._granted: dict[Member, int] = {}
        """Who has a grant, and how much of it has not arrived."""
        self._shares: dict[str, int] = {}
        """Granted bytes by address."""
        self._granted_bytes = 0
        """Those of all addresses, arrived or not."""
        self._is_short = False
        """A claim waits because memory lacks, and not for the share of its address."""
        self._queues: dict[str, dict[Member, int]] = {}
        """By address: who waits for a grant, and since when, in order."""
        self._claim_count = 0
        self._set_marks()

    @property
    def is_scarce(self) -> bool:
        """Smaller requests and responses have used up what grants leave them."""
        return self.total_bytes > self._scarce_bytes

    @property
    def is_ample(self) -> bool:
        """They use less than half of it, so that buffers can be kept for reuse."""
        return self.total_bytes < self._ample_bytes

    def is_awaited(self, member: Member) -> bool:
        """Return whether others wait for memory that is granted to a connection.

        Whoever waits for the share of its address waits for requests of that address alone.
        """
        if member not in self._granted:
            return False
        waits_for_all = self._is_short or bool(self._waiting)
        return waits_for_all or self._claims[member].address in self._queues

    def is_held_back(self, member: Member) -> bool:
        return member in self._waiting or (member in self._claims and member not in self._granted)

    def update(
        self, member: Member, held_bytes: int, *, is_large: bool, claim: Claim | None = None
    ) -> list[Member]:
        """Update the memory use of a connection.

        Args:
            member: the connection.
            held_bytes: its memory.
            is_large: more than SMALL_BYTES of an incomplete request have arrived.
            claim: that request, if it is larger than LARGE_BYTES.

        Returns:
            Connections that are no longer held back.
        """
        if (claim is not None or member in self._claims) and claim != self._claims.get(member):
            self._drop_claim(member)
            if claim is not None:
                self._enqueue(member, claim)
        if member in self._granted:
            missing_bytes = max(0, self._claims[member].size_bytes - held_bytes)
            self._reserve(member, missing_bytes)
            held_bytes += missing_bytes
        self.total_bytes += held_bytes - self._charged.get(member, 0)
        self._charged[member] = held_bytes
        if not is_large or claim is not None:
            self._leave(member)
        elif self.is_scarce and member is not self._ahead:
            if self._ahead is None:
                self._ahead = member
            else:
                self._waiting[member] = None
        return self._release()

    def note_shared(self, shared_bytes: int) -> list[Member]:
        """Update what connections hold together. Returns those that are no longer held back."""
        self.total_bytes += shared_bytes - self.shared_bytes
        self.shared_bytes = shared_bytes
        return self._release()

    def forget(self, member: Member) -> list[Member]:
        """Remove a closed connection. Returns those that are no longer held back."""
        self._drop_claim(member)
        self.total_bytes -= self._charged.pop(member, 0)
        self._leave(member)
        return self._release()

    def _leave(self, member: Member) -> None:
        self._waiting.pop(member, None)
        if member is self._ahead:
            self._ahead = None

    def _release(self) -> list[Member]:
        released = self._grant()
        if not self._waiting:
            return released
        if self.total_bytes <= self._low_bytes:
            released += self._waiting
            self._waiting.clear()
            return released
        if self._ahead is not None:
            return released
        self._ahead = next(iter(self._waiting))
        del self._waiting[self._ahead]
        return [*released, self._ahead]

    # Grants

    def _enqueue(self, member: Member, claim: Claim) -> None:
        self._claims[member] = claim
        self._claim_count += 1
        self._queues.setdefault(claim.address, {})[member] = self._claim_count

    def _reserve(self, member: Member, missing_bytes: int) -> None:
        self.reserved_bytes += missing_bytes - self._granted.get(member, 0)
        self._granted[member] = missing_bytes

    def _drop_claim(self, member: Member) -> None:
        claim = self._claims.pop(member, None)
        if claim is None:
            return
        if member not in self._granted:
            self._leave_queue(member, claim)
            return
        self.reserved_bytes -= self._granted.pop(member)
        self._count_granted(claim.address, -claim.size_bytes)

    def _leave_queue(self, member: Member, claim: Claim) -> None:
        queue = self._queues[claim.address]
        del queue[member]
        if not queue:
            del self._queues[claim.address]

    def _count_granted(self, address: str, more_bytes: int) -> None:
        of_address = self._shares.pop(address, 0) + more_bytes
        if of_address:
            self._shares[address] = of_address
        self._granted_bytes += more_bytes
        self._set_marks()

    def _set_marks(self) -> None:
        """Compute which totals count as scarce, low and ample, whenever the grants change."""
        granted_bytes, limit_bytes = self._granted_bytes, self._limit_bytes
        left_bytes = max(limit_bytes - granted_bytes, int(SMALL_SHARE * limit_bytes))
        self._scarce_bytes = granted_bytes + left_bytes
        self._low_bytes = granted_bytes + int(LOW_WATER * left_bytes)
        self._ample_bytes = granted_bytes + left_bytes // 2

    def _grant(self) -> list[Member]:
        """Grant what fits, in order. O(addresses that wait) for each grant."""
        granted: list[Member] = []
        self._is_short = False
        while self._queues and (member := self._find_next()) is not None:
            claim = self._claims[member]
            held_bytes = self._charged.get(member, 0)
            more_bytes = max(0, claim.size_bytes - held_bytes)
            if self._granted and not self._has_room(claim, more_bytes):
                self._is_short = True
                break  # nobody passes it, or it would wait for ever
            self._leave_queue(member, claim)
            self._reserve(member, more_bytes)
            self._count_granted(claim.address, claim.size_bytes)
            self.total_bytes += more_bytes
            self._charged[member] = held_bytes + more_bytes
            granted.append(member)
        return granted

    def _has_room(self, claim: Claim, more_bytes: int) -> bool:
        granted_bytes = self._granted_bytes + claim.size_bytes
        is_left = granted_bytes <= (1 - SMALL_SHARE) * self._limit_bytes
        return is_left and self.total_bytes + more_bytes <= self._limit_bytes

    def _find_next(self) -> Member | None:
        """Return who has waited longest, without the addresses that have their share."""
        firsts = (next(iter(queue.items())) for queue in self._queues.values())
        ready = [(since, member) for member, since in firsts if self._has_share(member)]
        return min(ready, key=lambda each: each[0])[1] if ready else None

    def _has_share(self, member: Member) -> bool:
        claim = self._claims[member]
        used = self._shares.get(claim.address, 0)
        return not used or used + claim.size_bytes <= SHARE * self._limit_bytes
