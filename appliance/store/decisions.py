"""What a start does with what it finds: the whole of it as data. docs/RECOVERY.md shows it.

 may it start     `LOG_FAULTS`: what the checkpoint knows is held against the segments that are here
 begin from       each saved state is judged, the newest first (`REASONS`); then how the last broker
                  stopped and the state that was found decide (`DECISIONS`)
 the end          how it stopped and where the replay ended decide about the tail (`TAILS`)

`start` and `message_store` do what these tables say, and nothing else. Layer 2; does no I/O.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class LogFault(Enum):
    """Why the log that is here is not the one that the checkpoint knows."""

    GONE = "the log is gone"
    FOREIGN = "the log belongs to another cluster"
    MIXED = "segments of several clusters"
    BEGINS_LATE = "the first segments are missing"
    GAP = "segments are missing in the middle"
    ENDS_EARLY = "the last segments are missing"
    LOST_TOO_MUCH = "too much of the log is damaged"


LOG_FAULTS: Final[dict[LogFault, str]] = {
    LogFault.GONE: "the checkpoint knows a log, and `commitlog/` has no segment",
    LogFault.FOREIGN: "the first readable head names another cluster than the checkpoint",
    LogFault.MIXED: "the heads of two segments name different clusters",
    LogFault.BEGINS_LATE: "the first segment begins behind the start that the checkpoint knows",
    LogFault.GAP: "between two segments there is room for another one",
    LogFault.ENDS_EARLY: "the last segment ends before the position that the checkpoint knows to "
    "be durable, also if it were as long as the others",
    LogFault.LOST_TOO_MUCH: "the replay would judge a whole segment lost, or more than "
    "`store.loss_max_bytes`",
}
"""With any of these a start is refused and changes nothing, unless `--accept-loss` is given."""


class Stop(Enum):
    """Whether the last broker stopped as it should."""

    CLEAN = "clean"
    UNCLEAN = "unclean"


class Unclean(Enum):
    """What tells of an unclean stop before the replay."""

    ABORT_FILE = "the file `abort` is there"
    NO_CHECKPOINT = "there are segments and no copy of the checkpoint is whole"
    OTHER_CHECKPOINT = "the checkpoint is about another log"


class Fault(Enum):
    """Why a saved state is not used."""

    CONTROL_MISSING = "control file missing"
    CONTROL_DAMAGED = "control file damaged"
    OTHER_SETTINGS = "saved under other settings"
    OTHER_LOG = "does not fit the log"
    RUNS_MISSING = "run missing"
    RUNS_DAMAGED = "run damaged"
    UNITS_MISSING = "units missing"


class Found(Enum):
    """Which of the saved states is whole and fits."""

    NEWEST = "the newest"
    EARLIER = "an earlier one"
    NONE = "none"


class End(Enum):
    """Where the replay ended."""

    WHOLE = "at or behind the durable position, zeros follow"
    TORN = "at or behind the durable position, other bytes follow"
    SHORT = "before the durable position"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a start does before the replay.

    Attributes:
        loads_state: begins from the state that was found; else from nothing, with the log's start.
        resets_units: removes all ConsumeQueue files and writes them anew.
        drops_cache: lets the kernel forget what it has of the log from there on.
    """

    loads_state: bool
    resets_units: bool
    drops_cache: bool


@dataclass(frozen=True, slots=True)
class Tail:
    """What a start does with the end of the log.

    Attributes:
        is_cut: bytes behind the last frame are set aside under `lost/` and zeroed, and all that may
            not be durable is synced.
        is_clean: the report calls the stop clean.
    """

    is_cut: bool
    is_clean: bool


REASONS: Final[dict[Fault, str]] = {
    Fault.CONTROL_MISSING: "the file that the checkpoint names is not there",
    Fault.CONTROL_DAMAGED: "its size, CRC, number or version is not what the checkpoint says",
    Fault.OTHER_SETTINGS: "the number of delay levels or `delay.fired_id_memory_ms` was changed",
    Fault.OTHER_LOG: "it is of another cluster, or the log does not reach to it without a gap, "
    "or another frame ends where it was taken",
    Fault.RUNS_MISSING: "a file of timers or ids that it needs is not there",
    Fault.RUNS_DAMAGED: "a file of timers or ids that it needs has another size or CRC",
    Fault.UNITS_MISSING: "it has records, and no topic has a directory of ConsumeQueue files",
}
"""With any of these the state before is tried; without another one all is replayed."""

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
