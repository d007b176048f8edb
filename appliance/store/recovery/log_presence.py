"""Compares the log with the one that the checkpoint describes, before anything changes.

A missing mount, a partly restored directory, a log of another cluster: each looks like a shorter
log, or like none. `LogPresence` distinguishes them from a new directory. `decisions.LOG_FAULTS`
lists the faults. Layer 2.
"""

from collections.abc import Mapping
from uuid import UUID

from _core.bytes.layout import FRAME_HEADER_SIZE, KIND_HEAD
from _core.log.frames import check, read_header
from appliance.errors import CorruptionError, LogRefusedError, StorageError
from appliance.store.checkpoint import NO_CLUSTER, Checkpoint
from appliance.store.log.commit_log import CommitLog
from appliance.store.log.frame_kinds import WHOLE
from appliance.store.paths import DataPaths
from appliance.store.recovery.decisions import LogFault
from appliance.store.state.control_frames import HeadFrame, decode_head


def read_heads(log: CommitLog) -> dict[int, HeadFrame]:
    """Read the intact heads of all segments, by base position."""
    heads = {}
    for base in log.files.bases:
        try:
            frame = log.read_frame(base)
        except StorageError:
            continue  # the replay finds it again and reports it
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
    """The cluster that the log belongs to; NO_CLUSTER if there is no intact head."""
    return heads[min(heads)].cluster if heads else NO_CLUSTER


class LogPresence:
    """The log in the checkpoint and the log that exists. Changes nothing.

    Attributes:
        fault: the fault that was found, None if there is none.
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
            known: the newest intact copy of the checkpoint, None if there is none.
            log: its segments are open.
            heads: the result of `read_heads`.
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
        # The last file may only have lost its end: the replay decides about that.
        files = log.files
        if max(files.end_of_files, files.bases[-1] + files.full_size_bytes) < known.flushed:
            return LogFault.ENDS_EARLY
        return None

    @property
    def is_own(self) -> bool:
        """The checkpoint describes this log, as far as the heads show."""
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
        """The salt of this log's frames, 0 for unknown."""
        known = self._known
        if self._salt == 0 and known is not None and self.is_own:
            return known.log.salt
        return self._salt

    def check(self) -> None:
        """Refuse a log that is not the one in the checkpoint.

        Raises:
            LogRefusedError: there is a fault; the message says what was expected, what was found
                and what to do.
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
            f"{known.flushed}, according to the checkpoint"
        )

    def _found(self) -> str:
        log = self._log
        if not log.has_segments:
            return "no segment"
        found = f"segments from position {log.start_pos} to {log.files.end_of_files}"
        if self._cluster != NO_CLUSTER:
            found += f" of cluster {self._cluster}"
        gap = log.files.find_gap()
        if gap is not None:
            found += f", none from {gap[0]} to {gap[1]}"
        if self.fault is LogFault.MIXED:
            others = {base: each for base, each in self._clusters.items() if each != self._cluster}
            base, cluster = min(others.items())
            found += f", and at {base} one of cluster {cluster}"
        return found
