"""The damaged parts of a log whose replay has ended, and the other node's bytes for them.

Layer 2.
"""

from appliance.store.log.commit_log import CommitLog
from appliance.store.recovery.log_knowledge import is_covered
from appliance.store.recovery.start import Start
from appliance.system.files import File


class DamagedParts:
    """See the module.

    Attributes:
        tried: parts that an earlier start of this process repaired in vain, as log positions.
    """

    def __init__(self, log: CommitLog, start: Start) -> None:
        """Find nothing yet.

        Args:
            log: its segments are open.
            start: holds the replayed state.
        """
        self._log, self._start = log, start
        self._written: dict[File, None] = {}
        self.tried: frozenset[tuple[int, int]] = frozenset()

    def find(self) -> list[tuple[int, int]]:
        """Return the parts that nobody judged lost or repaired yet, as log positions, ascending.

        Bytes of a segment whose file is gone cannot be repaired.
        """
        verdicts, places = list(self._start.state.verdicts), self._log.files.places
        found = [(begin, end) for begin, end, _ in self._start.scan.damage]
        return [
            (begin, end)
            for begin, end in found
            if (begin, end) not in self.tried
            and not is_covered((begin, end), verdicts)
            and any(base <= begin and end <= base + size for base, size in places)
        ]

    @property
    def has_written(self) -> bool:
        """Bytes were replaced: a new start must read and check them."""
        return bool(self._written)

    def write(self, pos: int, data: bytes) -> None:
        """Write bytes of the other node's log over damaged ones.

        Args:
            pos: in a damaged part.
            data: does not cross the end of that part.

        Raises:
            StorageError: they could not be written.
        """
        self._written[self._log.files.write_raw(pos, data)] = None

    def flush(self) -> None:
        """Make durable what was written.

        Raises:
            StorageError: a sync failed, which ends the process.
        """
        for file in self._written:
            file.fdatasync()
