"""The settings of a broker: their names, allowed values, and the reasons for their defaults.

A `Config` is always valid: its constructor checks every value and the relations between them.
docs/CONFIGURATION.md has the same table; a test compares the two. appliance.config.config_file
reads a file of settings. Layer 1; does no I/O.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Literal

from appliance.config.setting import (
    LEVEL_COUNT_MAX,
    Address,
    Setting,
    choice,
    is_loopback,
    is_wildcard,
    number,
    parse_address,
    read_address,
    read_levels,
    read_optional_address,
    read_path,
    switch,
    value,
)
from appliance.errors import ConfigError
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
"""Maximum ratio of a frame to its batch: a 17-byte record can need a 48-byte timer entry."""

TOPIC_FRAME_SIZE_MAX_BYTES: Final = 4 * KIB
PARTITION_STATE_SIZE_MAX_BYTES: Final = 32
"""Bytes per partition in a topic frame, which is repeated in each segment."""

REQUEST_OVERHEAD_BYTES: Final = KIB
"""Room in a Produce request around its one batch: header, client id, topic name."""


_ADDRESS: Final = "HOST:PORT, an IPv6 host in brackets"
_ROCKETMQ_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of one broker.

    Raises:
        ConfigError: a value is not allowed, or two conflict; the message names them and what to
            change.
    """

    data_dir: Path = value(
        Path("latermq-data"),
        "data_dir",
        read_path,
        "a directory, created if missing",
        "Holds all data; one broker at a time.",
        flag="--data-dir",
    )
    listen: Address = value(
        Address("127.0.0.1", 9092),
        "network.listen",
        read_address,
        _ADDRESS,
        "Address for Kafka clients; 9092 is Kafka's port. Port 0 takes a free one.",
        flag="--listen",
    )
    admin: Address = value(
        Address("127.0.0.1", 9192),
        "network.admin",
        read_address,
        _ADDRESS,
        "Address for health, metrics and the admin API, over HTTP.",
        flag="--admin",
    )
    advertise: Address | None = value(
        None,
        "network.advertise",
        read_optional_address,
        _ADDRESS,
        "Address that the broker gives to clients; required if `listen` is a wildcard. "
        "Port 0 means the port of `listen`.",
        flag="--advertise",
    )
    allow_insecure: bool = switch(
        False,
        "network.allow_insecure",
        "Lets other machines connect without encryption and password.",
        flag="--allow-insecure",
    )
    connection_count_max: int = number(
        10_000,
        "network.connection_count_max",
        (1, 1_000_000),
        "Further connections are closed at once. Each takes a file descriptor and some buffers.",
        unit="connections",
    )
    connection_count_max_per_address: int = number(
        5_000,
        "network.connection_count_max_per_address",
        (1, 1_000_000),
        "The same for one IP address, so that one machine cannot take all connections.",
        unit="connections",
    )
    idle_timeout_ms: int = number(
        10 * MS_PER_MINUTE,
        "network.idle_timeout_ms",
        (100, 365 * MS_PER_DAY),
        "A connection is closed if it sends no request, or does not read its answers, for this "
        "long; Kafka's connections.max.idle.ms.",
    )
    receive_timeout_ms: int = number(
        MS_PER_MINUTE,
        "network.receive_timeout_ms",
        (100, MS_PER_DAY),
        "From the first byte of a request to its last; a slower request closes its connection.",
    )
    inflight_max_bytes: int = number(
        256 * MIB,
        "network.inflight_max_bytes",
        (KIB, 1024 * GIB),
        "Memory for requests and answers of all connections. Beyond it, large requests are read "
        "one at a time, and connections that do not read their answers are closed.",
    )
    request_size_max_bytes: int = number(
        32 * MIB,
        "network.request_size_max_bytes",
        (4 * KIB, 100 * MIB),
        "A larger request closes its connection before memory is allocated for it. "
        "Kafka's limit is 100 MiB.",
    )
    fetch_size_max_bytes: int = number(
        55 * MIB,
        "network.fetch_size_max_bytes",
        (KIB, GIB),
        "Maximum size of one Fetch answer, whatever the request allows; Kafka's fetch.max.bytes. "
        "A single larger batch is returned nevertheless.",
    )
    fetch_wait_max_ms: int = number(
        MS_PER_MINUTE,
        "network.fetch_wait_max_ms",
        (0, MS_PER_HOUR),
        "Maximum wait of a Fetch, whatever the request allows.",
    )
    flush: Literal["sync", "async"] = choice(
        "sync",
        "flush.mode",
        ("sync", "async"),
        "Acknowledged messages survive a power cut (sync) or the end of the process (async).",
        flag="--flush",
    )
    flush_interval_ms: int = number(
        200,
        "flush.interval_ms",
        (1, MS_PER_MINUTE),
        "async: interval between syncs of the log; well below `flush.bound_ms`, to leave time to "
        "sync.",
    )
    flush_bound_ms: int = number(
        500,
        "flush.bound_ms",
        (1, 10 * MS_PER_MINUTE),
        "async: maximum age of acknowledged messages that a power cut can lose. "
        "Beyond it, Produce waits for the disk.",
    )
    flush_backlog_max_bytes: int = number(
        8 * MIB,
        "flush.backlog_max_bytes",
        (64 * KIB, GIB),
        "sync: while more bytes wait for the disk, producers are not read, because due messages "
        "would wait for these bytes too.",
    )
    flush_timeout_ms: int = number(
        5_000,
        "flush.timeout_ms",
        (100, 10 * MS_PER_MINUTE),
        "A Produce that waits longer for the disk is answered REQUEST_TIMED_OUT; RocketMQ's 5 s.",
    )
    segment_size_bytes: int = number(
        GIB,
        "store.segment_size_bytes",
        (64 * KIB, GIB),
        "Size of one file of the log, a multiple of 4096; RocketMQ's default. Frame sizes have 32 "
        "bits.",
    )
    prewrite_segments: bool = switch(
        False,
        "store.prewrite_segments",
        "With sync flush: writes the zeros of the next segment in the background. Flushes are "
        "faster on file systems with a journal, but each byte of the log is written twice. Measure "
        "before use.",
    )
    must_exist: bool = switch(
        False,
        "store.must_exist",
        "Refuses to start in a directory without a log, so that a missing mount is not mistaken "
        "for a new broker. Set it after the first start.",
    )
    loss_max_bytes: int = number(
        64 * MIB,
        "store.loss_max_bytes",
        (0, 64 * GIB),
        "A start that would have to declare more of the log lost, or a whole segment, is refused.",
    )
    checkpoint_interval_bytes: int = number(
        GIB,
        "store.checkpoint_interval_bytes",
        (64 * KIB, 64 * GIB),
        "Growth of the log between two checkpoints; after a crash it is replayed, at 1 GB/s.",
    )
    cache_size_bytes: int = number(
        64 * MIB,
        "store.cache_size_bytes",
        (MIB, 64 * GIB),
        "Memory for frames that were read and checked, from which Fetch answers and deliveries are "
        "served. The kernel also caches the files.",
    )
    default_partition_count: int = number(
        4,
        "topics.default_partition_count",
        (1, 100_000),
        "For a topic that is created without a count; RocketMQ's four queues.",
        unit="partitions",
    )
    auto_create_topics: bool = switch(
        True,
        "topics.auto_create",
        "Creates a topic when a producer first names it, as Kafka does.",
    )
    partition_count_max_per_topic: int = number(
        1_000,
        "topics.partition_count_max_per_topic",
        (1, 100_000),
        "Each takes a directory, an open file and an entry in every Metadata answer.",
        unit="partitions",
    )
    topic_count_max: int = number(
        10_000,
        "topics.topic_count_max",
        (1, 1_000_000),
        "Bounds the topics that a client can create by naming them.",
        unit="topics",
    )
    partition_total_max: int = number(
        100_000,
        "topics.partition_total_max",
        (1, 10_000_000),
        "Total of all topics.",
        unit="partitions",
    )
    batch_size_max_bytes: int = number(
        1_048_588,
        "limits.batch_size_max_bytes",
        (KIB, 100 * MIB),
        "One record batch as sent; Kafka's message.max.bytes.",
    )
    decompressed_size_max_bytes: int = number(
        64 * MIB,
        "limits.decompressed_size_max_bytes",
        (KIB, 256 * MIB),
        "One record batch, decompressed to read its delay headers.",
    )
    request_decompressed_size_max_bytes: int = number(
        64 * MIB,
        "limits.request_decompressed_size_max_bytes",
        (KIB, GIB),
        "All record batches of one Produce request: other requests wait while it is decompressed.",
    )
    record_size_max_bytes: int = number(
        4 * MIB,
        "limits.record_size_max_bytes",
        (256, 256 * MIB),
        "One record, decompressed, including its headers.",
    )
    header_count_max: int = number(
        1_000, "limits.header_count_max", (1, 100_000), "Headers of one record.", unit="headers"
    )
    header_size_max_bytes: int = number(
        64 * KIB,
        "limits.header_size_max_bytes",
        (64, 100 * MIB),
        "All headers of one record.",
    )
    delay_max_ms: int = number(
        3_650 * MS_PER_DAY,
        "delay.max_ms",
        (1, 36_500 * MS_PER_DAY),
        "A record with a longer delay is refused; ten years.",
    )
    delay_levels: tuple[int, ...] = value(
        read_levels(_ROCKETMQ_LEVELS),
        "delay.levels",
        read_levels,
        f"1 to {LEVEL_COUNT_MAX} durations such as 30s, none above `delay.max_ms`",
        "The delays of `x-delay-level` 1, 2, ...; RocketMQ's 18 levels.",
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
        "One delivered batch; a single larger record is delivered nevertheless.",
    )
    completed_id_memory_ms: int = number(
        24 * MS_PER_HOUR,
        "delay.completed_id_memory_ms",
        (0, 365 * MS_PER_DAY),
        "How long the id of a delivered or cancelled timer is remembered.",
    )
    producer_id_expiry_ms: int = number(
        24 * MS_PER_HOUR,
        "producers.id_expiry_ms",
        (1_000, 365 * MS_PER_DAY),
        "How long the sequence numbers of an idle idempotent producer are kept; Kafka's one day.",
    )
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
        "Bounds the consumer groups that a client can create by naming them.",
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
    loop: Literal["auto", "uvloop", "asyncio"] = choice(
        "auto",
        "process.loop",
        ("auto", "uvloop", "asyncio"),
        "The event loop; auto takes uvloop if installed, which halves the cost of Fetch.",
    )
    process_priority: int = number(
        -5,
        "process.priority",
        (-20, 19),
        "Set if permitted: on a busy machine, lateness is time spent waiting for a processor. "
        "0 leaves it unchanged.",
        unit="nice",
    )
    log_level: Literal["debug", "info", "warning", "error"] = choice(
        "info",
        "process.log_level",
        ("debug", "info", "warning", "error"),
        "The lowest level that is logged to standard error.",
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
    """Return the setting of each field of `Config`, by name, in order."""
    return {each.name: each.metadata["setting"] for each in fields(Config)}


def _refused(setting: Setting, value: object, problem: str) -> ConfigError:
    name = f"{setting.key} ({setting.flag})" if setting.flag else setting.key
    shown = str(value) if isinstance(value, Path | Address) else repr(value)
    allowed = f"{setting.allowed} {setting.unit}".rstrip()
    return ConfigError(f"{name} = {shown} is not valid: {problem}; use {allowed}")


def _check(is_fine: bool, message: str) -> None:
    if not is_fine:
        raise ConfigError(message)


def _check_addresses(config: Config) -> None:
    for key, address in (("network.listen", config.listen), ("network.admin", config.admin)):
        _check(
            config.allow_insecure or is_loopback(address.host),
            f"{key} = {address} lets other machines connect without encryption and password: "
            "use 127.0.0.1, or permit it with network.allow_insecure = true (--allow-insecure)",
        )
    _check(
        config.listen != config.admin or config.listen.port == 0,
        f"network.listen and network.admin are both {config.listen}: give them different ports",
    )
    advertise = config.advertise
    _check(
        advertise is not None or not is_wildcard(config.listen.host),
        f"network.listen = {config.listen} is not an address that clients can connect to: set "
        "their address with network.advertise (--advertise HOST:PORT)",
    )
    _check(
        advertise is None or not is_wildcard(advertise.host),
        f"network.advertise = {advertise} is not an address that clients can connect to",
    )


def _check_flush(config: Config) -> None:
    _check(
        config.flush_interval_ms <= config.flush_bound_ms,
        f"flush.interval_ms = {config.flush_interval_ms} is above flush.bound_ms = "
        f"{config.flush_bound_ms}: lower the one or raise the other",
    )
    longest = max(config.delay_levels)
    _check(
        longest <= config.delay_max_ms,
        f"delay.levels has {format_duration_ms(longest)}, which exceeds delay.max_ms = "
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
        f"plus {REQUEST_OVERHEAD_BYTES}",
    )
    size = config.segment_size_bytes
    _check(
        size % PAGE_SIZE_BYTES == 0,
        f"store.segment_size_bytes = {size} is not a multiple of {PAGE_SIZE_BYTES}",
    )
    largest = max(config.decompressed_size_max_bytes, config.delivery_batch_max_bytes)
    states = config.partition_count_max_per_topic * PARTITION_STATE_SIZE_MAX_BYTES
    needed = FRAME_GROWTH * largest + TOPIC_FRAME_SIZE_MAX_BYTES + states
    _check(
        size >= needed,
        f"store.segment_size_bytes = {size} cannot hold the largest frame: it must be at least "
        f"{needed}, which is {FRAME_GROWTH} times limits.decompressed_size_max_bytes or "
        f"delay.delivery_batch_max_bytes, whichever is larger, plus "
        f"{PARTITION_STATE_SIZE_MAX_BYTES} times topics.partition_count_max_per_topic, plus "
        f"{TOPIC_FRAME_SIZE_MAX_BYTES}",
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
