"""What a member of the event loop took of its time lately.

Layer 1; does no I/O and reads no clock.
"""

from typing import Final

from appliance.units import NS_PER_MS

PIECE_NS: Final = NS_PER_MS
"""After a longer piece of work its member waits for its turn before it does more."""

SHARE: Final = 0.05
"""Part of the loop's time that a member may take and still come first."""

CREDIT_MAX_NS: Final = 2 * NS_PER_MS
"""What a member may save for a moment with more work."""

DEBT_MAX_NS: Final = 20 * NS_PER_MS
"""A debt is forgotten after this time over SHARE: 0.4 s."""


class LoopShare:
    """What one member took of the loop's time lately."""

    __slots__ = ("_at_ns", "_credit_ns")

    def __init__(self, now_ns: int) -> None:
        """Begin without credit, so that a new connection for each request gains nothing.

        Args:
            now_ns: monotonic ns.
        """
        self._at_ns = now_ns
        self._credit_ns = 0

    @property
    def is_light(self) -> bool:
        """Whether it took less than SHARE."""
        return self._credit_ns > 0

    def spend(self, began_ns: int, ended_ns: int) -> None:
        """Note that it had the loop between two instants (monotonic ns)."""
        gained_ns = int((began_ns - self._at_ns) * SHARE)
        credit_ns = min(self._credit_ns + gained_ns, CREDIT_MAX_NS) - (ended_ns - began_ns)
        self._credit_ns = max(credit_ns, -DEBT_MAX_NS)
        self._at_ns = began_ns
