"""What a start knows of its log after the replay, for the other node of a pair. Layer 2."""

from _core.bytes.layout import FORMAT_VERSION
from appliance.store.checkpoint import NO_CLUSTER
from appliance.store.damaged_parts import DamagedParts
from appliance.store.log.data_files import DataFiles
from appliance.store.recovery.start import Start


class ReplayedLog:
    """The log of a start that waits before its first write.

    Attributes:
        damage: the damaged parts of the log.
        is_over: the start goes on.
    """

    def __init__(
        self, files: DataFiles, start: Start, *, node: int, segment_size_bytes: int
    ) -> None:
        """Take over a start whose replay has ended.

        Args:
            files: the directory; the abort file exists.
            start: holds the replayed state.
            node: which node of the pair this is.
            segment_size_bytes: of each segment.
        """
        self._log, self._start = files.log, start
        self._node, self._segment_size_bytes = node, segment_size_bytes
        self.damage = DamagedParts(files, start)
        self.is_over = False

    def damaged(self) -> list[tuple[int, int]]:
        """Return the damaged parts of the log; see `DamagedParts.find`."""
        return self.damage.find()

    @property
    def has_log(self) -> bool:
        """There is a whole frame."""
        return self._start.last_frame[0] >= 0

    @property
    def cluster(self) -> bytes:
        """Id of the cluster that the log belongs to; zeros if it is empty."""
        return (self._start.state.cluster if self.has_log else NO_CLUSTER).bytes

    @property
    def node(self) -> int:
        """Which node of the pair this is: 1 or 2."""
        return self._node

    @property
    def segment_size_bytes(self) -> int:
        return self._segment_size_bytes

    @property
    def format_version(self) -> int:
        """The version of the frames."""
        return FORMAT_VERSION

    @property
    def start_pos(self) -> int:
        """Log position of the first byte that is kept."""
        return self._log.start_pos if self.has_log else self.end_pos

    @property
    def end_pos(self) -> int:
        """The end of the last whole frame."""
        return self._start.scan.pos

    def epochs(self) -> list[tuple[int, int]]:
        """Each epoch with its start position, ascending."""
        return self._start.state.epochs.all()
