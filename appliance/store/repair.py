"""A slave's store between the end of its replay and its first write, while its log is damaged.

It waits until the master's bytes are in place of the damaged ones; a new start then reads and
checks them. Layer 2.
"""

from collections.abc import Iterator

from _core.bytes.layout import FORMAT_VERSION
from appliance.store.damaged_parts import DamagedParts
from appliance.store.log.data_files import DataFiles
from appliance.store.recovery.report import Progress
from appliance.store.recovery.start import Start

NO_CLUSTER_BYTES = bytes(16)


class Repair:
    """The log of such a start, as it introduces itself; see `HeldLog`.

    Attributes:
        damage: the damaged parts of the log.
        is_over: set by `give_up`; the start then goes on, and refuses the log.
    """

    def __init__(self, files: DataFiles, start: Start, *, node: int, segment_size: int) -> None:
        """Wait.

        Args:
            files: the directory; the abort file exists.
            start: holds the replayed state.
            node: which node of the pair this is.
            segment_size: in bytes.
        """
        self._log, self._start = files.log, start
        self._node, self._segment_size = node, segment_size
        self.damage = DamagedParts(files, start)
        self.is_over = False

    def wait(self) -> Iterator[Progress]:
        """Yield until `give_up`."""
        while not self.is_over:
            yield Progress("repairing", self.end_pos, 0)

    def damaged(self) -> list[tuple[int, int]]:
        """Return the damaged parts; see `DamagedParts.find`."""
        return self.damage.find()

    def write(self, pos: int, data: bytes) -> None:
        """Write bytes of the master's log; see `DamagedParts.write`."""
        self.damage.write(pos, data)

    def flush(self) -> None:
        """Make durable what was written; see `DamagedParts.flush`."""
        self.damage.flush()

    def give_up(self) -> None:
        """Let the start go on with the log as it is."""
        self.is_over = True

    @property
    def leaves_clean(self) -> bool:
        """If it ends here, the directory is as a clean stop left it; it is damaged."""
        return False

    @property
    def cluster(self) -> bytes:
        """Id of the cluster that the log belongs to; zeros if it is empty."""
        return self._start.state.cluster.bytes if self.last_pos >= 0 else NO_CLUSTER_BYTES

    @property
    def node(self) -> int:
        """Which node of the pair this is: 1 or 2."""
        return self._node

    @property
    def segment_size_bytes(self) -> int:
        return self._segment_size

    @property
    def format_version(self) -> int:
        """The highest version of frames that this node reads."""
        return FORMAT_VERSION

    @property
    def start_pos(self) -> int:
        """Log position of the first byte that is kept."""
        return self._log.start_pos if self.last_pos >= 0 else self.end_pos

    @property
    def end_pos(self) -> int:
        """The end of the last whole frame."""
        return self._start.scan.pos

    @property
    def last_pos(self) -> int:
        """Where the last whole frame begins; -1 if there is none."""
        return self._start.last_frame[0]

    @property
    def last_crc(self) -> int:
        """The CRC of that frame."""
        return self._start.last_frame[1]

    def epochs(self) -> list[tuple[int, int]]:
        """Each epoch with its start position, ascending."""
        return self._start.state.epochs.all()
