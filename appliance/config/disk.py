"""How full the disk may get: fields of `Config`. Layer 1; does no I/O."""

from dataclasses import dataclass

from appliance.config.setting import number


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
