"""A master's store between the end of its replay and its first write: it waits, and shows its log.

A node of a pair that was stopped does not know what happened meanwhile: the other node may have
been promoted. So nothing of the log is cut, begun or judged before the logs of both nodes were
compared, or somebody said to go on without that. Layer 2.
"""

from collections.abc import Iterator

from _core.bytes.layout import AT_CRC, FORMAT_VERSION, FRAME_HEADER_SIZE
from _core.log.frames import read_header
from appliance.config.config import Config
from appliance.store.log.commit_log import CommitLog
from appliance.store.recovery.report import Progress
from appliance.store.recovery.start import Start

NO_CLUSTER_BYTES = bytes(16)


class Comparison:
    """The log of a start whose replay has ended, as the other node sees it; see `SourceLog`.

    Attributes:
        is_over: set by `go_on`; the start then goes on.
    """

    def __init__(self, log: CommitLog, start: Start, *, config: Config, node: int) -> None:
        """Wait.

        Args:
            log: its segments are open.
            start: holds the replayed state.
            config: the size of a segment, and what an acknowledgement means.
            node: which node of the pair this is.
        """
        self._log, self._start = log, start
        self._segment_size_bytes, self._node = config.segment_size_bytes, node
        self._acknowledges_received = config.replication == "sync" and config.flush == "async"
        self.is_over = False

    def wait(self) -> Iterator[Progress]:
        """Yield until `go_on`."""
        while not self.is_over:
            yield Progress("comparing", self.committed_pos, 0)

    def go_on(self) -> None:
        """Let the start go on: this log is the one that counts."""
        self.is_over = True

    @property
    def has_log(self) -> bool:
        """There is a whole frame."""
        return self._start.last_frame[0] >= 0

    @property
    def acknowledges_received(self) -> bool:
        """Records may be acknowledged that are not on this disk yet."""
        return self._acknowledges_received

    @property
    def cluster(self) -> bytes:
        """Id of the cluster that the log belongs to; zeros if it is empty."""
        return self._start.state.cluster.bytes if self.has_log else NO_CLUSTER_BYTES

    @property
    def node(self) -> int:
        """Which node of the pair this is: 1 or 2."""
        return self._node

    @property
    def epoch(self) -> int:
        """The epoch of the last frame."""
        return max(self._start.scan.epoch, 0)

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
        return self._log.start_pos if self.has_log else self.committed_pos

    @property
    def committed_pos(self) -> int:
        """The end of the last whole frame."""
        return self._start.scan.pos

    @property
    def flushed_pos(self) -> int:
        """The end of what is known to be durable."""
        return min(max(self._start.flushed, 0), self.committed_pos)

    @property
    def visible_pos(self) -> int:
        """Nothing may be read yet."""
        return 0

    def epochs(self) -> list[tuple[int, int]]:
        """Each epoch with its start position, ascending."""
        return self._start.state.epochs.all()

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
        """Return bytes of the log; a comparison streams none."""
        return self._log.read(pos, size)
