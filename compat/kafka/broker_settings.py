"""The settings of the broker as Kafka clients are shown them: ours by our names, and Kafka's.

Tools look for certain names of Kafka's: whether topics are made on first use, how large a message
may be. Those that have an equal here are answered too, each with our own as a synonym. Nothing of
it can be changed by a client. Layer 3; does no I/O.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Final

from appliance.config import Config, settings
from appliance.units import format_duration_ms
from compat.kafka.config_entries import ConfigEntry, ConfigSource, ConfigType, Synonym
from compat.kafka.node import Node

HOW_TO_CHANGE: Final = (
    "no client can change it: write it into the file that the broker is started with "
    "(latermq serve --config FILE), and start the broker again"
)
"""The end of a sentence that refuses to change a setting of the broker."""

_DEFAULTS: Final = {field.name: field.default for field in dataclasses.fields(Config)}

_ALIASES: Final = {
    "auto.create.topics.enable": "auto_create_topics",
    "fetch.max.bytes": "fetch_size_max_bytes",
    "group.initial.rebalance.delay.ms": "initial_rebalance_delay_ms",
    "group.max.session.timeout.ms": "session_timeout_max_ms",
    "group.max.size": "group_member_count_max",
    "group.min.session.timeout.ms": "session_timeout_min_ms",
    "log.dirs": "data_dir",
    "log.segment.bytes": "segment_size_bytes",
    "max.connections": "connection_count_max",
    "message.max.bytes": "batch_size_max_bytes",
    "num.partitions": "default_partition_count",
    "offset.metadata.max.bytes": "offset_metadata_size_max_bytes",
    "producer.id.expiration.ms": "producer_id_expiry_ms",
    "socket.request.max.bytes": "request_size_max_bytes",
}
"""Names of Kafka's, and the field of Config that says the same in the same unit."""

_FACTS: Final[tuple[tuple[str, ConfigType, Callable[[Node], str], str], ...]] = (
    (
        "advertised.listeners",
        ConfigType.STRING,
        lambda node: f"PLAINTEXT://{node.host}:{node.port}",
        "Where clients are told to connect.",
    ),
    ("broker.id", ConfigType.INT, lambda node: str(node.broker.node_id), "There is one broker."),
    ("node.id", ConfigType.INT, lambda node: str(node.broker.node_id), "There is one broker."),
    ("default.replication.factor", ConfigType.INT, lambda _: "1", "There is one broker."),
    ("min.insync.replicas", ConfigType.INT, lambda _: "1", "There is one broker."),
    ("delete.topic.enable", ConfigType.BOOLEAN, lambda _: "true", "Topics can be deleted."),
    ("log.cleanup.policy", ConfigType.LIST, lambda _: "delete", "Nothing is compacted."),
    ("log.retention.bytes", ConfigType.LONG, lambda _: "-1", "No record expires for room."),
    ("log.retention.ms", ConfigType.LONG, lambda _: "-1", "No record expires by its age."),
)
"""What Kafka has a setting for and is as it is here: name, type, value, note."""


def list_broker_settings(node: Node) -> list[ConfigEntry]:
    """List every setting of the broker, in the order of the names."""
    entries = [*_own_settings(node.broker.config), *_kafka_settings(node)]
    return sorted(entries, key=lambda entry: entry.name)


def broker_synonyms(field: str, config: Config) -> list[Synonym]:
    """List where the value of one setting may come from: what is configured, then the default.

    Args:
        field: of Config.
        config: the broker's.
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
    """A value as the configuration file would have it; None for an address that is not set."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case tuple() if field == "delay_levels":
            return " ".join(format_duration_ms(level) for level in value)
        case _:
            return str(value)
