"""A part of a log that several readings share, so that all of them see the same rows. Layer 4.

A `Pin` is small and can be sent to another process. Whoever has it plans the same part of the log
again, also after the log has grown. What cannot be the same any more is an error.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.errors import LatermqError
from appliance.store.checkpoint import Checkpoint
from appliance.store.paths import segment_name
from appliance.system.files import FileSystem, OsFileSystem
from compat.tables.log_reader import LogReader, SegmentGoneError
from compat.tables.plan import Plan

UNKNOWN_CLUSTER: Final = ""


class LogChangedError(LatermqError):
    """A directory does not hold the log that was read before.

    Args:
        root: the data directory.
        fact: what is different.
    """

    def __init__(self, root: Path, fact: str) -> None:
        super().__init__(
            f"{root} does not hold the log that was read before: {fact}. Give the directory of "
            "that log; to read this one, begin again without the old DataFrame or checkpoint"
        )
        self.root = root


@dataclass(frozen=True, slots=True)
class Pin:
    """What of a log is read.

    Attributes:
        root: the data directory.
        start, end: log positions.
        cluster: id of the cluster of the log, empty if it is not known.
    """

    root: Path
    start: int
    end: int
    cluster: str

    def plan(self, fs: FileSystem | None = None, *, fails_on_loss: bool = True) -> Plan:
        """Plan the pinned part.

        Args:
            fs: the file system.
            fails_on_loss: raise an error if the beginning of the part is gone.

        Raises:
            LogChangedError: the directory holds another log, or the part does not end at `end`.
            SegmentGoneError: the beginning of the part is gone.
            LatermqError: it cannot be read; see `Plan.advance`.
        """
        plan = Plan(fs or OsFileSystem(), self.root)
        plan.advance(stop=self.end)
        check_cluster(plan, self.cluster)
        reader = plan.reader
        if reader.end < self.end:
            fact = f"it ends at log position {reader.end}, and was read up to {self.end}"
            raise LogChangedError(self.root, fact)
        if fails_on_loss and self.start < self.end and reader.segments[0][0] > self.start:
            raise SegmentGoneError(reader.paths.commit_log / segment_name(self.start))
        return plan


def take_pin(root: Path, fs: FileSystem | None = None) -> Pin:
    """Pin all that may be read now.

    It costs little, unless there is no checkpoint to say how far the log goes: then it costs a
    plan.

    Raises:
        LatermqError: it cannot be read; see `Plan.advance`.
    """
    plan = Plan(fs or OsFileSystem(), root)
    reader = plan.reader
    try:
        reader.refresh()
        if reader.flushed < 0:
            plan.advance()
        end = plan.end if reader.flushed < 0 else reader.end
        start = reader.segments[0][0] if reader.segments else end
        return Pin(root, start, end, _cluster_of(reader, plan))
    finally:
        reader.close()


def _cluster_of(reader: LogReader, plan: Plan) -> str:
    if plan.cluster is not None:
        return plan.cluster
    checkpoint: Checkpoint | None = reader.checkpoint
    if checkpoint is None or not checkpoint.knows_log:
        return UNKNOWN_CLUSTER
    return str(checkpoint.log.cluster)


def check_cluster(plan: Plan, expected: str) -> None:
    """Check that a plan is of a cluster.

    Raises:
        LogChangedError: it is of another one.
    """
    found = plan.cluster
    if found is not None and expected not in (UNKNOWN_CLUSTER, found):
        fact = f"it is of cluster {found}, not of {expected}"
        raise LogChangedError(plan.reader.paths.root, fact)
