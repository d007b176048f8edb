"""The settings of a broker: what each is called, what it may be, and why its default is what it is.

A `Config` that exists is valid: its constructor checks every value and how the values fit together.
docs/CONFIGURATION.md shows the same table and a test holds the two together; appliance.config_file
reads a file of them.
Layer 1; does no I/O.
"""

from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Final, Literal

from appliance import network_settings, store_settings
from appliance.errors import ConfigError
from appliance.setting import (
    LEVEL_COUNT_MAX,
    Address,
    Setting,
    about,
    is_loopback,
    is_wildcard,
    number,
    parse_address,
    read_address,
    read_choice,
    read_levels,
    read_optional_address,
    read_path,
    switch,
)
from appliance.units import (
    GIB,
    KIB,
    MIB,
    MS_PER_DAY,
    MS_PER_HOUR,
    MS_PER_MINUTE,
    PAGE_SIZE_BYTES,
    format_duration_ms,
)

__all__ = [
    "Address",
    "Config",
    "Setting",
    "is_loopback",
    "is_wildcard",
    "parse_address",
    "settings",
]

FRAME_GROWTH: Final = 4
"""How many times its batch a frame may be: a 17-byte record can need a 48-byte timer entry."""

TOPIC_FRAME_SIZE_MAX_BYTES: Final = 4 * KIB
PARTITION_STATE_SIZE_MAX_BYTES: Final = 32
"""A segment begins with a topic's frame, which holds so much for each partition."""

REQUEST_OVERHEAD_BYTES: Final = KIB
"""Room in a Produce request around its one batch: header, client id, topic name."""


_ADDRESS: Final = "HOST:PORT, an IPv6 host in brackets"
_FLUSH: Final = ("sync", "async")
_LOOPS: Final = ("auto", "uvloop", "asyncio")
_LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_ROCKETMQ_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of one broker.

    Raises:
        ConfigError: a value is not allowed, or two do not fit; names them and what to change.
    """

    data_dir: Path = field(
        default=Path("latermq-data"),
        metadata=about(
            "data_dir",
            read_path,
            "a directory, made if missing",
            "Holds everything; one broker at a time.",
            flag="--data-dir",
        ),
    )
    listen: Address = field(
        default=Address("127.0.0.1", 9092),
        metadata=about(
            "network.listen",
            read_address,
            _ADDRESS,
            "Where Kafka clients connect; 9092 is Kafka's port. Port 0 takes a free one.",
            flag="--listen",
        ),
    )
    admin: Address = field(
        default=Address("127.0.0.1", 9192),
        metadata=about(
            "network.admin",
            read_address,
            _ADDRESS,
            "Where health, metrics and the admin API are served over HTTP.",
            flag="--admin",
        ),
    )
    advertise: Address | None = field(
        default=None,
        metadata=about(
            "network.advertise",
            read_optional_address,
            _ADDRESS,
            "What clients are told to connect to; needed if `listen` is a wildcard. "
            "Port 0 means the port of `listen`.",
            flag="--advertise",
        ),
    )
    allow_insecure: bool = switch(
        False,
        "network.allow_insecure",
        "Lets others than this machine connect without encryption and password.",
        flag="--allow-insecure",
    )
    connection_count_max: int = network_settings.CONNECTION_COUNT_MAX
    connection_count_max_per_address: int = network_settings.CONNECTION_COUNT_MAX_PER_ADDRESS
    idle_timeout_ms: int = network_settings.IDLE_TIMEOUT_MS
    receive_timeout_ms: int = network_settings.RECEIVE_TIMEOUT_MS
    inflight_max_bytes: int = network_settings.INFLIGHT_MAX_BYTES
    request_size_max_bytes: int = network_settings.REQUEST_SIZE_MAX_BYTES
    fetch_size_max_bytes: int = network_settings.FETCH_SIZE_MAX_BYTES
    fetch_wait_max_ms: int = network_settings.FETCH_WAIT_MAX_MS
    flush: Literal["sync", "async"] = field(
        default="sync",
        metadata=about(
            "flush.mode",
            partial(read_choice, _FLUSH),
            " or ".join(_FLUSH),
            "What is acknowledged survives, sync: a power cut, async: the end of the process.",
            flag="--flush",
        ),
    )
    flush_interval_ms: int = number(
        200,
        "flush.interval_ms",
        (1, MS_PER_MINUTE),
        "async: how often the log is synced; well below `flush.bound_ms`, to leave time to sync.",
    )
    flush_bound_ms: int = number(
        500,
        "flush.bound_ms",
        (1, 10 * MS_PER_MINUTE),
        "async: acknowledged messages that a power cut can take are never older. "
        "Beyond it, Produce waits for the disk.",
    )
    flush_backlog_max_bytes: int = number(
        8 * MIB,
        "flush.backlog_max_bytes",
        (64 * KIB, GIB),
        "sync: while more waits for the disk, producers are not read: due messages come behind it.",
    )
    flush_timeout_ms: int = number(
        5_000,
        "flush.timeout_ms",
        (100, 10 * MS_PER_MINUTE),
        "Produce that waits longer for the disk is answered REQUEST_TIMED_OUT; RocketMQ's 5 s.",
    )
    segment_size_bytes: int = number(
        GIB,
        "store.segment_size_bytes",
        (64 * KIB, GIB),
        "Size of one file of the log, a multiple of 4096; RocketMQ's. Frame sizes have 32 bits.",
    )
    prewrite_segments: bool = switch(
        False,
        "store.prewrite_segments",
        "With sync flush: writes the zeros of the next segment in the background. Flushes cost "
        "less where the file system has a journal; each byte of the log is written twice. Measure.",
    )
    must_exist: bool = store_settings.MUST_EXIST
    loss_max_bytes: int = store_settings.LOSS_MAX_BYTES
    checkpoint_interval_bytes: int = store_settings.CHECKPOINT_INTERVAL_BYTES
    cache_size_bytes: int = store_settings.CACHE_SIZE_BYTES
    default_partition_count: int = number(
        4,
        "topics.default_partition_count",
        (1, 100_000),
        "Of a topic that is made without saying how many; RocketMQ's four queues.",
        unit="partitions",
    )
    auto_create_topics: bool = switch(
        True,
        "topics.auto_create",
        "Makes a topic when a producer first names it, as Kafka does.",
    )
    partition_count_max_per_topic: int = number(
        1_000,
        "topics.partition_count_max_per_topic",
        (1, 100_000),
        "Each is a directory, an open file and a place in every Metadata answer.",
        unit="partitions",
    )
    topic_count_max: int = number(
        10_000,
        "topics.topic_count_max",
        (1, 1_000_000),
        "Bounds what a client can make by asking for names.",
        unit="topics",
    )
    partition_total_max: int = number(
        100_000,
        "topics.partition_total_max",
        (1, 10_000_000),
        "Of all topics together.",
        unit="partitions",
    )
    batch_size_max_bytes: int = number(
        1_048_588,
        "limits.batch_size_max_bytes",
        (KIB, 100 * MIB),
        "Of one record batch as it is sent; Kafka's message.max.bytes.",
    )
    decompressed_size_max_bytes: int = number(
        64 * MIB,
        "limits.decompressed_size_max_bytes",
        (KIB, 256 * MIB),
        "Of one record batch when it is unpacked to read its delay headers.",
    )
    request_decompressed_size_max_bytes: int = number(
        64 * MIB,
        "limits.request_decompressed_size_max_bytes",
        (KIB, GIB),
        "Of all record batches of one Produce together: it is unpacked while others wait.",
    )
    record_size_max_bytes: int = number(
        4 * MIB,
        "limits.record_size_max_bytes",
        (256, 256 * MIB),
        "Of one record when it is unpacked, headers included.",
    )
    header_count_max: int = number(
        1_000, "limits.header_count_max", (1, 100_000), "Of one record.", unit="headers"
    )
    header_size_max_bytes: int = number(
        64 * KIB,
        "limits.header_size_max_bytes",
        (64, 100 * MIB),
        "Of all headers of one record together.",
    )
    delay_max_ms: int = number(
        3_650 * MS_PER_DAY,
        "delay.max_ms",
        (1, 36_500 * MS_PER_DAY),
        "What is due later after its receipt is refused; ten years.",
    )
    delay_levels: tuple[int, ...] = field(
        default=read_levels(_ROCKETMQ_LEVELS),
        metadata=about(
            "delay.levels",
            read_levels,
            f"1 to {LEVEL_COUNT_MAX} durations such as 30s, none above `delay.max_ms`",
            "What `x-delay-level` 1, 2, ... mean; RocketMQ's 18 levels.",
        ),
    )
    delivery_chunk_records: int = number(
        2_048,
        "delay.delivery_chunk_records",
        (1, 100_000),
        "Due records delivered in one turn of the loop, before requests are served again.",
    )
    delivery_batch_max_bytes: int = number(
        MIB,
        "delay.delivery_batch_max_bytes",
        (KIB, 64 * MIB),
        "Of one delivered batch; one record is always delivered.",
    )
    fired_id_memory_ms: int = number(
        24 * MS_PER_HOUR,
        "delay.fired_id_memory_ms",
        (0, 365 * MS_PER_DAY),
        "How long the id of a delivered or cancelled timer can be looked up.",
    )
    producer_id_expiry_ms: int = number(
        24 * MS_PER_HOUR,
        "producers.id_expiry_ms",
        (1_000, 365 * MS_PER_DAY),
        "How long the sequence of a silent idempotent producer is kept; Kafka's one day.",
    )
    session_timeout_min_ms: int = number(
        6_000,
        "groups.session_timeout_min_ms",
        (1, MS_PER_DAY),
        "A consumer that asks for less is refused; Kafka's.",
    )
    session_timeout_max_ms: int = number(
        30 * MS_PER_MINUTE,
        "groups.session_timeout_max_ms",
        (1, MS_PER_DAY),
        "A consumer that asks for more is refused; Kafka's.",
    )
    initial_rebalance_delay_ms: int = number(
        500,
        "groups.initial_rebalance_delay_ms",
        (0, 5 * MS_PER_MINUTE),
        "How long an empty group waits for further members before its first assignment, "
        "so that those that start together get one. Kafka's 3 s make every start slow.",
    )
    group_count_max: int = number(
        10_000,
        "groups.count_max",
        (1, 1_000_000),
        "Consumer groups; bounds what a client can make by naming them.",
        unit="groups",
    )
    group_member_count_max: int = number(
        1_000,
        "groups.member_count_max",
        (1, 100_000),
        "Of one group; Kafka's group.max.size. A further member is refused.",
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
        "The same, of all groups together.",
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
        "What a consumer may store with one offset; Kafka's offset.metadata.max.bytes.",
    )
    offset_total_size_max_bytes: int = number(
        128 * MIB,
        "groups.offset_total_size_max_bytes",
        (4 * KIB, 64 * GIB),
        "Committed offsets of all groups, with what is stored beside them; about 70 bytes each.",
    )
    loop: Literal["auto", "uvloop", "asyncio"] = field(
        default="auto",
        metadata=about(
            "process.loop",
            partial(read_choice, _LOOPS),
            ", ".join(_LOOPS),
            "The event loop; auto takes uvloop if it is installed, which halves the cost of Fetch.",
        ),
    )
    process_priority: int = number(
        -5,
        "process.priority",
        (-20, 19),
        "Set where permitted: on a busy machine lateness is waiting for a processor. "
        "0 leaves it alone.",
        unit="nice",
    )
    log_level: Literal["debug", "info", "warning", "error"] = field(
        default="info",
        metadata=about(
            "process.log_level",
            partial(read_choice, _LOG_LEVELS),
            ", ".join(_LOG_LEVELS),
            "What is written to standard error.",
        ),
    )

    def __post_init__(self) -> None:
        for name, setting in settings().items():
            value: object = getattr(self, name)
            try:
                read = setting.read(value)
            except (TypeError, ValueError) as error:
                raise _refused(setting, value, str(error)) from None
            object.__setattr__(self, name, read)
        _check_addresses(self)
        _check_flush(self)
        _check_sizes(self)
        _check_counts(self)


def settings() -> dict[str, Setting]:
    """Return what is known of each field of `Config`, by its name and in its order."""
    return {each.name: each.metadata["setting"] for each in fields(Config)}


def _refused(setting: Setting, value: object, problem: str) -> ConfigError:
    name = f"{setting.key} ({setting.flag})" if setting.flag else setting.key
    shown = str(value) if isinstance(value, Path | Address) else repr(value)
    allowed = f"{setting.allowed} {setting.unit}".rstrip()
    return ConfigError(f"{name} = {shown} is refused: {problem}; allowed is {allowed}")


def _check(is_fine: bool, message: str) -> None:
    if not is_fine:
        raise ConfigError(message)


def _check_addresses(config: Config) -> None:
    for key, address in (("network.listen", config.listen), ("network.admin", config.admin)):
        _check(
            config.allow_insecure or is_loopback(address.host),
            f"{key} = {address} lets other machines connect without encryption and password: "
            "use 127.0.0.1, or accept it with network.allow_insecure = true (--allow-insecure)",
        )
    _check(
        config.listen != config.admin or config.listen.port == 0,
        f"network.listen and network.admin are both {config.listen}: give them different ports",
    )
    advertise = config.advertise
    _check(
        advertise is not None or not is_wildcard(config.listen.host),
        f"network.listen = {config.listen} is no address that clients can connect to: say what "
        "they shall use with network.advertise (--advertise HOST:PORT)",
    )
    _check(
        advertise is None or not is_wildcard(advertise.host),
        f"network.advertise = {advertise} is no address that clients can connect to",
    )


def _check_flush(config: Config) -> None:
    _check(
        config.flush_interval_ms <= config.flush_bound_ms,
        f"flush.interval_ms = {config.flush_interval_ms} is above flush.bound_ms = "
        f"{config.flush_bound_ms}: the bound cannot hold, so lower the one or raise the other",
    )
    longest = max(config.delay_levels)
    _check(
        longest <= config.delay_max_ms,
        f"delay.levels has {format_duration_ms(longest)}, which is above delay.max_ms = "
        f"{config.delay_max_ms}: shorten the level or raise the limit",
    )


def _check_sizes(config: Config) -> None:
    _at_most(config, "header_size_max_bytes", "record_size_max_bytes")
    _at_most(config, "record_size_max_bytes", "decompressed_size_max_bytes")
    _at_most(config, "batch_size_max_bytes", "decompressed_size_max_bytes")
    _at_most(config, "decompressed_size_max_bytes", "request_decompressed_size_max_bytes")
    _at_most(config, "request_size_max_bytes", "inflight_max_bytes")
    _check(
        config.batch_size_max_bytes + REQUEST_OVERHEAD_BYTES <= config.request_size_max_bytes,
        f"network.request_size_max_bytes = {config.request_size_max_bytes} has no room for a "
        f"batch: it must be at least limits.batch_size_max_bytes = {config.batch_size_max_bytes} "
        f"and {REQUEST_OVERHEAD_BYTES} more",
    )
    size = config.segment_size_bytes
    _check(
        size % PAGE_SIZE_BYTES == 0,
        f"store.segment_size_bytes = {size} is no multiple of {PAGE_SIZE_BYTES}",
    )
    largest = max(config.decompressed_size_max_bytes, config.delivery_batch_max_bytes)
    states = config.partition_count_max_per_topic * PARTITION_STATE_SIZE_MAX_BYTES
    needed = FRAME_GROWTH * largest + TOPIC_FRAME_SIZE_MAX_BYTES + states
    _check(
        size >= needed,
        f"store.segment_size_bytes = {size} cannot hold the largest frame: it must be at least "
        f"{needed}, which is {FRAME_GROWTH} times limits.decompressed_size_max_bytes or "
        f"delay.delivery_batch_max_bytes, whichever is larger, and {PARTITION_STATE_SIZE_MAX_BYTES}"
        f" for each of topics.partition_count_max_per_topic, and {TOPIC_FRAME_SIZE_MAX_BYTES}",
    )
    groups = config.group_size_max_bytes
    _check(
        size >= FRAME_GROWTH * groups,
        f"store.segment_size_bytes = {size} cannot hold the largest group: it must be at least "
        f"{FRAME_GROWTH} times groups.size_max_bytes = {groups}",
    )


def _check_counts(config: Config) -> None:
    _at_most(config, "default_partition_count", "partition_count_max_per_topic")
    _at_most(config, "partition_count_max_per_topic", "partition_total_max")
    _at_most(config, "session_timeout_min_ms", "session_timeout_max_ms")
    _at_most(config, "group_size_max_bytes", "group_total_size_max_bytes")


def _at_most(config: Config, lower: str, upper: str) -> None:
    known = settings()
    low, high = getattr(config, lower), getattr(config, upper)
    _check(
        low <= high,
        f"{known[lower].key} = {low} is above {known[upper].key} = {high}: "
        "lower the one or raise the other",
    )
