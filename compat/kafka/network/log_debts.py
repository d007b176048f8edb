"""What addresses owe because of what they write to the log, but for ordinary records.

A batch with delayed records is stored unpacked, so a kilobyte may become 4 MB of log, and everybody
else waits while such a batch goes to the disk. What the log takes of a batch beyond
AMPLIFICATION_MAX times its size (`_core.paths.produce`) is a debt of the client's address, and so
is what it takes of commits. Up to CREDIT_BYTES nobody waits for it. Layer 3; does no I/O and no
clock.
"""

from typing import Final

from appliance.units import MIB, MS_PER_SECOND, NS_PER_MS

PAID_BYTES: Final = MIB
"""What an address pays off in a second: one batch of 4 MB in four, which p99 does not see."""

CREDIT_BYTES: Final = 8 * MIB
"""Two batches of the default limit."""

DEBTORS_MAX: Final = 1_000
"""When there are more, those that owe nothing any more are forgotten."""

_NS_PER_SECOND: Final = MS_PER_SECOND * NS_PER_MS
_CREDIT_NS: Final = CREDIT_BYTES * _NS_PER_SECOND // PAID_BYTES


class LogDebts:
    """Who owes how much."""

    def __init__(self) -> None:
        self._paid_ns: dict[str, int] = {}
        """When an address owes nothing any more, monotonic."""

    def charge(self, address: str, size: int, now_ns: int) -> None:
        """Add so many bytes to what an address owes.

        Args:
            address: of the client.
            size: bytes, more than 0.
            now_ns: monotonic ns.
        """
        if len(self._paid_ns) >= DEBTORS_MAX:
            self._paid_ns = {name: ns for name, ns in self._paid_ns.items() if ns > now_ns}
        begin_ns = max(now_ns, self._paid_ns.get(address, 0))
        self._paid_ns[address] = begin_ns + size * _NS_PER_SECOND // PAID_BYTES

    def wait_ns(self, address: str, now_ns: int) -> int:
        """Return for how long an address owes more than its credit, ns; 0 if it does not."""
        if not self._paid_ns:
            return 0
        return max(0, self._paid_ns.get(address, 0) - _CREDIT_NS - now_ns)
