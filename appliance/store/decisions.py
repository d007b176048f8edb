"""What a start does with what it finds: the whole of it as data. docs/RECOVERY.md shows it.

First each saved state is judged, the newest first, by what is wrong with it (`REASONS`). Then the
abort file and the state that was found decide (`DECISIONS`). Layer 2; does no I/O.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Abort(Enum):
    """Whether the last broker stopped as it should."""

    ABSENT = "absent"
    PRESENT = "present"


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


@dataclass(frozen=True, slots=True)
class Decision:
    """What a start does.

    Attributes:
        loads_state: begins from the state that was found; else from nothing, with the log's start.
        resets_units: removes all ConsumeQueue files and writes them anew.
        drops_cache: lets the kernel forget what it has of the log from there on.
        cuts_tail: zeroes what follows the last frame, and syncs all that may not be durable.
        begins_epoch: records that may be lost are told from those that take their offsets.
    """

    loads_state: bool
    resets_units: bool
    drops_cache: bool
    cuts_tail: bool
    begins_epoch: bool


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

DECISIONS: Final[dict[tuple[Abort, Found], Decision]] = {
    (Abort.ABSENT, Found.NEWEST): Decision(
        loads_state=True,
        resets_units=False,
        drops_cache=False,
        cuts_tail=False,
        begins_epoch=False,
    ),
    (Abort.ABSENT, Found.EARLIER): Decision(
        loads_state=True,
        resets_units=False,
        drops_cache=False,
        cuts_tail=False,
        begins_epoch=False,
    ),
    (Abort.ABSENT, Found.NONE): Decision(
        loads_state=False,
        resets_units=True,
        drops_cache=False,
        cuts_tail=False,
        begins_epoch=False,
    ),
    (Abort.PRESENT, Found.NEWEST): Decision(
        loads_state=True,
        resets_units=False,
        drops_cache=True,
        cuts_tail=True,
        begins_epoch=True,
    ),
    (Abort.PRESENT, Found.EARLIER): Decision(
        loads_state=True,
        resets_units=False,
        drops_cache=True,
        cuts_tail=True,
        begins_epoch=True,
    ),
    (Abort.PRESENT, Found.NONE): Decision(
        loads_state=False,
        resets_units=True,
        drops_cache=True,
        cuts_tail=True,
        begins_epoch=True,
    ),
}
