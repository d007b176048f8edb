"""The log of a master, as its slave reads it. Layer 2."""

from _core.bytes.layout import AT_CRC, FORMAT_VERSION, FRAME_HEADER_SIZE
from _core.log.frames import read_header
from appliance.config.config import Config
from appliance.store.log.commit_log import CommitLog
from appliance.store.state.state import State


class SourceLog:
    """What is committed of a log that a broker appends to."""

    def __init__(self, log: CommitLog, state: State, config: Config) -> None:
        """Read a log that is recovered.

        Args:
            log, state: of the broker.
            config: the size of a segment, and what an acknowledgement means.
        """
        self._log, self._state = log, state
        self._segment_size_bytes = config.segment_size_bytes
        self._acknowledges_received = config.replication == "sync" and config.flush == "async"

    @property
    def acknowledges_received(self) -> bool:
        """Records may be acknowledged that are not on this disk yet."""
        return self._acknowledges_received

    @property
    def cluster(self) -> bytes:
        """Id of the cluster that the log belongs to."""
        return self._state.cluster.bytes

    @property
    def node(self) -> int:
        """Which node of the pair this is: 1 or 2."""
        return self._state.node

    @property
    def epoch(self) -> int:
        """The epoch of new frames."""
        return self._log.tail.epoch

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
        return self._log.start_pos

    @property
    def committed_pos(self) -> int:
        """The end of the whole frames that are written."""
        return self._log.pointers.committed

    @property
    def flushed_pos(self) -> int:
        """The end of what is durable here."""
        return self._log.pointers.flushed

    @property
    def visible_pos(self) -> int:
        """The end of what consumers may read."""
        return self._log.pointers.visible

    def epochs(self) -> list[tuple[int, int]]:
        """Each epoch with its start position, ascending."""
        return self._state.epochs.all()

    def crc_at(self, pos: int) -> int | None:
        """Return the CRC of the frame at a log position; None if no frame begins there.

        Raises:
            StorageError: the disk cannot read it.
        """
        if not self.start_pos <= pos < self.committed_pos:
            return None
        found = self._log.read_header(pos)
        if len(found) < FRAME_HEADER_SIZE or read_header(found)["position"] != pos:
            return None
        return int.from_bytes(found[AT_CRC:], "big")

    def read(self, pos: int, size: int) -> bytes:
        """Return bytes of the log, to the end of a segment at most; may run on any thread.

        Args:
            pos: at or above `start_pos`, below `committed_pos`.
            size: at least 1.

        Raises:
            FreedPositionError: the segment was freed meanwhile.
            StorageError: the disk cannot read it.
        """
        return self._log.read(pos, size)
