"""The topic settings: all of Kafka 4.4, those of Kafka 3 that clients still send, and latermq's.

Layer 3; does no I/O.
"""

from dataclasses import dataclass
from typing import Final, Literal

from appliance.config.config import Config
from compat.kafka.configs.entries import ConfigType

INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1
_NO_LIMIT: Final = str(LONG_MAX)

LEVELS: Final = "levels"
"""The schedule of retries: the delay levels from the third on."""

RETRY_MAX: Final = 16
SCHEDULE_MAX: Final = 64

_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_LONG, _DOUBLE, _LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """One row of the table.

    Args:
        name: the name that clients use.
        type: of its value, as in Kafka.
        note: its effect here, for docs/KAFKA.md and DescribeConfigs.
        values: the allowed values, the default first; a single value cannot be changed yet. Empty
            if no value is accepted, or if the value is a number.
        limit: for a number from 0 up, the field of Config with its default, and its maximum unless
            there is a `ceiling`.
        ceiling: the attribute of Config with its maximum.
        bounds: for any other number, its least and greatest value.
        is_duration: it is a duration such as 15m, or "none", the default.
        is_schedule: it is a list of durations such as 10s 1m, or "levels", the default.
        default: of a number with bounds: the field of Config that has it, or the value itself.
    """

    name: str
    type: ConfigType
    note: str
    values: tuple[str, ...] = ()
    limit: Literal["batch_size_max_bytes", "delay_max_ms"] | None = None
    ceiling: Literal["topic_batch_size_max_bytes"] | None = None
    bounds: tuple[int, int] | None = None
    is_duration: bool = False
    is_schedule: bool = False
    default: Literal["retention_time_ms", "retention_size_bytes"] | int = 0

    def maximum(self, config: Config) -> int:
        """Return the largest value of a number from 0 up."""
        attribute = self.ceiling or self.limit
        assert attribute is not None
        value: int = getattr(config, attribute)
        return value

    @property
    def is_supported(self) -> bool:
        """Return whether clients can choose the value."""
        is_number = self.limit is not None or self.bounds is not None
        is_time = self.is_duration or self.is_schedule
        return is_number or is_time or len(self.values) > 1

    @property
    def is_list(self) -> bool:
        """Return whether its value is a comma-separated list."""
        return self.type == ConfigType.LIST


_CHOSEN: Final = (
    TopicSetting(
        "max.message.bytes",
        _INT,
        "maximum size of one record batch as it is sent, bytes",
        limit="batch_size_max_bytes",
        ceiling="topic_batch_size_max_bytes",
    ),
    TopicSetting(
        "message.timestamp.type",
        _STRING,
        "the producer's time, or the time of append (of delivery, if delayed)",
        ("CreateTime", "LogAppendTime"),
    ),
    TopicSetting(
        "delay.headers",
        _STRING,
        "off: the broker does not read delay headers and passes them through",
        ("on", "off"),
    ),
    TopicSetting(
        "delay.invalid",
        _STRING,
        "pass: a record whose delay request cannot be met is delivered at once, unchanged",
        ("refuse", "pass"),
    ),
    TopicSetting(
        "delay.required",
        _BOOLEAN,
        "true: a record without a delay request is refused",
        ("false", "true"),
    ),
    TopicSetting(
        "delay.default",
        _STRING,
        "the delay of a record without a delay request",
        is_duration=True,
    ),
    TopicSetting(
        "delay.paused",
        _BOOLEAN,
        "true: due records wait until it is false again; new ones are accepted",
        ("false", "true"),
    ),
    TopicSetting(
        "delay.max.per.second",
        _LONG,
        "delayed records delivered in any second at most, the others wait; -1: any number",
        bounds=(-1, 1_000_000),
        default=-1,
    ),
    TopicSetting(
        "delay.spread.ms",
        _LONG,
        "delayed records that are due at once are delivered evenly over this time",
        bounds=(0, 86_400_000),
    ),
    TopicSetting(
        "delay.pending.max",
        _LONG,
        "delayed records that may be pending, clients send further ones again; -1: any number",
        bounds=(-1, 1_000_000_000),
        default=-1,
    ),
    TopicSetting(
        "retry.schedule",
        _STRING,
        "of GROUP.retry: delay before each attempt, the last one before all further ones",
        is_schedule=True,
    ),
    TopicSetting(
        "retry.max",
        _INT,
        "of GROUP.retry: attempts before a record goes to GROUP.dlq",
        bounds=(0, 1_000_000),
        default=RETRY_MAX,
    ),
    TopicSetting(
        "delay.timestamp",
        _STRING,
        "timestamp of a delivered record: the original one, or the due time",
        ("created", "due"),
    ),
    TopicSetting(
        "delay.max.ms",
        _LONG,
        "maximum delay after receipt: a record that is due later is refused",
        limit="delay_max_ms",
    ),
    TopicSetting(
        "retention.ms",
        _LONG,
        "how long a record stays readable once it is visible; -1: for ever",
        bounds=(-1, LONG_MAX),
        default="retention_time_ms",
    ),
    TopicSetting(
        "retention.bytes",
        _LONG,
        "how much of the log a partition may take, its oldest records go first; -1: any amount",
        bounds=(-1, LONG_MAX),
        default="retention_size_bytes",
    ),
    TopicSetting(
        "index.keys",
        _STRING,
        "off: `latermq find` reads the log for keys and ids of this topic",
        ("on", "off"),
    ),
)
"""Settings whose value clients can choose."""

_SHARED: Final = "no effect: all topics share the segments of one log"
_NO_COMPACTION: Final = "no effect: nothing is compacted"

_STORED: Final = (
    TopicSetting(
        "delete.retention.ms", _LONG, _NO_COMPACTION, bounds=(0, LONG_MAX), default=86_400_000
    ),
    TopicSetting("file.delete.delay.ms", _LONG, _SHARED, bounds=(0, LONG_MAX), default=60_000),
    TopicSetting(
        "index.interval.bytes",
        _INT,
        "no effect: every record is in the index",
        bounds=(0, INT_MAX),
        default=4_096,
    ),
    TopicSetting(
        "max.compaction.lag.ms", _LONG, _NO_COMPACTION, bounds=(1, LONG_MAX), default=LONG_MAX
    ),
    TopicSetting("min.compaction.lag.ms", _LONG, _NO_COMPACTION, bounds=(0, LONG_MAX)),
    TopicSetting("segment.bytes", _INT, _SHARED, bounds=(1, INT_MAX), default=1_073_741_824),
    TopicSetting("segment.index.bytes", _INT, _SHARED, bounds=(4, INT_MAX), default=10_485_760),
    TopicSetting("segment.jitter.ms", _LONG, _SHARED, bounds=(0, LONG_MAX)),
    TopicSetting("segment.ms", _LONG, _SHARED, bounds=(1, LONG_MAX), default=604_800_000),
)
"""Settings that are kept and shown, because tools set them by themselves, and change nothing."""

_FIXED: Final = (
    TopicSetting(
        "cleanup.policy", _LIST, "expired records are deleted; nothing is compacted", ("delete",)
    ),
    TopicSetting(
        "compression.type", _STRING, "batches keep the producer's compression", ("producer",)
    ),
    TopicSetting("delay.dialects", _LIST, "the delay headers that the broker reads", ("latermq",)),
    TopicSetting(
        "errors.deadletterqueue.group.enable",
        _BOOLEAN,
        "share groups have no dead letter queue",
        ("false",),
    ),
    TopicSetting(
        "flush.messages", _LONG, "flush.mode of the broker determines syncs", (_NO_LIMIT,)
    ),
    TopicSetting("flush.ms", _LONG, "flush.mode of the broker determines syncs", (_NO_LIMIT,)),
    TopicSetting("follower.replication.throttled.replicas", _LIST, "nothing is throttled", ("",)),
    TopicSetting("leader.replication.throttled.replicas", _LIST, "nothing is throttled", ("",)),
    TopicSetting(
        "local.retention.bytes", _LONG, "as `retention.bytes`: there is one tier", ("-2",)
    ),
    TopicSetting("local.retention.ms", _LONG, "as `retention.ms`: there is one tier", ("-2",)),
    TopicSetting(
        "message.downconversion.enable",
        _BOOLEAN,
        "message formats 0 and 1 are not served",
        ("false",),
    ),
    TopicSetting(
        "message.timestamp.after.max.ms",
        _LONG,
        "a timestamp in the future is not refused",
        (_NO_LIMIT,),
    ),
    TopicSetting(
        "message.timestamp.before.max.ms",
        _LONG,
        "a timestamp in the past is not refused",
        (_NO_LIMIT,),
    ),
    TopicSetting(
        "message.timestamp.difference.max.ms",
        _LONG,
        "timestamps far from the current time are not refused",
        (_NO_LIMIT,),
    ),
    TopicSetting("min.insync.replicas", _INT, "there is one broker", ("1",)),
    TopicSetting("preallocate", _BOOLEAN, "log segments are fully preallocated", ("true",)),
    TopicSetting("remote.log.copy.disable", _BOOLEAN, "there is one tier", ("false",)),
    TopicSetting("remote.log.delete.on.disable", _BOOLEAN, "there is one tier", ("false",)),
    TopicSetting("remote.storage.enable", _BOOLEAN, "there is one tier", ("false",)),
    TopicSetting("unclean.leader.election.enable", _BOOLEAN, "there is one broker", ("false",)),
)
"""Settings with one accepted value."""

_ABSENT: Final = (
    TopicSetting("compression.gzip.level", _INT, "the broker compresses nothing"),
    TopicSetting("compression.lz4.level", _INT, "the broker compresses nothing"),
    TopicSetting("compression.zstd.level", _INT, "the broker compresses nothing"),
    TopicSetting("internal.segment.bytes", _INT, "all topics share the files of one log"),
    TopicSetting(
        "max.decompressed.message.bytes",
        _INT,
        "`limits.decompressed_size_max_bytes` of the broker applies",
    ),
    TopicSetting("message.format.version", _STRING, "there is one message format, 2"),
    TopicSetting("min.cleanable.dirty.ratio", _DOUBLE, "nothing is compacted"),
    TopicSetting("remote.copy.lag.bytes", _LONG, "there is one tier"),
    TopicSetting("remote.copy.lag.ms", _LONG, "there is one tier"),
)
"""Settings that do not apply here."""

TOPIC_SETTINGS: Final = (*_CHOSEN, *_STORED, *_FIXED, *_ABSENT)
