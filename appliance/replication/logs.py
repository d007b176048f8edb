"""What replication asks of a log, on the master and on the slave.

All is called on the event loop's thread, except `SourceLog.read` and `ReplicaLog.flush`. The
methods on the loop return soon. Layer 3; does no I/O.
"""

from typing import Final, Protocol

from appliance.errors import ReplicaError
from appliance.store.log.watermark import WatermarkJob
from appliance.store.runs.saved_ids import IdLookup

NO_CLUSTER: Final = bytes(16)
"""The cluster id of a log that belongs to none yet."""

NO_POS: Final = -1
"""The position of the last frame of an empty log."""

__all__ = [
    "NO_CLUSTER",
    "NO_POS",
    "DamagedLog",
    "HeldLog",
    "ReplicaError",
    "ReplicaLog",
    "SourceLog",
    "Taker",
]


class SourceLog(Protocol):
    """The log of a master, as far as a slave copies it."""

    @property
    def cluster(self) -> bytes:
        """The id of the cluster, 16 bytes."""

    @property
    def node(self) -> int:
        """The number of this node of the pair, 1 or 2."""

    @property
    def epoch(self) -> int:
        """The epoch in which this master serves, or that of its last frame before it serves."""

    @property
    def segment_size_bytes(self) -> int:
        """The size of a segment; equal on both nodes."""

    @property
    def format_version(self) -> int:
        """The highest version of frames that this node writes and reads."""

    @property
    def start_pos(self) -> int:
        """Where the log begins, the base position of a segment; only grows."""

    @property
    def committed_pos(self) -> int:
        """The end of the whole frames that were written by the system call; only grows."""

    @property
    def flushed_pos(self) -> int:
        """The end of what is durable here, at most `committed_pos`; only grows."""

    @property
    def visible_pos(self) -> int:
        """The end of what consumers may read, at most `committed_pos`; only grows."""

    def epochs(self) -> list[tuple[int, int]]:
        """Return each epoch that has frames in the log, and where it begins, both ascending.

        An epoch begins at its epoch frame. If that of the first one was freed, it begins where it
        did, or at `start_pos`.
        """

    def crc_at(self, pos: int) -> int | None:
        """Return the CRC of the frame at a position, None if no frame begins there.

        Raises:
            StorageError: the disk cannot read it.
        """

    @property
    def acknowledges_received(self) -> bool:
        """Records may be acknowledged that are durable on the slave alone, or nowhere yet."""

    def read(self, pos: int, size: int) -> bytes:
        """Return bytes of the log; runs on a thread.

        Args:
            pos: at or above `start_pos` and below `committed_pos`, as they were on the loop.
            size: at least 1; `pos` + `size` is at most `committed_pos`.

        Returns:
            1 to `size` bytes. They end at the end of a segment.

        Raises:
            FreedPositionError: the segment was freed meanwhile.
            StorageError: the disk cannot read it.
        """


class HeldLog(Protocol):
    """The log of a slave, as it introduces itself to its master."""

    @property
    def cluster(self) -> bytes:
        """The id of the cluster, 16 bytes; an empty log may have NO_CLUSTER and joins any."""

    @property
    def node(self) -> int:
        """The number of this node of the pair, 1 or 2."""

    @property
    def segment_size_bytes(self) -> int:
        """The size of a segment, also of an empty log."""

    @property
    def format_version(self) -> int:
        """The highest version of frames that this node reads."""

    @property
    def start_pos(self) -> int:
        """Where the log begins."""

    @property
    def end_pos(self) -> int:
        """The end of its last whole frame; `start_pos` if it is empty."""

    @property
    def last_pos(self) -> int:
        """Where the last whole frame begins; NO_POS if the log is empty."""

    @property
    def last_crc(self) -> int:
        """The CRC of that frame; 0 if the log is empty."""

    def epochs(self) -> list[tuple[int, int]]:
        """Return as `SourceLog.epochs`."""


class DamagedLog(HeldLog, Protocol):
    """The log of a slave that has damaged parts."""

    def damaged(self) -> list[tuple[int, int]]:
        """Return the damaged parts that the master may have, as log positions, ascending."""

    def write(self, pos: int, data: bytes) -> None:
        """Write bytes of the master's log over damaged ones.

        Args:
            pos: in a damaged part.
            data: at least 1 byte; does not cross the end of that part.

        Raises:
            StorageError: they cannot be written.
        """

    def flush(self) -> None:
        """Make durable what was written.

        Raises:
            StorageError: a sync failed, which ends the process.
        """


class ReplicaLog(HeldLog, Protocol):
    """The log of a slave: bytes of the master at the same positions."""

    def read(self, pos: int, size: int) -> bytes:
        """Return bytes of the log; runs on a thread.

        Args:
            pos: at or above `start_pos` and below `end_pos`.
            size: at least 1.

        Raises:
            ReplicaError: the log does not have them.
            StorageError: the disk cannot read it.
        """

    def append(self, pos: int, data: bytes) -> IdLookup | None:
        """Write bytes of the master and apply the frames that are whole now.

        Args:
            pos: where the bytes before ended, or the position of `truncate` or `restart`.
            data: at least 1 byte; may begin and end inside a frame, and crosses no segment's end.

        Returns:
            What a thread must run before they can be applied; `end_lookup` must follow before any
            other call that changes the log. None if they are applied.

        Raises:
            ReplicaError: these are no frames of this log.
            StorageError: they cannot be written.
        """

    def end_lookup(self, lookup: IdLookup) -> IdLookup | None:
        """Apply the frames whose ids were looked up.

        Args:
            lookup: has run.

        Returns:
            As `append`.

        Raises:
            ReplicaError: these are no frames of this log.
            LatermqError: ids cannot be read; it ends the client's work and is its `failure`.
        """

    def begin_raise(self) -> WatermarkJob | None:
        """Return what lets the log grow further, to run on a thread, then `end_raise`; or None."""

    def end_raise(self, job: WatermarkJob) -> None:
        """Note that it has run."""

    def flush(self) -> int:
        """Make durable what was appended before this call; runs on a thread, while appends go on.

        Returns:
            The durable position, at most the end of what was appended; it never falls, except
            through `truncate` and `restart`.

        Raises:
            StorageError: a sync failed, which ends the process.
        """

    def truncate(self, pos: int, *, may_be_acknowledged: bool) -> None:
        """Cut the log and forget bytes of a frame that is not whole; called once before a stream.

        Args:
            pos: the end of a whole frame, from `start_pos` to `end_pos`. If it is `end_pos`, no
                frame is cut. Otherwise the rest is kept aside.

        Raises:
            LatermqError: it ends the client's work and is its `failure`, such as that of a store
                which must start again to cut its log.
            may_be_acknowledged: frames that the master lost after a power cut may be.

        Raises:
            ReplicaError: the master lost frames that may be acknowledged; nothing is cut.
        """

    def restart(self, start_pos: int) -> None:
        """Empty the log; called in place of `truncate` if it shares nothing with the master's.

        Args:
            start_pos: where the log will begin, the base position of a segment.

        Raises:
            LatermqError: as `truncate`.
        """


class Taker(Protocol):
    """The log of a master that compares, which takes what it lost from its slave."""

    def damaged(self) -> list[tuple[int, int]]:
        """Return the damaged parts that the slave may have, as log positions, ascending."""

    def write(self, pos: int, data: bytes) -> None:
        """Write bytes of the slave's log.

        Args:
            pos: where this log ends, or in a damaged part of it.
            data: at least 1 byte; may begin and end inside a frame.

        Raises:
            ReplicaError: these are no frames of this log.
            StorageError: they cannot be written.
        """

    def flush(self) -> None:
        """Make durable what was written.

        Raises:
            StorageError: a sync failed, which ends the process.
        """
