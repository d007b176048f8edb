"""The broker settings that Kafka clients can describe: latermq's own, and some of Kafka's.

Tools look for certain Kafka names, such as whether topics are created on first use or how large a
message may be. Those with an equivalent here are answered as well, with latermq's name as a
synonym. Clients cannot change any of them. Layer 3; does no I/O.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Final

from appliance.config.config import Config, settings
from appliance.units import format_duration_ms
from compat.kafka.configs.entries import ConfigEntry, ConfigSource, ConfigType, Synonym
from compat.kafka.node import Node

HOW_TO_CHANGE: Final = (
    "clients cannot change broker settings: set it in the configuration file of the broker "
    "(latermq serve --config FILE), and restart the broker"
)
"""The end of the error message for a change of a broker setting."""

_DEFAULTS: Final = {field.name: field.default for field in dataclasses.fields(Config)}

_ALIASES: Final = {
    "auto.create.topics.enable": "auto_create_topics",
    "fetch.max.bytes": "fetch_size_max_bytes",
    "group.initial.rebalance.delay.ms": "initial_rebalance_delay_ms",
    "group.max.session.timeout.ms": "session_timeout_max_ms",
    "group.max.size": "group_member_count_max",
    "group.min.session.timeout.ms": "session_timeout_min_ms",
    "log.dirs": "data_dir",
    "log.retention.bytes": "retention_size_bytes",
    "log.retention.check.interval.ms": "retention_check_interval_ms",
    "log.retention.ms": "retention_time_ms",
    "log.segment.bytes": "segment_size_bytes",
    "max.connections": "connection_count_max",
    "message.max.bytes": "batch_size_max_bytes",
    "num.partitions": "default_partition_count",
    "offset.metadata.max.bytes": "offset_metadata_size_max_bytes",
    "producer.id.expiration.ms": "producer_id_expiry_ms",
    "socket.request.max.bytes": "request_size_max_bytes",
}
"""Kafka's names, and the field of Config with the same meaning and unit."""

_NODE_ID_NOTE: Final = "The number of the node in its pair; 1 without a pair."

_FACTS: Final[tuple[tuple[str, ConfigType, Callable[[Node], str], str], ...]] = (
    (
        "advertised.listeners",
        ConfigType.STRING,
        lambda node: f"PLAINTEXT://{node.host}:{node.port}",
        "The address at which clients are told to connect.",
    ),
    ("broker.id", ConfigType.INT, lambda node: str(node.broker.node_id), _NODE_ID_NOTE),
    ("node.id", ConfigType.INT, lambda node: str(node.broker.node_id), _NODE_ID_NOTE),
    ("default.replication.factor", ConfigType.INT, lambda _: "1", "There is one broker."),
    ("min.insync.replicas", ConfigType.INT, lambda _: "1", "There is one broker."),
    ("delete.topic.enable", ConfigType.BOOLEAN, lambda _: "true", "Topics can be deleted."),
    ("log.cleanup.policy", ConfigType.LIST, lambda _: "delete", "Nothing is compacted."),
)
"""Kafka settings that are fixed here: name, type, value, note."""


def list_broker_settings(node: Node) -> list[ConfigEntry]:
    """Return every setting of the broker, sorted by name."""
    entries = [*_own_settings(node.broker.config), *_kafka_settings(node)]
    return sorted(entries, key=lambda entry: entry.name)


def broker_synonyms(field: str, config: Config) -> list[Synonym]:
    """Return the sources of a setting's value: the configured value, then the default.

    Args:
        field: a field of Config.
        config: the broker's configuration.
    """
    key, value, default = settings()[field].key, getattr(config, field), _DEFAULTS[field]
    found = [Synonym(key, _text(field, default), ConfigSource.DEFAULT)]
    if value != default:
        found.insert(0, Synonym(key, _text(field, value), ConfigSource.BROKER))
    return found


def _own_settings(config: Config) -> Iterator[ConfigEntry]:
    for field, setting in settings().items():
        yield _entry(setting.key, field, broker_synonyms(field, config))


def _kafka_settings(node: Node) -> Iterator[ConfigEntry]:
    for name, type_, value_of, note in _FACTS:
        synonyms = (Synonym(name, value_of(node), ConfigSource.DEFAULT),)
        yield ConfigEntry(name, type_, note, is_read_only=True, synonyms=synonyms)
    for name, field in _ALIASES.items():
        yield _entry(name, field, broker_synonyms(field, node.broker.config))


def _entry(name: str, field: str, synonyms: list[Synonym]) -> ConfigEntry:
    return ConfigEntry(
        name, _type(field), settings()[field].reason, is_read_only=True, synonyms=tuple(synonyms)
    )


def _type(field: str) -> ConfigType:
    match _DEFAULTS[field]:
        case bool():
            return ConfigType.BOOLEAN
        case int():
            return ConfigType.LONG
        case _:
            return ConfigType.STRING


def _text(field: str, value: object) -> str | None:
    """Return a value as the configuration file writes it; None for an address that is not set."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case tuple() if field == "delay_levels":
            return " ".join(format_duration_ms(level) for level in value)
        case _:
            return str(value)
