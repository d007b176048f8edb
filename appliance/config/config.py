"""The settings of a broker: their names, allowed values, and the reasons for their defaults.

A `Config` is always valid: its constructor checks every value and the relations between them.
docs/CONFIGURATION.md has the same table; a test compares the two. appliance.config.config_file
reads a file of settings. Layer 1; does no I/O.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from appliance.config.delay import DelaySettings
from appliance.config.disk import NEVER_PERCENT, DiskSettings
from appliance.config.flush import FlushSettings
from appliance.config.groups import GroupSettings
from appliance.config.index import IndexSettings
from appliance.config.limits import LimitSettings
from appliance.config.network import NetworkSettings
from appliance.config.process import ProcessSettings
from appliance.config.replication import ReplicationSettings
from appliance.config.retention import RetentionSettings
from appliance.config.setting import (
    Address,
    Setting,
    is_loopback,
    is_wildcard,
    parse_address,
)
from appliance.config.store import StoreSettings
from appliance.config.topics import TopicSettings
from appliance.errors import ConfigError
from appliance.log_text import SHOWN_MAX_CHARS
from appliance.units import (
    KIB,
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


@dataclass(frozen=True, kw_only=True)
class Config(
    ProcessSettings,
    GroupSettings,
    DelaySettings,
    LimitSettings,
    ReplicationSettings,
    RetentionSettings,
    TopicSettings,
    FlushSettings,
    NetworkSettings,
    DiskSettings,
    IndexSettings,
    StoreSettings,
):
    """All settings of one broker: a base class for each section of the configuration file.

    Raises:
        ConfigError: a value is not allowed, or two conflict; the message names them and what to
            change.
    """

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
        _check_disk(self)
        _check_replication(self)
        _check_clock(self)

    @property
    def request_size_limit_bytes(self) -> int:
        """The largest request: what is allowed, and fits into the memory for all of them."""
        return min(self.request_size_max_bytes, self.inflight_max_bytes)

    @property
    def topic_batch_size_max_bytes(self) -> int:
        """The largest batch that a topic can allow, if a request and a segment hold it."""
        overhead = _topic_frames_size(self)
        return min(
            self.raised_batch_size_max_bytes,
            self.request_size_limit_bytes - REQUEST_OVERHEAD_BYTES,
            (self.segment_size_bytes - overhead) // FRAME_GROWTH,
        )


def _topic_frames_size(config: Config) -> int:
    states = config.partition_count_max_per_topic * PARTITION_STATE_SIZE_MAX_BYTES
    return TOPIC_FRAME_SIZE_MAX_BYTES + states


def settings() -> dict[str, Setting]:
    """Return the setting of each field of `Config`, by name, in order."""
    return {each.name: each.metadata["setting"] for each in fields(Config)}


def _refused(setting: Setting, value: object, problem: str) -> ConfigError:
    name = f"{setting.key} ({setting.flag})" if setting.flag else setting.key
    allowed = f"{setting.allowed} {setting.unit}".rstrip()
    reason = _shorten(problem, 2 * SHOWN_MAX_CHARS)
    return ConfigError(f"{name} = {_show(value)} is not valid: {reason}; use {allowed}")


def _show(value: object) -> str:
    """Write a value for an error message: whatever it is, the message fits a line of a log."""
    if isinstance(value, int) and value.bit_length() > SHOWN_MAX_CHARS:
        return f"(a number of {value.bit_length()} bits)"  # Python writes no number of any size
    return _shorten(str(value) if isinstance(value, Path | Address) else repr(value))


def _shorten(text: str, char_count_max: int = SHOWN_MAX_CHARS) -> str:
    return text if len(text) <= char_count_max else f"{text[:char_count_max]}..."


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
    _at_most(config, "batch_size_max_bytes", "decompressed_size_max_bytes")
    _at_most(config, "decompressed_size_max_bytes", "request_decompressed_size_max_bytes")
    _check(
        config.batch_size_max_bytes + REQUEST_OVERHEAD_BYTES <= config.request_size_limit_bytes,
        f"{_request_limit_name(config)} = {config.request_size_limit_bytes} has no room for a "
        f"batch: it must be at least limits.batch_size_max_bytes = {config.batch_size_max_bytes} "
        f"plus {REQUEST_OVERHEAD_BYTES}",
    )
    size = config.segment_size_bytes
    _check(
        size % PAGE_SIZE_BYTES == 0,
        f"store.segment_size_bytes = {size} is not a multiple of {PAGE_SIZE_BYTES}",
    )
    largest = max(config.decompressed_size_max_bytes, config.delivery_batch_max_bytes)
    needed = FRAME_GROWTH * largest + _topic_frames_size(config)
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


def _request_limit_name(config: Config) -> str:
    name = "request_size_max_bytes"
    if config.inflight_max_bytes < config.request_size_max_bytes:
        name = "inflight_max_bytes"
    return settings()[name].key


def _check_counts(config: Config) -> None:
    _at_most(config, "default_partition_count", "partition_count_max_per_topic")
    _at_most(config, "partition_count_max_per_topic", "partition_total_max")
    _at_most(config, "session_timeout_min_ms", "session_timeout_max_ms")
    _at_most(config, "group_size_max_bytes", "group_total_size_max_bytes")


def _check_disk(config: Config) -> None:
    _check(
        config.disk_warn_percent < config.disk_refuse_percent,
        f"disk.warn_percent = {config.disk_warn_percent} is not below disk.refuse_percent = "
        f"{config.disk_refuse_percent}: lower the one or raise the other",
    )
    expire_percent = config.disk_expire_percent
    _check(
        expire_percent == NEVER_PERCENT
        or config.disk_warn_percent < expire_percent < config.disk_refuse_percent,
        f"disk.expire_percent = {expire_percent} is not between disk.warn_percent = "
        f"{config.disk_warn_percent} and disk.refuse_percent = {config.disk_refuse_percent}: "
        "change one of them",
    )


def _check_replication(config: Config) -> None:
    _check(
        config.role == "master" or config.master is not None,
        "replication.role = slave (--role) needs the address of its master: set "
        "replication.master (--master HOST:PORT)",
    )
    _check(
        config.role == "slave" or config.master is None,
        f"replication.master = {config.master} (--master) is for a slave: add --role slave, or "
        "remove it",
    )
    _check(
        2 * config.replication_lease_ms >= config.replication_timeout_ms,
        f"replication.lease_ms = {config.replication_lease_ms} is less than half of "
        f"replication.timeout_ms = {config.replication_timeout_ms}: the slave is asked every "
        "quarter of it, and could not keep up the lease; raise the one or lower the other",
    )
    for endpoint in config.etcd:
        _check(
            endpoint.is_secure or is_loopback(endpoint.host) or config.allow_insecure,
            f"replication.etcd = {endpoint} lets others change who is the master: use https, or "
            "permit it with network.allow_insecure = true (--allow-insecure)",
        )
    _check(
        not config.etcd or (config.peer or config.master) is not None,
        "replication.etcd needs replication.peer, the other node's address: an old master asks "
        "there for the new one",
    )
    _check(
        not config.etcd or config.replication != "none",
        "replication.etcd is for a pair: set replication.mode to async or sync",
    )
    peers = {"listen": config.replication_listen if config.replication != "none" else None}
    peers["master"], peers["peer"] = config.master, config.peer
    for name, address in peers.items():
        _check(
            address is None
            or config.replication_secret_file is not None
            or is_loopback(address.host),
            f"replication.{name} = {address} lets another machine have the log: set "
            "replication.secret_file, the same on both nodes",
        )


def _check_clock(config: Config) -> None:
    if config.clock == "system":
        return
    for key, address in (("network.listen", config.listen), ("network.admin", config.admin)):
        _check(
            is_loopback(address.host),
            f"{key} = {address} lets other machines use a broker whose clock anybody can advance: "
            "use 127.0.0.1 with process.clock = virtual (--clock)",
        )
    _check(
        config.role == "master" and config.replication == "none" and not config.etcd,
        "process.clock = virtual (--clock) is for tests with one broker: leave the pair out",
    )


def _at_most(config: Config, lower: str, upper: str) -> None:
    known = settings()
    low, high = getattr(config, lower), getattr(config, upper)
    _check(
        low <= high,
        f"{known[lower].key} = {low} is above {known[upper].key} = {high}: "
        "lower the one or raise the other",
    )
