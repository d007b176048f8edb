"""Whether a start may go on: each check ends it with a sentence, and changes nothing. Layer 2."""

from typing import Final

from appliance.errors import LogRefusedError
from appliance.fs import FileSystem
from appliance.store.checkpoint import Checkpoint
from appliance.store.commit_log import CommitLog
from appliance.store.control_frames import HEAD, RANGE, Ranges
from appliance.store.decisions import LogFault, Stop, Unclean
from appliance.store.log_presence import LogPresence
from appliance.store.paths import DataPaths
from appliance.store.verdict import Verdict

HEAD_FRACTION: Final = 8
"""The head takes no more than this part of a segment."""

PARTS_SHOWN: Final = 5
"""Of the damaged parts that a refusal names."""


def check_exists(fs: FileSystem, paths: DataPaths, *, must_exist: bool) -> None:
    """Refuse a directory that is no data directory, if it must be one.

    Raises:
        LogRefusedError: it is none.
    """
    if must_exist and not any(map(fs.exists, (paths.checkpoint, paths.commit_log))):
        raise _missing(paths)


def check_holds_log(paths: DataPaths, log: CommitLog, known: Checkpoint | None) -> None:
    """Refuse a directory without a log that must have one.

    Args:
        paths, log: the directory; the segments are open.
        known: the newest whole copy of the checkpoint, None if there is none.

    Raises:
        LogRefusedError: it has none.
    """
    if not log.has_segments and (known is None or not known.knows_log):
        raise _missing(paths)


def _missing(paths: DataPaths) -> LogRefusedError:
    return LogRefusedError(
        paths.commit_log,
        "there is no log",
        "the log of a broker that served here before, as store.must_exist says",
        "no segment and no checkpoint that knows one",
        advice="Mount it; for the first start on a fresh directory set store.must_exist = false",
    )


def find_stop(
    presence: LogPresence, log: CommitLog, known: Checkpoint | None, *, has_abort: bool
) -> Stop:
    """How the last broker stopped, as far as can be seen before the replay.

    Args:
        presence, log, known: as with `check_holds_log`.
        has_abort: the abort file is there.
    """
    is_unclean = {
        Unclean.ABORT_FILE: has_abort,
        Unclean.NO_CHECKPOINT: log.has_segments and known is None,
        Unclean.OTHER_CHECKPOINT: log.has_segments and not presence.is_own,
    }
    return Stop.UNCLEAN if any(is_unclean.values()) else Stop.CLEAN


def check_loss(paths: DataPaths, log: CommitLog, verdict: Verdict, *, limit_bytes: int) -> None:
    """Refuse to judge much of the log lost, which is for good.

    Args:
        paths, log: the directory.
        verdict: what the replay found.
        limit_bytes: more is refused, and so is a whole segment.

    Raises:
        LogRefusedError: it is too much.
    """
    whole = [base for part in verdict.judged for base in log.files.whole_segments(*part)]
    if verdict.lost_bytes <= limit_bytes and not whole:
        return
    parts = ", ".join(f"{start} to {end}" for start, end in verdict.judged[:PARTS_SHOWN])
    found = f"{verdict.lost_bytes} bytes that are damaged or missing"
    if parts:
        found += f", among them log positions {parts}"
    if verdict.missing_bytes:
        found += f", and {verdict.missing_bytes} behind the end of the log"
    raise LogRefusedError(
        paths.commit_log,
        LogFault.LOST_TOO_MUCH.value,
        f"no more than {limit_bytes} lost bytes (store.loss_max_bytes) and no whole segment",
        found,
    )


def check_count(paths: DataPaths, known: Ranges, verdict: Verdict, *, segment_size: int) -> None:
    """Refuse to judge more parts lost than the head of a segment has room for.

    Args:
        paths: the directory.
        known: what earlier starts judged.
        verdict: what the replay found.
        segment_size: bytes of a segment; an eighth of it is the head's at most.

    Raises:
        LogRefusedError: there are too many; no flag helps.
    """
    count_max = (segment_size // HEAD_FRACTION - HEAD.size) // RANGE.size
    count = len(known) + len(verdict.judged)
    if count > count_max:
        raise LogRefusedError(
            paths.commit_log,
            LogFault.LOST_TOO_MUCH.value,
            f"no more than {count_max} damaged parts, which the head of a segment repeats",
            f"{count}",
            advice="Restore a backup, or copy what is left with `latermq dump`",
        )
