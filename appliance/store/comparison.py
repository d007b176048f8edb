"""A master's store between the end of its replay and its first write: it waits, and shows its log.

A node of a pair that was stopped does not know what happened meanwhile: the other node may have
been promoted. So nothing of the log is cut, begun or judged before the logs of both nodes were
compared, or somebody said to go on without that. Layer 2.
"""

from collections.abc import Callable, Iterator
from functools import partial

from _core.bytes.layout import AT_CRC, FRAME_HEADER_SIZE
from _core.log.frames import read_header
from appliance.config.config import Config
from appliance.store.follower import Follower
from appliance.store.log.data_files import DataFiles
from appliance.store.log.segment import FreedSegment
from appliance.store.node_number import choose_node
from appliance.store.recovery.decisions import Stop
from appliance.store.recovery.report import Progress
from appliance.store.recovery.start import Start
from appliance.store.replayed_log import ReplayedLog
from appliance.store.role_file import RoleFile


class Comparison(ReplayedLog):
    """The log of such a start, as the other node sees it; see `SourceLog`."""

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
        node = choose_node(files.fs, files.paths, config)
        super().__init__(files, start, node=node, segment_size_bytes=config.segment_size_bytes)
        self._make_taker: Callable[[], Follower] = partial(
            Follower, files, start, left, config=config, node=node, role=role
        )
        self._taker: Follower | None = None
        self._was_clean = stop is Stop.CLEAN
        self._acknowledges_received = config.replication == "sync" and config.flush == "async"

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
    def acknowledges_received(self) -> bool:
        """Records may be acknowledged that are not on this disk yet."""
        return self._acknowledges_received

    @property
    def epoch(self) -> int:
        """The epoch of the last frame."""
        return max(self._start.scan.epoch, 0)

    @property
    def committed_pos(self) -> int:
        """As `end_pos`: nothing is written yet."""
        return self.end_pos

    @property
    def flushed_pos(self) -> int:
        """The end of what is known to be durable."""
        return min(max(self._start.flushed, 0), self.committed_pos)

    @property
    def visible_pos(self) -> int:
        """Nothing may be read yet."""
        return 0

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
        """Return bytes of the log, unchecked, for a slave that repairs its own.

        Returns:
            At most `size` bytes, to the end of a segment; none if its file is gone.
        """
        for base, length in self._log.files.places:
            if base <= pos < base + length:
                memory = bytearray(min(size, base + length - pos, self.end_pos - pos))
                found = self._log.read_some(pos, memoryview(memory))
                return bytes(memory[:found])
        return b""
