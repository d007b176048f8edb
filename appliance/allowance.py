"""What each address may have of a limit, and how often it may do a thing: at once, and for ever.

What many clients may do now and then, one client must not do without end. Layer 1; does no I/O and
reads no clock.
"""

from typing import Final

from appliance.units import MS_PER_SECOND

ADDRESSES_MAX: Final = 10_000
"""With more of them, all further ones share one allowance."""


def share_max(limit: int, others: int) -> int:
    """Return how much of a limit one address may have: half of what others leave, rounded up.

    So somebody who has nothing finds room, and the last thing is not out of reach.
    `_core.paths.timer_quota` counts in the same way.

    Args:
        limit: of all together.
        others: what others have, and what is nobody's.
    """
    return (limit - others + 1) // 2


class Allowance:
    """The allowance of each address.

    Args:
        burst: how often an address may do it at once, 1 or more.
        per_s: how often it may do it in each second, for ever.
    """

    def __init__(self, burst: int, per_s: int) -> None:
        self._burst = burst
        self._per_s = per_s
        self._used: dict[str, tuple[float, int]] = {}
        """What was taken and is not made up for yet, and when that was so, monotonic ms."""

    @property
    def remembered_count(self) -> int:
        """Addresses that are remembered, at most ADDRESSES_MAX and one."""
        return len(self._used)

    def take(self, address: str, now_ms: int) -> bool:
        """Return whether an address may do it now; if so, it counts.

        Args:
            address: IP address of the client.
            now_ms: monotonic ms, not below that of the last call.
        """
        if address not in self._used and len(self._used) >= ADDRESSES_MAX:
            self._forget(now_ms)
            if len(self._used) >= ADDRESSES_MAX:
                address = ""
        used = self._used_by(address, now_ms)
        if used > self._burst - 1:
            return False
        self._used[address] = used + 1, now_ms
        return True

    def _used_by(self, address: str, now_ms: int) -> float:
        used, since_ms = self._used.get(address, (0.0, now_ms))
        return max(used - (now_ms - since_ms) * self._per_s / MS_PER_SECOND, 0.0)

    def _forget(self, now_ms: int) -> None:
        """Forget the addresses that have their whole allowance again."""
        self._used = {
            each: used for each, used in self._used.items() if self._used_by(each, now_ms) > 0
        }
