"""The settings of a topic: Kafka's by Kafka's names, and latermq's own.

A setting is honoured, or it is refused by its name: a topic that was made with retention.ms=1000
and keeps its records for ever would be a lie. One exception lets the tools pass that write out
defaults: a setting given with exactly the value that this broker has anyway is accepted and kept.
Layer 3; does no I/O.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from appliance.config import Config
from appliance.config import settings as config_settings
from appliance.errors import InvalidSettingError
from compat.kafka.broker_settings import broker_synonyms
from compat.kafka.config_entries import (
    SHOWN_CHARS_MAX,
    ConfigEntry,
    ConfigSource,
    Synonym,
    shown,
)
from compat.kafka.topic_setting_table import TOPIC_SETTINGS, TopicSetting

_DIGITS: Final = re.compile(r"[0-9]{1,19}", re.ASCII)

LIKENESS_MIN: Final = 0.6
"""So much a setting must have in common with a name that is unknown, to be what may be meant."""

_PAIR_BITS: Final = 509
_BY_NAME: Final = {setting.name: setting for setting in TOPIC_SETTINGS}


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """What the settings of one topic mean for its records."""

    batch_size_max_bytes: int
    delay_max_ms: int
    uses_append_time: bool
    """Records carry the time of append or delivery, not the producer's."""
    reads_delay_headers: bool
    uses_due_time: bool
    """A delivered record carries its due time, not the timestamp it came with."""


def check_topic_settings(settings: Mapping[str, str | None], config: Config) -> dict[str, str]:
    """Check the settings of a topic that is about to be made.

    Args:
        settings: as a client gave them.
        config: the broker's, whose limits a topic can lower and not raise.

    Returns:
        The settings to keep with the topic.

    Raises:
        InvalidSettingError: names the first setting that is unknown, not supported yet, or has a
            value that is not allowed.
    """
    return {name: _check_value(name, value, config) for name, value in settings.items()}


def read_topic_policy(settings: Mapping[str, str], config: Config) -> TopicPolicy:
    """Tell what the settings kept with a topic mean.

    Args:
        settings: what check_topic_settings returned when the topic was made.
        config: the broker's now: a limit lowered since then holds.
    """

    def number(name: str, limit: int) -> int:
        return min(int(settings.get(name, limit)), limit)

    return TopicPolicy(
        batch_size_max_bytes=number("max.message.bytes", config.batch_size_max_bytes),
        delay_max_ms=number("delay.max.ms", config.delay_max_ms),
        uses_append_time=settings.get("message.timestamp.type") == "LogAppendTime",
        reads_delay_headers=settings.get("delay.headers") != "off",
        uses_due_time=settings.get("delay.timestamp") == "due",
    )


def list_topic_settings(settings: Mapping[str, str], config: Config) -> list[ConfigEntry]:
    """List every setting that has a value here, given or not, in the order of the names."""
    entries = []
    for setting in sorted(TOPIC_SETTINGS, key=lambda setting: setting.name):
        synonyms = _synonyms(setting, settings.get(setting.name), config)
        if synonyms:
            entries.append(
                ConfigEntry(
                    setting.name,
                    setting.type,
                    setting.note,
                    is_read_only=not setting.is_supported,
                    synonyms=tuple(synonyms),
                )
            )
    return entries


def _synonyms(setting: TopicSetting, given: str | None, config: Config) -> list[Synonym]:
    """Where the value may come from: the topic, the broker, the default; nothing if it has none."""
    found: list[Synonym] = []
    if setting.limit is not None:
        found = broker_synonyms(setting.limit, config)
        if given is not None:
            # What the broker lowered since then holds.
            value = str(min(int(given), getattr(config, setting.limit)))
            found.insert(0, Synonym(setting.name, value, ConfigSource.TOPIC))
    elif setting.values:
        if given is not None:
            found.append(Synonym(setting.name, given, ConfigSource.TOPIC))
        found.append(Synonym(setting.name, setting.values[0], ConfigSource.DEFAULT))
    return found


def find_topic_setting(name: str) -> TopicSetting:
    """Return the setting of that name.

    Raises:
        InvalidSettingError: there is none; says which one may be meant.
    """
    setting = _BY_NAME.get(name)
    if setting is None:
        raise InvalidSettingError(f"there is no topic setting {shown(name)}{_suggestion(name)}")
    return setting


def _check_value(name: str, value: str | None, config: Config) -> str:
    setting = find_topic_setting(name)
    if value is None:
        raise InvalidSettingError(f"{name} has no value")
    if setting.limit is not None:
        return _check_number(name, value, setting.limit, getattr(config, setting.limit))
    if value in setting.values:
        return value
    if setting.is_supported:
        allowed = " or ".join(setting.values)
        raise InvalidSettingError(f"{name} is {allowed}, not {shown(value)}")
    raise InvalidSettingError(
        f"{name}={shown(value)} is not supported yet"
        + "".join(f"; this broker always has {name}={only}" for only in setting.values)
    )


def _check_number(name: str, value: str, limit_name: str, limit: int) -> str:
    if not _DIGITS.fullmatch(value):
        raise InvalidSettingError(f"{name} is a whole number from 0 up, not {shown(value)}")
    if int(value) > limit:
        raise InvalidSettingError(
            f"{name}={value} is above {config_settings()[limit_name].key} of the broker, {limit}"
        )
    return str(int(value))


def _suggestion(name: str) -> str:
    # Names come from the network, thousands in a request, and difflib takes a millisecond for one.
    pairs = _letter_pairs(name[:SHOWN_CHARS_MAX])
    near = max(_PAIRS, key=lambda known: _likeness(pairs, _PAIRS[known]))
    return f"; did you mean {near}?" if _likeness(pairs, _PAIRS[near]) >= LIKENESS_MIN else ""


def _letter_pairs(name: str) -> int:
    """The pairs of neighbouring letters in a name, as a set of bits; some share a bit."""
    bits = 0
    for first, second in pairwise(name):
        bits |= 1 << (31 * ord(first) + ord(second)) % _PAIR_BITS
    return bits


def _likeness(pairs: int, others: int) -> float:
    """What two names have in common: 0 nothing, 1 all."""
    return 2 * (pairs & others).bit_count() / max(1, pairs.bit_count() + others.bit_count())


_PAIRS: Final = {name: _letter_pairs(name) for name in _BY_NAME}
