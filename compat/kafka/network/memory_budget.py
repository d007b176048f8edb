"""The memory for requests and responses, and who may have how much of it.

This module only decides; `compat.kafka.network.connection` acts. Layer 3; does no I/O and reads no
clock.
"""

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from appliance.units import MIB
from compat.kafka.network.memory_lines import MemoryLines

LARGE_BYTES: Final = MIB
"""A larger request is read only once its whole size is granted."""

SHARE: Final = 0.5
"""Part of the memory that the large requests of one address may have at a time, and part of what
they leave that its smaller ones may have once memory runs low."""

SMALL_SHARE: Final = 0.2
"""Part of the memory that large requests leave to smaller ones and to responses: a claim costs its
client nothing. With the default limit two of 100 MiB fit beside it."""

LOW_WATER: Final = 0.75
"""Fraction of what large requests leave at which all connections resume; at a higher one few would
progress."""

AHEAD_MAX: Final = 32
"""Of so many addresses a smaller request is read although memory is scarce."""

HIGH_WATER: Final = 0.9
"""Fraction of it from which on memory runs low: the rest is for addresses below their share."""

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
    held back as well: the broker does not read from it until memory is free. Before that, while
    memory runs low, those of addresses that have SHARE of it are. One connection of an address may
    proceed (`MemoryLines`).

    What the buffer of a smaller request grows by is charged before it is read. So the memory
    exceeds the limit by at most SMALL_BYTES for each connection, a smaller request of each of
    AHEAD_MAX addresses, and the large one that is granted in any case.

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
        self._growths: dict[Member, int] = {}
        """What those that wait for memory take once they are read again."""
        self._lines: MemoryLines[Member] = MemoryLines(AHEAD_MAX)
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
        waits_for_all = self._is_short or self._lines.has_waiting
        return waits_for_all or self._claims[member].address in self._queues

    def is_held_back(self, member: Member) -> bool:
        is_ungranted = member in self._claims and member not in self._granted
        return is_ungranted or self._lines.is_waiting(member)

    def update(
        self,
        member: Member,
        held_bytes: int,
        address: str,
        *,
        is_large: bool,
        growth_bytes: int = 0,
        is_whole: bool = False,
        claim: Claim | None = None,
    ) -> list[Member]:
        """Update the memory use of a connection.

        Args:
            member: the connection.
            address: of its client.
            held_bytes: its memory.
            is_large: more than SMALL_BYTES are of a request that is incomplete, or waits for the
                broker. Not of one that waits for other clients: theirs may be held back.
            growth_bytes: what the next read takes of an incomplete request that is large.
            is_whole: nothing more of it has to be read.
            claim: an incomplete request, if it is larger than LARGE_BYTES.

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
            self._leave_line(member)
        elif is_whole:
            self._growths.pop(member, None)
            was_waiting = self._lines.hold(member, address, held_bytes)
            return self._release() + [member] * was_waiting
        else:
            self._read_or_wait(member, address, held_bytes, growth_bytes)
        return self._release()

    def _read_or_wait(
        self, member: Member, address: str, held_bytes: int, growth_bytes: int
    ) -> None:
        """Charge what is read next, unless it has to wait for memory."""
        is_low = self.total_bytes + growth_bytes > self._high_bytes
        is_scarce = self.total_bytes + growth_bytes > self._scarce_bytes
        will_hold_bytes = held_bytes + growth_bytes
        self._lines.hold_or_wait(
            member, address, will_hold_bytes, is_low=is_low, is_scarce=is_scarce
        )
        self._growths[member] = growth_bytes
        if not self._lines.is_waiting(member):
            self._charge_growth(member)

    def _charge_growth(self, member: Member) -> None:
        growth_bytes = self._growths.pop(member)
        self._charged[member] += growth_bytes
        self.total_bytes += growth_bytes

    def _leave_line(self, member: Member) -> None:
        self._growths.pop(member, None)
        self._lines.leave(member)

    def note_shared(self, shared_bytes: int) -> list[Member]:
        """Update what connections hold together. Returns those that are no longer held back."""
        self.total_bytes += shared_bytes - self.shared_bytes
        self.shared_bytes = shared_bytes
        return self._release()

    def forget(self, member: Member) -> list[Member]:
        """Remove a closed connection. Returns those that are no longer held back."""
        self._drop_claim(member)
        self.total_bytes -= self._charged.pop(member, 0)
        self._leave_line(member)
        return self._release()

    def _release(self) -> list[Member]:
        released = self._grant()
        while (member := self._release_one()) is not None:
            self._charge_growth(member)
            released.append(member)
        return released

    def _release_one(self) -> Member | None:
        return self._lines.release(has_room=self.total_bytes <= self._low_bytes)

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
        """Compute what each total means, whenever the grants change."""
        granted_bytes, limit_bytes = self._granted_bytes, self._limit_bytes
        left_bytes = max(limit_bytes - granted_bytes, int(SMALL_SHARE * limit_bytes))
        self._scarce_bytes = granted_bytes + left_bytes
        self._low_bytes = granted_bytes + int(LOW_WATER * left_bytes)
        self._high_bytes = granted_bytes + int(HIGH_WATER * left_bytes)
        self._lines.share_bytes = int(SHARE * left_bytes)
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
