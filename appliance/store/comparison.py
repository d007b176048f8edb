"""A master's store between the end of its replay and its first write: it waits, and shows its log.

A node of a pair that was stopped does not know what happened meanwhile: the other node may have
been promoted. So nothing of the log is cut, begun or judged before the logs of both nodes were
compared, or somebody said to go on without that. Layer 2.
"""

from collections.abc import Callable, Iterator
from functools import partial

from _core.bytes.layout import AT_CRC, FORMAT_VERSION, FRAME_HEADER_SIZE
from _core.log.frames import read_header
from appliance.config.config import Config
from appliance.store.damaged_parts import DamagedParts
from appliance.store.follower import Follower
from appliance.store.log.data_files import DataFiles
from appliance.store.log.segment import FreedSegment
from appliance.store.node_number import choose_node
from appliance.store.recovery.decisions import Stop
from appliance.store.recovery.report import Progress
from appliance.store.recovery.start import Start
from appliance.store.role_file import RoleFile

NO_CLUSTER_BYTES = bytes(16)


class Comparison:
    """The log of a start whose replay has ended, as the other node sees it; see `SourceLog`.

    Attributes:
        is_over: set by `go_on`; the start then goes on.
        damage: the damaged parts of the log.
    """

    def __init__(
        self,
        files: DataFiles,
        start: Start,
        left: list[FreedSegment],
        *,
        config: Config,
        role: RoleFile,
        stop: Stop,
    ) -> None:
        """Wait.

        Args:
            files: the directory; the abort file exists.
            start: holds the replayed state.
            left: freed segments, ascending, whose files could not be removed yet.
            config: says which node this is, the size of a segment, and what an acknowledgement is.
            role: what it is.
            stop: how the last broker stopped.
        """
        self._log, self._start = files.log, start
        node = choose_node(files.fs, files.paths, config)
        self._make_taker: Callable[[], Follower] = partial(
            Follower, files, start, left, config=config, node=node, role=role
        )
        self._taker: Follower | None = None
        self._was_clean = stop is Stop.CLEAN
        self.damage = DamagedParts(files, start)
        self._segment_size_bytes, self._node = config.segment_size_bytes, node
        self._acknowledges_received = config.replication == "sync" and config.flush == "async"
        self.is_over = False

    def wait(self) -> Iterator[Progress]:
        """Yield until `go_on`."""
        while not self.is_over:
            yield Progress("comparing", self.committed_pos, 0)

    def go_on(self) -> None:
        """Let the start go on: this log is the one that counts.

        Raises:
            StorageError: what was taken from the slave could not be made durable.
        """
        if self._taker is not None:
            self._taker.end()
        self.is_over = True

    @property
    def has_taken(self) -> bool:
        """The log has something that it had lost, from the slave."""
        return self._taker is not None

    @property
    def wants_start(self) -> bool:
        """Damaged bytes were replaced: a new start must read them."""
        return self.damage.has_written

    @property
    def leaves_clean(self) -> bool:
        """If it ends here, the directory is as a clean stop left it."""
        return self._was_clean and not (self.has_taken or self.wants_start)

    def damaged(self) -> list[tuple[int, int]]:
        """Return the damaged parts of the log; see `DamagedParts.find`."""
        return self.damage.find()

    def write(self, pos: int, data: bytes) -> None:
        """Write bytes of the slave's log, which this node wrote and lost, in a power cut say.

        Args:
            pos: the end of the log, or of the last such bytes; or in a damaged part.
            data: may begin and end inside a frame, and crosses no segment's end.

        Raises:
            ReplicaError: they do not follow, or are not frames of this log.
            LogRefusedError: the log is damaged further below.
            StorageError: they could not be written.
        """
        taker = self._taker
        if pos < self.committed_pos:
            self.damage.write(pos, data)
            return
        if taker is None:
            taker = self._taker = self._make_taker()
        elif pos == taker.end_pos < taker.received_pos:
            taker.truncate(pos)  # the last connection ended inside a frame
        taker.append(pos, data)

    def flush(self) -> None:
        """Make durable what was written.

        Raises:
            StorageError: a sync failed, which ends the process.
        """
        self.damage.flush()
        if self._taker is not None:
            self._taker.flush()

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
        """Return bytes of the log, unchecked, for a slave that repairs its own."""
        base, length = next(each for each in self._log.files.places if each[0] <= pos < sum(each))
        memory = bytearray(min(size, base + length - pos, self.committed_pos - pos))
        found = self._log.read_some(pos, memoryview(memory))
        return bytes(memory[:found])
