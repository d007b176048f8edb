"""How the setting of a topic or of the broker is shown to Kafka clients. Layer 3; does no I/O."""

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple

from compat.kafka.registry import Fields

SHOWN_CHARS_MAX: Final = 64
"""As much of a bad name or value as a refusal repeats: both come from the network."""


class ResourceType(enum.IntEnum):
    """Kafka's number for what a configuration is of."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


class ConfigSource(enum.IntEnum):
    """Kafka's number for where the value of a setting comes from."""

    TOPIC = 1
    """Given for the topic; Kafka's DYNAMIC_TOPIC_CONFIG."""
    BROKER = 4
    """From the broker's configuration file or its flags; Kafka's STATIC_BROKER_CONFIG."""
    DEFAULT = 5


class ConfigType(enum.IntEnum):
    """Kafka's number for the type of a value, which is a text in any case."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Synonym(NamedTuple):
    """A place that the value of a setting may come from."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting with its value.

    Args:
        name: what clients call it.
        type: of the value.
        note: what it does, in a sentence.
        is_read_only: whether a client cannot change it.
        synonyms: where the value may come from, the place that counts first; at least one.
    """

    name: str
    type: ConfigType
    note: str
    is_read_only: bool
    synonyms: tuple[Synonym, ...]

    @property
    def value(self) -> str | None:
        """The value that counts."""
        return self.synonyms[0].value

    @property
    def source(self) -> ConfigSource:
        """Where that comes from."""
        return self.synonyms[0].source

    def fields(self) -> Fields:
        """The fields that answers to CreateTopics and DescribeConfigs have in common."""
        return {
            "name": self.name,
            "value": self.value,
            "read_only": self.is_read_only,
            "config_source": self.source,
            "is_sensitive": False,
        }


def shown(text: str) -> str:
    """A name or value from the network, quoted, as a refusal may repeat it."""
    return repr(text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "...")
