"""How long records are kept: fields of `Config`. Layer 1; does no I/O."""

from dataclasses import dataclass

from appliance.config.setting import number
from appliance.units import GIB, MS_PER_DAY, MS_PER_SECOND


@dataclass(frozen=True, kw_only=True)
class RetentionSettings:
    """How long records are kept. A topic may say otherwise."""

    retention_time_ms: int = number(
        3 * MS_PER_DAY,
        "retention.time_ms",
        (-1, 36_500 * MS_PER_DAY),
        "How long a record stays readable once it is visible, for topics without `retention.ms`; "
        "-1 for ever. RocketMQ's three days.",
    )
    retention_size_bytes: int = number(
        -1,
        "retention.size_bytes",
        (-1, 1024 * 1024 * GIB),
        "How much of the log one partition may take, for topics without `retention.bytes`; its "
        "oldest records go first. -1: any amount.",
    )
    retention_check_interval_ms: int = number(
        60 * MS_PER_SECOND,
        "retention.check_interval_ms",
        (100, MS_PER_DAY),
        "Pause between two searches for expired records, and the precision of their age.",
    )
