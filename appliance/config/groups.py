"""Consumer groups and their committed offsets: fields of `Config`. Layer 1; does no I/O."""

from dataclasses import dataclass

from appliance.config.setting import number
from appliance.units import GIB, KIB, MIB, MS_PER_DAY, MS_PER_MINUTE


@dataclass(frozen=True, kw_only=True)
class GroupSettings:
    """Consumer groups and their committed offsets."""

    session_timeout_min_ms: int = number(
        6_000,
        "groups.session_timeout_min_ms",
        (1, MS_PER_DAY),
        "A consumer with a shorter timeout is refused; Kafka's default.",
    )
    session_timeout_max_ms: int = number(
        30 * MS_PER_MINUTE,
        "groups.session_timeout_max_ms",
        (1, MS_PER_DAY),
        "A consumer with a longer timeout is refused; Kafka's default.",
    )
    initial_rebalance_delay_ms: int = number(
        500,
        "groups.initial_rebalance_delay_ms",
        (0, 5 * MS_PER_MINUTE),
        "How long an empty group waits for further members before its first assignment, so that "
        "members that start together need only one. Kafka's 3 s make every start slow.",
    )
    group_count_max: int = number(
        10_000,
        "groups.count_max",
        (1, 1_000_000),
        "Bounds the consumer groups that clients can create by naming them; one address can have "
        "half of what others leave.",
        unit="groups",
    )
    group_member_count_max: int = number(
        1_000,
        "groups.member_count_max",
        (1, 100_000),
        "Members of one group; Kafka's group.max.size. A further member is refused.",
        unit="members",
    )
    group_size_max_bytes: int = number(
        8 * MIB,
        "groups.size_max_bytes",
        (4 * KIB, 64 * MIB),
        "Names, subscriptions and assignments of one group, as its members sent them.",
    )
    group_total_size_max_bytes: int = number(
        256 * MIB,
        "groups.total_size_max_bytes",
        (4 * KIB, 64 * GIB),
        "The same, for all groups together.",
    )
    offset_retention_ms: int = number(
        7 * MS_PER_DAY,
        "groups.offset_retention_ms",
        (1_000, 3_650 * MS_PER_DAY),
        "How long a group without members keeps its committed offsets; Kafka's seven days.",
    )
    offset_metadata_size_max_bytes: int = number(
        4 * KIB,
        "groups.offset_metadata_size_max_bytes",
        (0, 16 * KIB),
        "Metadata that a consumer stores with one offset; Kafka's offset.metadata.max.bytes.",
    )
    offset_total_size_max_bytes: int = number(
        128 * MIB,
        "groups.offset_total_size_max_bytes",
        (4 * KIB, 64 * GIB),
        "Committed offsets of all groups, with their metadata; about 70 bytes each.",
    )
