"""Checks that refuse a start with a one-line error and change nothing. Layer 2."""

from typing import Final

from appliance.errors import LogRefusedError
from appliance.store.checkpoint import Checkpoint
from appliance.store.log.commit_log import CommitLog
from appliance.store.marks import MarkKind, read_mark
from appliance.store.paths import DataPaths
from appliance.store.recovery.decisions import LogFault, Stop, Unclean
from appliance.store.recovery.log_presence import LogPresence
from appliance.store.recovery.verdict import Verdict
from appliance.store.state.control_frames import HEAD, RANGE, Ranges
from appliance.system.files import FileSystem

HEAD_FRACTION: Final = 8
"""The head takes at most 1/8 of a segment."""

PARTS_SHOWN: Final = 5
"""Maximum number of damaged parts that a refusal lists."""

_MARKED: Final[dict[MarkKind, tuple[str, str]]] = {
    "snapshot": (
        "this is a snapshot, which shares its files with the log",
        "Copy the directory (cp -r), remove that file in the copy, and use the copy",
    ),
    "backup": (
        "this is a backup",
        "Restore it into another directory with `latermq restore`, and use that one",
    ),
    "restore": (
        "this is the copy of a backup, and it is not complete",
        "Remove the directory and run `latermq restore` again",
    ),
}
"""What is wrong, and what to do, by what the mark says."""


def check_exists(fs: FileSystem, paths: DataPaths, *, must_exist: bool) -> None:
    """Refuse a directory that is not a data directory, if `must_exist` is set.

    Raises:
        LogRefusedError: it is not one.
    """
    if must_exist and not any(map(fs.exists, (paths.checkpoint, paths.commit_log))):
        raise _missing(paths)


def check_may_serve(fs: FileSystem, paths: DataPaths) -> None:
    """Refuse to write to a snapshot, to a backup, and to a copy of one that is not complete.

    Raises:
        LogRefusedError: it is one.
    """
    mark = read_mark(fs, paths.snapshot_mark)
    if mark is not None:
        fault, advice = _MARKED[mark.kind]
        raise LogRefusedError(
            paths.root,
            fault,
            "the data directory of a broker",
            f"the file {paths.snapshot_mark.name}",
            advice=advice,
        )


def check_holds_log(paths: DataPaths, log: CommitLog, known: Checkpoint | None) -> None:
    """Refuse a directory that has no log, where one must exist.

    Args:
        paths, log: the directory; the segments are open.
        known: the newest intact copy of the checkpoint, None if there is none.

    Raises:
        LogRefusedError: there is no log.
    """
    if not log.has_segments and (known is None or not known.knows_log):
        raise _missing(paths)


def _missing(paths: DataPaths) -> LogRefusedError:
    return LogRefusedError(
        paths.commit_log,
        "there is no log",
        "the log of an earlier start, because store.must_exist = true",
        "no segment, and no checkpoint that describes a log",
        advice="Mount it; for the first start in a new directory set store.must_exist = false",
    )


def find_stop(
    presence: LogPresence, log: CommitLog, known: Checkpoint | None, *, has_abort: bool
) -> Stop:
    """Return how the last broker stopped, as far as it shows before the replay.

    Args:
        presence: compares the log with the checkpoint.
        log, known: as in `check_holds_log`.
        has_abort: the abort file exists.
    """
    is_unclean = {
        Unclean.ABORT_FILE: has_abort,
        Unclean.NO_CHECKPOINT: log.has_segments and known is None,
        Unclean.OTHER_CHECKPOINT: log.has_segments and not presence.is_own,
    }
    return Stop.UNCLEAN if any(is_unclean.values()) else Stop.CLEAN


def check_loss(paths: DataPaths, log: CommitLog, verdict: Verdict, *, limit_bytes: int) -> None:
    """Refuse to declare a large part of the log lost, which is irreversible.

    Args:
        paths, log: the directory.
        verdict: the result of the replay.
        limit_bytes: more lost bytes are refused, and so is a whole segment.

    Raises:
        LogRefusedError: too much is lost.
    """
    whole = [base for part in verdict.judged for base in log.files.whole_segments(*part)]
    if verdict.lost_bytes <= limit_bytes and not whole:
        return
    parts = ", ".join(f"{start} to {end}" for start, end in verdict.judged[:PARTS_SHOWN])
    found = f"{verdict.lost_bytes} damaged or missing bytes"
    if parts:
        found += f", among them log positions {parts}"
    if verdict.missing_bytes:
        found += f", and {verdict.missing_bytes} after the end of the log"
    raise LogRefusedError(
        paths.commit_log,
        LogFault.LOST_TOO_MUCH.value,
        f"at most {limit_bytes} lost bytes (store.loss_max_bytes) and no whole segment",
        found,
    )


def check_count(paths: DataPaths, known: Ranges, verdict: Verdict, *, segment_size: int) -> None:
    """Refuse to declare more parts lost than fit into the head of a segment.

    Args:
        paths: the directory.
        known: parts declared lost by earlier starts.
        verdict: the result of the replay.
        segment_size: bytes of a segment; the head takes at most an eighth of it.

    Raises:
        LogRefusedError: there are too many; `--accept-loss` does not help.
    """
    count_max = (segment_size // HEAD_FRACTION - HEAD.size) // RANGE.size
    count = len(known) + len(verdict.judged)
    if count > count_max:
        raise LogRefusedError(
            paths.commit_log,
            LogFault.LOST_TOO_MUCH.value,
            f"at most {count_max} damaged parts, the number that fits into the head of a segment",
            f"{count}",
            advice="Restore a backup, or copy the readable records with `latermq dump`",
        )
