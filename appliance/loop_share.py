"""What a connection, or all those of one address, took of the loop's time lately.

Layer 1; does no I/O and reads no clock.
"""

from typing import Final
from weakref import WeakValueDictionary

from appliance.units import NS_PER_MS

PIECE_NS: Final = NS_PER_MS
"""After a longer piece of work its member waits for its turn before it does more."""

SHARE: Final = 0.05
"""Part of the loop's time that a member may take and still come first."""

ADDRESS_SHARE: Final = 0.25
"""The same for all connections of an address together: four hundred with a twentieth each would
keep everybody else waiting."""

CREDIT_MAX_NS: Final = 2 * NS_PER_MS
"""What a member may save for a moment with more work."""

DEBT_MAX_NS: Final = 20 * NS_PER_MS
"""A debt is forgotten after this time over the share: 0.4 s, and 0.08 s for an address."""


class LoopShare:
    """What one member took of the loop's time lately."""

    __slots__ = ("__weakref__", "_at_ns", "_credit_ns", "_share")

    def __init__(self, now_ns: int, share: float = SHARE) -> None:
        """Begin without credit, so that a new connection for each request gains nothing.

        Args:
            now_ns: monotonic ns.
            share: part of the loop's time that is little, from 0 to 1.
        """
        self._at_ns = now_ns
        self._share = share
        self._credit_ns = 0

    @property
    def is_light(self) -> bool:
        """Whether it took less than its share."""
        return self._credit_ns > 0

    def spend(self, began_ns: int, ended_ns: int) -> None:
        """Note that it had the loop between two instants (monotonic ns)."""
        gained_ns = int((began_ns - self._at_ns) * self._share)
        credit_ns = min(self._credit_ns + gained_ns, CREDIT_MAX_NS) - (ended_ns - began_ns)
        self._credit_ns = max(credit_ns, -DEBT_MAX_NS)
        self._at_ns = began_ns


class AddressShares:
    """The shares of addresses that have connections."""

    def __init__(self) -> None:
        """Begin without addresses."""
        self._shares: WeakValueDictionary[str, LoopShare] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._shares)

    def of(self, address: str, now_ns: int) -> LoopShare:
        """Return the share of an address, which lasts as long as a connection of it refers to it.

        Args:
            address: of clients.
            now_ns: monotonic ns.
        """
        share = self._shares.get(address)
        if share is None:
            share = self._shares[address] = LoopShare(now_ns, ADDRESS_SHARE)
        return share
