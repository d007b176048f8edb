"""All decisions of recovery, as tables. docs/RECOVERY.md shows them.

 admission        `LOG_FAULTS`: the checkpoint is compared with the segments that exist
 starting point   each saved state is checked, the newest first (`REASONS`); then the kind of the
                  last stop and the state that was found decide (`DECISIONS`)
 the tail         the kind of the last stop and the end of the replay decide (`TAILS`)

`start` and `message_store` do what these tables say, and nothing else. Layer 2; does no I/O.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class LogFault(Enum):
    """Why a start is refused: the log is not the one in the checkpoint, or too much is lost."""

    GONE = "the log is gone"
    FOREIGN = "the log belongs to another cluster"
    MIXED = "segments of several clusters"
    BEGINS_LATE = "the first segments are missing"
    GAP = "segments are missing in the middle"
    ENDS_EARLY = "the last segments are missing"
    LOST_TOO_MUCH = "too much of the log is damaged"


LOG_FAULTS: Final[dict[LogFault, str]] = {
    LogFault.GONE: "the checkpoint describes a log, but `commitlog/` has no segment",
    LogFault.FOREIGN: "the first readable head names a different cluster than the checkpoint",
    LogFault.MIXED: "the heads of two segments name different clusters",
    LogFault.BEGINS_LATE: "the first segment begins after the start of the log in the checkpoint",
    LogFault.GAP: "between two segments there is a gap, even if the first has its full size",
    LogFault.ENDS_EARLY: "the last segment ends before the durable position in the checkpoint, "
    "even if it has its full size",
    LogFault.LOST_TOO_MUCH: "the replay would declare a whole segment lost, or more than "
    "`store.loss_max_bytes`",
}
"""With any of these, a start is refused and changes nothing, unless `--accept-loss` is given."""


class Stop(Enum):
    """Whether the last broker stopped cleanly."""

    CLEAN = "clean"
    UNCLEAN = "unclean"


class Unclean(Enum):
    """What shows an unclean stop before the replay."""

    ABORT_FILE = "the file `abort` exists"
    NO_CHECKPOINT = "there are segments, but no intact copy of the checkpoint"
    OTHER_CHECKPOINT = "the checkpoint describes another log"


class Fault(Enum):
    """Why a saved state is not used."""

    CONTROL_MISSING = "state snapshot missing"
    CONTROL_DAMAGED = "state snapshot damaged"
    OTHER_SETTINGS = "saved under other settings"
    OTHER_LOG = "does not fit the log"
    RUNS_MISSING = "run missing"
    RUNS_DAMAGED = "run damaged"
    UNITS_MISSING = "units missing"


class Found(Enum):
    """Which of the saved states is intact and fits the log."""

    NEWEST = "the newest"
    EARLIER = "an earlier one"
    NONE = "none"


class End(Enum):
    """How the replay ended."""

    WHOLE = "at or after the durable position, followed by zeros or a recycled segment's old bytes"
    TORN = "at or after the durable position, followed by other bytes"
    SHORT = "before the durable position"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a start does before the replay.

    Attributes:
        loads_state: it loads the state that was found; otherwise it replays the whole log.
        resets_units: it removes all ConsumeQueue files and rebuilds them.
        drops_cache: it drops the log from the page cache, from the starting point on.
    """

    loads_state: bool
    resets_units: bool
    drops_cache: bool


@dataclass(frozen=True, slots=True)
class Tail:
    """What a start does with the end of the log.

    Attributes:
        is_cut: bytes after the last frame are saved under `lost/` and zeroed, and everything that
            may not be durable is synced.
        is_clean: the report calls the stop clean.
    """

    is_cut: bool
    is_clean: bool


REASONS: Final[dict[Fault, str]] = {
    Fault.CONTROL_MISSING: "the file that the checkpoint names does not exist",
    Fault.CONTROL_DAMAGED: "its size, CRC or number differs from the checkpoint, or its version is "
    "unknown",
    Fault.OTHER_SETTINGS: "a setting changed that the state depends on; at present there is none",
    Fault.OTHER_LOG: "it belongs to another cluster, or the log has a gap before its position or "
    "ends before it, or a different frame ends there",
    Fault.RUNS_MISSING: "a file of timers or ids that it names does not exist",
    Fault.RUNS_DAMAGED: "a file of timers or ids that it names is damaged",
    Fault.UNITS_MISSING: "it has records, but no topic has a directory of ConsumeQueue files",
}
"""With any of these, the previous state is tried; without another one the whole log is replayed."""

_LOAD: Final = Decision(loads_state=True, resets_units=False, drops_cache=False)
_REPLAY: Final = Decision(loads_state=False, resets_units=True, drops_cache=False)
_LOAD_FROM_DISK: Final = Decision(loads_state=True, resets_units=False, drops_cache=True)
_REPLAY_FROM_DISK: Final = Decision(loads_state=False, resets_units=True, drops_cache=True)

DECISIONS: Final[dict[tuple[Stop, Found], Decision]] = {
    (Stop.CLEAN, Found.NEWEST): _LOAD,
    (Stop.CLEAN, Found.EARLIER): _LOAD,
    (Stop.CLEAN, Found.NONE): _REPLAY,
    (Stop.UNCLEAN, Found.NEWEST): _LOAD_FROM_DISK,
    (Stop.UNCLEAN, Found.EARLIER): _LOAD_FROM_DISK,
    (Stop.UNCLEAN, Found.NONE): _REPLAY_FROM_DISK,
}

TAILS: Final[dict[tuple[Stop, End], Tail]] = {
    (Stop.CLEAN, End.WHOLE): Tail(is_cut=False, is_clean=True),
    (Stop.CLEAN, End.TORN): Tail(is_cut=True, is_clean=False),
    (Stop.CLEAN, End.SHORT): Tail(is_cut=True, is_clean=False),
    (Stop.UNCLEAN, End.WHOLE): Tail(is_cut=True, is_clean=False),
    (Stop.UNCLEAN, End.TORN): Tail(is_cut=True, is_clean=False),
    (Stop.UNCLEAN, End.SHORT): Tail(is_cut=True, is_clean=False),
}
