"""The lease of a master of a sync pair, without which it acknowledges and delivers nothing.

The master holds it while its slave answered a BEAT that left less than the lease ago, by the clock
that counts while a machine is suspended. So a slave that stops to answer, and waits for longer than
the lease, is promoted after the master's last acknowledgement, wherever their messages are by then.
No clocks of two machines are compared. Layer 3; does no I/O.
"""

from typing import Final

from appliance.system.clock import Clock
from appliance.units import NS_PER_MS

NO_LEASE: Final = (
    "the slave has not answered for longer than replication.lease_ms, and may be the master by now"
)

MARGIN_PART: Final = 20
MARGIN_MIN_MS: Final = 50
"""How much faster the clock of a slave may run than that of its master: by 5 %, where NTP changes
the rate of a clock by 0.05 %. Rounding to milliseconds is in it."""


def wait_ms(duration_ms: int) -> int:
    """Return how long a slave waits after its last ACK until a lease of its master is over."""
    return duration_ms + max(duration_ms // MARGIN_PART, MARGIN_MIN_MS)


class Lease:
    """Says whether a master may acknowledge; `renew` it, and ask when an answer is released.

    Attributes:
        duration_ms: how long it lasts after a BEAT left.
        is_required: the master needs it: it is not alone, by an operator's word.
        key_until_ms: boottime until which the coordinator's key gives the same right; 0: it does
            not.
    """

    def __init__(self, clock: Clock, duration_ms: int) -> None:
        """Begin without it; the time that counts is that of `clock.boottime_ns`."""
        self._clock = clock
        self._proved_ms: int | None = None
        self._is_ended = False
        self.duration_ms = duration_ms
        self.is_required = True
        self.key_until_ms = 0

    def renew(self, proved_ms: int) -> None:
        """Note that the slave answered a BEAT.

        Args:
            proved_ms: when that BEAT left, in boottime; earlier ones change nothing.
        """
        if self._proved_ms is None or proved_ms > self._proved_ms:
            self._proved_ms = proved_ms

    def end(self) -> None:
        """Let it be over for good, also if it was not required: the master yields."""
        self._is_ended = True

    def left_ms(self) -> int:
        """Return how long it lasts from now; 0 if it is over, or never began."""
        if self._is_ended:
            return 0
        until_ms = self.key_until_ms
        if self._proved_ms is not None:
            until_ms = max(until_ms, self._proved_ms + self.duration_ms)
        return max(0, until_ms - self._clock.boottime_ns() // NS_PER_MS)

    @property
    def is_held(self) -> bool:
        """The master may acknowledge and deliver."""
        return self.left_ms() > 0 if self.is_required else not self._is_ended
