"""Who waits for memory, in a line for each address, of which the first may go ahead.

Used for requests of up to 1 MiB that are being received (`compat.kafka.network.memory_budget`), and
for long answers (`compat.kafka.network.answer_turns`). Layer 3; does no I/O and reads no clock.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Member = TypeVar("Member")


@dataclass(slots=True)
class _Line(Generic[Member]):
    """The connections of one address that hold much memory, or wait for it."""

    held_bytes: dict[Member, int] = field(default_factory=dict)
    total_bytes: int = 0
    waiting: OrderedDict[Member, None] = field(default_factory=OrderedDict)
    ahead: Member | None = None


class MemoryLines(Generic[Member]):
    """The connections that hold much memory, or wait for it, by address.

    Of each address with connections that wait one goes ahead until it is done, whoever else waits:
    this prevents deadlock. Of too many addresses, those that have waited longest come first.

    Attributes:
        share_bytes: what an address may have while others need memory too.
    """

    def __init__(self, ahead_max: int) -> None:
        """Begin without connections and without a share.

        Args:
            ahead_max: of so many addresses one goes ahead at a time.
        """
        self.share_bytes = 0
        self._ahead_max = ahead_max
        self._addresses: dict[Member, str] = {}
        self._lines: dict[str, _Line[Member]] = {}
        self._waiting: OrderedDict[str, None] = OrderedDict()
        """Addresses of which somebody waits; the first one was not released for longest."""
        self._leaderless: OrderedDict[str, None] = OrderedDict()
        """Those of them of which nobody goes ahead."""
        self._ahead_count = 0

    @property
    def has_waiting(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    def is_waiting(self, member: Member) -> bool:
        """Return whether a connection waits."""
        address = self._addresses.get(member)
        return address is not None and member in self._lines[address].waiting

    def hold(self, member: Member, address: str, held_bytes: int) -> bool:
        """Update a connection that does not have to wait; if it did wait, it goes on.

        Args:
            member: the connection.
            address: of its client.
            held_bytes: its memory.

        Returns:
            Whether it did wait.
        """
        line = self._note(member, address, held_bytes)
        was_waiting = member in line.waiting
        self._stop_waiting(member, address)
        return was_waiting

    def hold_or_wait(
        self, member: Member, address: str, held_bytes: int, *, is_low: bool, is_scarce: bool
    ) -> None:
        """Update a connection; it may have to wait until it is released.

        Args:
            member, address, held_bytes: as of `hold`.
            is_low: little memory is left: an address that has more than its share waits.
            is_scarce: none is left: everybody waits.
        """
        line = self._note(member, address, held_bytes)
        must_wait = is_scarce or (is_low and line.total_bytes > self.share_bytes)
        if must_wait and member != line.ahead and member not in line.waiting:
            line.waiting[member] = None
            self._waiting[address] = None
            if line.ahead is None:
                self._leaderless[address] = None

    def _note(self, member: Member, address: str, held_bytes: int) -> _Line[Member]:
        line = self._lines.get(address)
        if line is None:
            line = self._lines[address] = _Line()
        self._addresses[member] = address
        line.total_bytes += held_bytes - line.held_bytes.get(member, 0)
        line.held_bytes[member] = held_bytes
        return line

    def leave(self, member: Member) -> None:
        """Remove a connection that is done."""
        address = self._addresses.pop(member, None)
        if address is None:
            return
        line = self._lines[address]
        line.total_bytes -= line.held_bytes.pop(member)
        if member == line.ahead:
            line.ahead = None
            self._ahead_count -= 1
        self._stop_waiting(member, address)
        if line.waiting and line.ahead is None:
            self._leaderless[address] = None
        if not line.held_bytes:
            del self._lines[address]

    def _stop_waiting(self, member: Member, address: str) -> None:
        line = self._lines[address]
        line.waiting.pop(member, None)
        if not line.waiting:
            self._waiting.pop(address, None)
            self._leaderless.pop(address, None)

    def release(self, *, has_room: bool) -> Member | None:
        """Return one connection that no longer waits, or None. Call it until it returns None.

        Args:
            has_room: there is memory for it. Addresses take turns. Otherwise only one that goes
                ahead of its address is released.
        """
        if has_room and self._waiting:
            address = next(iter(self._waiting))
            self._waiting.move_to_end(address)
            return self._release_first(address)
        if not self._leaderless or self._ahead_count >= self._ahead_max:
            return None
        address, _ = self._leaderless.popitem(last=False)
        member = self._release_first(address)
        self._lines[address].ahead = member
        self._ahead_count += 1
        return member

    def _release_first(self, address: str) -> Member:
        member = next(iter(self._lines[address].waiting))
        self._stop_waiting(member, address)
        return member
