"""The damaged parts of a log whose replay has ended, and the other node's bytes for them.

Layer 2.
"""

from appliance.store.log.data_files import DataFiles
from appliance.store.recovery.log_knowledge import is_covered
from appliance.store.recovery.lost import keep
from appliance.store.recovery.start import Start
from appliance.system.files import File


class DamagedParts:
    """See the module.

    Attributes:
        tried: parts that an earlier start of this process repaired in vain, as log positions.
    """

    def __init__(self, files: DataFiles, start: Start) -> None:
        """Find nothing yet.

        Args:
            files: the segments are open.
            start: holds the replayed state.
        """
        self._files, self._log, self._start = files, files.log, start
        self._written: dict[File, None] = {}
        self.tried: frozenset[tuple[int, int]] = frozenset()

    def find(self) -> list[tuple[int, int]]:
        """Return the parts that nobody judged lost or repaired yet, as log positions, ascending.

        Each is in one segment. Bytes of a segment whose file is gone cannot be repaired.
        """
        verdicts, places = list(self._start.state.verdicts), self._log.files.places
        parts = [
            (max(begin, base), min(end, base + size))
            for begin, end, _ in self._start.scan.damage
            if not is_covered((begin, end), verdicts)
            for base, size in places
        ]
        return [part for part in parts if part[0] < part[1] and part not in self.tried]

    @property
    def has_written(self) -> bool:
        """Bytes were replaced: a new start must read and check them."""
        return bool(self._written)

    def write(self, pos: int, data: bytes) -> None:
        """Write bytes of the other node's log over damaged ones.

        What stood there is kept under `lost/` first: if the other node has the same part damaged in
        another place, people can make one of two.

        Args:
            pos: in a damaged part.
            data: does not cross the end of that part.

        Raises:
            StorageError: they could not be written.
        """
        if not self._written:
            for begin, end in self.find():
                keep(self._files.fs, self._files.paths, self._log, (begin, end), self._epoch)
        self._written[self._log.files.write_raw(pos, data)] = None

    @property
    def _epoch(self) -> int:
        return max(self._start.scan.epoch, 0)

    def flush(self) -> None:
        """Make durable what was written.

        Raises:
            StorageError: a sync failed, which ends the process.
        """
        for file in self._written:
            file.fdatasync()
