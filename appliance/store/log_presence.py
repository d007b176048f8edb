"""Whether the log that is here is the one that the checkpoint knows: asked before anything changes.

A mount that is missing, a directory that was restored half, a log of another cluster: each looks
like a log that is shorter than it was, or like none. `find_log_fault` tells them from a fresh
directory. What it may find is in `decisions.LOG_FAULTS`. Layer 2.
"""

from collections.abc import Mapping
from uuid import UUID

from _core.frames import check, read_header
from _core.layout import FRAME_HEADER_SIZE, KIND_HEAD
from appliance.errors import CorruptionError, LogRefusedError, StorageError
from appliance.store.checkpoint import NO_CLUSTER, Checkpoint
from appliance.store.commit_log import CommitLog
from appliance.store.control_frames import HeadFrame, decode_head
from appliance.store.decisions import LogFault
from appliance.store.paths import DataPaths

WHOLE = "whole"
"""What `check` says of a frame that is as it was written."""


def read_heads(log: CommitLog) -> dict[int, HeadFrame]:
    """The heads of all segments whose head can be read and is whole, by base position."""
    heads = {}
    for base in log.files.bases:
        try:
            frame = log.read_frame(base)
        except StorageError:
            continue  # the replay meets it again, and tells
        if check(frame, base) != WHOLE:
            continue
        header = read_header(frame)
        if header["kind"] != KIND_HEAD:
            continue
        payload = frame[FRAME_HEADER_SIZE : FRAME_HEADER_SIZE + header["tables_size"]]
        try:
            heads[base] = decode_head(payload)
        except CorruptionError:
            continue
    return heads


def cluster_of(heads: Mapping[int, HeadFrame]) -> UUID:
    """The cluster that the log belongs to; NO_CLUSTER if no head tells."""
    return heads[min(heads)].cluster if heads else NO_CLUSTER


class LogPresence:
    """What the checkpoint knows of the log, and what is here. Changes nothing.

    Attributes:
        fault: what is wrong, None if nothing is.
    """

    def __init__(
        self,
        paths: DataPaths,
        known: Checkpoint | None,
        log: CommitLog,
        heads: Mapping[int, HeadFrame],
    ) -> None:
        """Compare the two.

        Args:
            paths: for errors.
            known: the newest whole copy of the checkpoint, None if there is none.
            log: its segments are open.
            heads: as `read_heads` found them.
        """
        self._paths = paths
        self._known = known
        self._log = log
        self._clusters = {base: head.cluster for base, head in heads.items()}
        self._cluster = cluster_of(heads)
        self._salt = heads[min(heads)].salt if heads else 0
        self.fault = self._find()

    def _find(self) -> LogFault | None:
        known, log = self._known, self._log
        if not log.has_segments:
            return LogFault.GONE if known is not None and known.knows_log else None
        if len(set(self._clusters.values())) > 1:
            return LogFault.MIXED
        if log.files.find_gap() is not None:
            return LogFault.GAP
        if known is None or known.log.cluster == NO_CLUSTER:
            return None
        if self._cluster not in (NO_CLUSTER, known.log.cluster):
            return LogFault.FOREIGN
        if log.start_pos > known.log.start:
            return LogFault.BEGINS_LATE
        # Its last file may only have lost its end: the replay judges that.
        files = log.files
        if max(files.end_of_files, files.bases[-1] + files.full_size_bytes) < known.flushed:
            return LogFault.ENDS_EARLY
        return None

    @property
    def is_own(self) -> bool:
        """The checkpoint is about this log, as far as can be seen."""
        known = self._known
        if not self._log.has_segments:
            return False
        return (
            known is None
            or NO_CLUSTER in (known.log.cluster, self._cluster)
            or known.log.cluster == self._cluster
        )

    @property
    def salt(self) -> int:
        """That of the frames of this log, 0 for unknown."""
        known = self._known
        if self._salt == 0 and known is not None and self.is_own:
            return known.log.salt
        return self._salt

    def check(self) -> None:
        """Refuse a log that is not the one that the checkpoint knows.

        Raises:
            LogRefusedError: it says what was known, what is here, and what can be done.
        """
        if self.fault is not None:
            raise LogRefusedError(
                self._paths.commit_log, self.fault.value, self._expected(), self._found()
            )

    def _expected(self) -> str:
        known = self._known
        if known is None or not known.knows_log:
            return "one contiguous log of one cluster"
        return (
            f"the log of cluster {known.log.cluster} from position {known.log.start} to "
            f"{known.flushed}, as the checkpoint says"
        )

    def _found(self) -> str:
        log = self._log
        if not log.has_segments:
            return "no segment"
        told = f"segments from position {log.start_pos} to {log.files.end_of_files}"
        if self._cluster != NO_CLUSTER:
            told += f" of cluster {self._cluster}"
        gap = log.files.find_gap()
        if gap is not None:
            told += f", none from {gap[0]} to {gap[1]}"
        if self.fault is LogFault.MIXED:
            others = {base: each for base, each in self._clusters.items() if each != self._cluster}
            base, cluster = min(others.items())
            told += f", and at {base} one of cluster {cluster}"
        return told
