"""How many topics a client may create by naming them. Layer 3; does no I/O and reads no clock.

A request for metadata creates what it names. One that names ten thousand topics must not take the
place of everybody's.
"""

from typing import Final

from appliance.units import MS_PER_SECOND

BURST: Final = 100
"""Topics that an address may create at once."""

PER_S: Final = 5
"""Topics a second that it may create for ever."""

ADDRESSES_MAX: Final = 10_000
"""With more of them, all further ones share one allowance."""


class AutoCreation:
    """The allowance of each address."""

    def __init__(self) -> None:
        self._used: dict[str, tuple[float, int]] = {}
        """Topics created and not made up for yet, and when that was so, monotonic ms."""

    def take(self, address: str, now_ms: int) -> bool:
        """Return whether an address may create a topic now; if so, it counts.

        Args:
            address: IP address of the client.
            now_ms: monotonic ms, not below that of the last call.
        """
        if address not in self._used and len(self._used) >= ADDRESSES_MAX:
            self._forget(now_ms)
            if len(self._used) >= ADDRESSES_MAX:
                address = ""
        used = self._used_by(address, now_ms)
        if used > BURST - 1:
            return False
        self._used[address] = used + 1, now_ms
        return True

    def _used_by(self, address: str, now_ms: int) -> float:
        used, since_ms = self._used.get(address, (0.0, now_ms))
        return max(used - (now_ms - since_ms) * PER_S / MS_PER_SECOND, 0.0)

    def _forget(self, now_ms: int) -> None:
        """Forget the addresses that have their whole allowance again."""
        self._used = {
            each: used for each, used in self._used.items() if self._used_by(each, now_ms) > 0
        }
