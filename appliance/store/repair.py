"""A slave's store between the end of its replay and its first write, while its log is damaged.

It waits until the master's bytes are in place of the damaged ones; a new start then reads and
checks them. Layer 2.
"""

from collections.abc import Iterator

from appliance.store.recovery.report import Progress
from appliance.store.replayed_log import ReplayedLog


class Repair(ReplayedLog):
    """The log of such a start; see `DamagedLog`."""

    def wait(self) -> Iterator[Progress]:
        """Yield until `give_up`."""
        while not self.is_over:
            yield Progress("repairing", self.end_pos, 0)

    def give_up(self) -> None:
        """Let the start go on with the log as it is, which refuses it."""
        self.is_over = True

    def write(self, pos: int, data: bytes) -> None:
        """Write bytes of the master's log; see `DamagedParts.write`."""
        self.damage.write(pos, data)

    def flush(self) -> None:
        """Make durable what was written; see `DamagedParts.flush`."""
        self.damage.flush()

    @property
    def leaves_clean(self) -> bool:
        """If it ends here, the directory is as a clean stop left it; it is damaged."""
        return False

    @property
    def last_pos(self) -> int:
        """Where the last whole frame begins; -1 if there is none."""
        return self._start.last_frame[0]

    @property
    def last_crc(self) -> int:
        """The CRC of that frame."""
        return self._start.last_frame[1]
