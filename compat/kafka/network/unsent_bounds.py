"""How much of its answers the kernel takes for a client that has no room for them yet.

A client that reads nothing gets little: what the kernel takes, the loop has copied. For one that
reads fast, each small piece costs a wake-up of the loop and of the client; with 4 MiB a Fetch of
records of 1 KiB costs a quarter less CPU. Only a few connections have that much at a time, so the
memory of the kernel stays bounded. Layer 3; does no I/O and reads no clock.
"""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from appliance.units import KIB, MIB, NS_PER_MS

UNSENT_BYTES: Final = 256 * KIB
"""For a connection that is new or slow. By default the kernel takes 2.5 MB."""

WIDE_UNSENT_BYTES: Final = 4 * MIB
"""For one that reads fast."""

WIDE_COUNT_MAX: Final = 16
"""So many connections have it at a time."""

FAST_NS: Final = 100 * NS_PER_MS
"""A client reads fast if its transport, once full, is empty again after this long."""

KEPT_NS: Final = 1_000 * NS_PER_MS
"""Another connection may take the place of one that was not found to read fast for this long."""

Member = TypeVar("Member")


class UnsentBounds(Generic[Member]):
    """The connections with the larger bound."""

    def __init__(self, set_bound: Callable[[Member, int], None]) -> None:
        """Begin with none.

        Args:
            set_bound: sets the bound of a connection, in bytes.
        """
        self._set_bound = set_bound
        self._fast_ns: dict[Member, int] = {}
        """When each was last found to read fast; the oldest comes first."""

    def note_drained(self, member: Member, began_ns: int, ended_ns: int) -> None:
        """Note that a transport was full from one instant to another (monotonic ns)."""
        if ended_ns - began_ns > FAST_NS:
            self._narrow(member)
            return
        if self._fast_ns.pop(member, None) is None:
            if not self._has_place(ended_ns):
                return
            self._set_bound(member, WIDE_UNSENT_BYTES)
        self._fast_ns[member] = ended_ns

    def forget(self, member: Member) -> None:
        """Remove a closed connection."""
        self._fast_ns.pop(member, None)

    def _has_place(self, now_ns: int) -> bool:
        if len(self._fast_ns) < WIDE_COUNT_MAX:
            return True
        oldest = next(iter(self._fast_ns))
        if now_ns - self._fast_ns[oldest] < KEPT_NS:
            return False
        self._narrow(oldest)
        return True

    def _narrow(self, member: Member) -> None:
        if self._fast_ns.pop(member, None) is not None:
            self._set_bound(member, UNSENT_BYTES)
