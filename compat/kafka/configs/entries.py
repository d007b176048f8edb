"""Topic and broker settings in the form that Kafka clients see. Layer 3; does no I/O."""

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple

from compat.kafka.protocol.registry import Fields

SHOWN_CHARS_MAX: Final = 64
"""Characters of a wrong name or value that an error message repeats: both come from the network."""


class ResourceType(enum.IntEnum):
    """Kafka's number for the type of a configured resource."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


class ConfigSource(enum.IntEnum):
    """Kafka's number for the source of a setting's value."""

    TOPIC = 1
    """Set on the topic; Kafka's DYNAMIC_TOPIC_CONFIG."""
    BROKER = 4
    """From the broker's configuration file or its flags; Kafka's STATIC_BROKER_CONFIG."""
    DEFAULT = 5


class ConfigType(enum.IntEnum):
    """Kafka's number for the type of a value; values are always sent as text."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Synonym(NamedTuple):
    """A possible source of a setting's value."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting with its value.

    Args:
        name: the name that clients use.
        type: of the value.
        note: a sentence that documents the setting.
        is_read_only: clients cannot change it.
        synonyms: the sources of the value in order of precedence; at least one.
    """

    name: str
    type: ConfigType
    note: str
    is_read_only: bool
    synonyms: tuple[Synonym, ...]

    @property
    def value(self) -> str | None:
        """The effective value."""
        return self.synonyms[0].value

    @property
    def source(self) -> ConfigSource:
        """The source of the effective value."""
        return self.synonyms[0].source

    def fields(self) -> Fields:
        """Return the fields that CreateTopics and DescribeConfigs responses share."""
        return {
            "name": self.name,
            "value": self.value,
            "read_only": self.is_read_only,
            "config_source": self.source,
            "is_sensitive": False,
        }


def shown(text: str) -> str:
    """Quote a name or value from the network for an error message, truncated."""
    return repr(text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "...")
