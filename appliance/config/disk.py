"""How full the disk may get: fields of `Config`. Layer 1; does no I/O."""

from dataclasses import dataclass
from typing import Final

from appliance.config.setting import number, switch

NEVER_PERCENT: Final = 100
"""As a line: what follows from it never happens."""


@dataclass(frozen=True, kw_only=True)
class DiskSettings:
    """How full the disk may get."""

    disk_warn_percent: int = number(
        75,
        "disk.warn_percent",
        (10, 98),
        "A warning is logged when the file system of the data is this full for the broker: in "
        "time to make room.",
    )
    disk_refuse_percent: int = number(
        90,
        "disk.refuse_percent",
        (11, 100),
        "From here on new records and topics are refused with an error that clients retry. The "
        "rest is a reserve for due records, cancels, commits and deletions. 100 refuses only what "
        "does not fit.",
    )
    disk_expire_percent: int = number(
        100,
        "disk.expire_percent",
        (11, 100),
        "From here on records expire before their retention is over, those of the oldest segment "
        "first, until the disk is less full; 85 is RocketMQ's line. Topics with `retention.ms=-1` "
        "keep theirs. 100: never.",
    )
    disk_expire_all_topics: bool = switch(
        False,
        "disk.expire_all_topics",
        "With `disk.expire_percent`: topics with `retention.ms=-1` lose their oldest records too.",
    )
