"""The settings of a topic: Kafka's by Kafka's names, and latermq's own.

A setting is honoured or refused by name: accepting cleanup.policy=compact and compacting nothing
would mislead the user. Two exceptions serve tools that set more than they need: a setting with
exactly the value that this broker always has, and those that only concern the files of Kafka's own
log, are accepted and kept. Layer 3; does no I/O.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from appliance.config.config import Config
from appliance.config.config import settings as config_settings
from appliance.errors import InvalidSettingError
from appliance.units import format_duration_ms, parse_duration_ms
from compat.kafka.configs.broker_settings import broker_synonyms
from compat.kafka.configs.entries import (
    SHOWN_CHARS_MAX,
    ConfigEntry,
    ConfigSource,
    Synonym,
    shown,
)
from compat.kafka.configs.topic_setting_table import (
    LEVELS,
    RETRY_MAX,
    SCHEDULE_MAX,
    TOPIC_SETTINGS,
    TopicSetting,
)

NO_DURATION: Final = "none"

_DIGITS: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_SIGNED: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)

LIKENESS_MIN: Final = 0.6
"""The minimum likeness of a known setting to an unknown name, to be suggested in its place."""

_PAIR_BITS: Final = 509
_BY_NAME: Final = {setting.name: setting for setting in TOPIC_SETTINGS}


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """The effect of a topic's settings on its records."""

    batch_size_max_bytes: int
    delay_max_ms: int
    uses_append_time: bool
    """Records have the time of append or delivery, not the producer's."""
    reads_delay_headers: bool
    passes_invalid_delays: bool
    """A record whose delay request cannot be met is delivered at once, not refused."""
    requires_delay: bool
    """A record without a delay request is refused."""
    delay_default_ms: int
    """The delay of a record without a request; -1 if it has none."""
    deliveries_per_s: int
    """Delayed records delivered in any second at most; 0: none for now, -1: any number."""
    delivery_spread_ms: int
    """Delayed records that are due at once are delivered evenly over this time."""
    pending_timers_max: int
    """Delayed records that may be pending; -1: any number."""
    retry_delays_ms: tuple[int, ...]
    """Of GROUP.retry: the delay before each attempt; empty for the delay levels."""
    retry_max: int
    """Of GROUP.retry: attempts before a record goes to GROUP.dlq."""
    uses_due_time: bool
    """A delivered record has its due time, not its original timestamp."""


def check_topic_settings(settings: Mapping[str, str | None], config: Config) -> dict[str, str]:
    """Check the settings of a topic that is about to be created.

    Args:
        settings: as a client gave them.
        config: the broker's. A topic can lower its limits; it can raise only that of a batch, to
            `topic_batch_size_max_bytes`.

    Returns:
        The settings to keep with the topic.

    Raises:
        InvalidSettingError: a setting is unknown or not supported yet, or its value is not allowed;
            the message names the first such setting.
    """
    return {name: _check_value(name, value, config) for name, value in settings.items()}


def read_topic_policy(settings: Mapping[str, str], config: Config) -> TopicPolicy:
    """Return the effect of the settings kept with a topic.

    Args:
        settings: the result of check_topic_settings when the topic was created.
        config: the broker's current one; a limit that was lowered since then applies.
    """

    def number(name: str, default: int) -> int:
        return min(int(settings.get(name, default)), _BY_NAME[name].maximum(config))

    return TopicPolicy(
        batch_size_max_bytes=number("max.message.bytes", config.batch_size_max_bytes),
        delay_max_ms=number("delay.max.ms", config.delay_max_ms),
        uses_append_time=settings.get("message.timestamp.type") == "LogAppendTime",
        reads_delay_headers=settings.get("delay.headers") != "off",
        passes_invalid_delays=settings.get("delay.invalid") == "pass",
        requires_delay=settings.get("delay.required") == "true",
        delay_default_ms=_read_duration(settings.get("delay.default", NO_DURATION)),
        deliveries_per_s=(
            0
            if settings.get("delay.paused") == "true"
            else int(settings.get("delay.max.per.second", -1))
        ),
        delivery_spread_ms=int(settings.get("delay.spread.ms", 0)),
        pending_timers_max=int(settings.get("delay.pending.max", -1)),
        retry_delays_ms=_read_schedule(settings.get("retry.schedule", LEVELS)),
        retry_max=int(settings.get("retry.max", RETRY_MAX)),
        uses_due_time=settings.get("delay.timestamp") == "due",
    )


def list_topic_settings(settings: Mapping[str, str], config: Config) -> list[ConfigEntry]:
    """Return every setting that has a value here, given or default, sorted by name."""
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
    """Return the sources of the value: topic, broker, default; empty if it has no value."""
    found: list[Synonym] = []
    if setting.limit is not None:
        found = broker_synonyms(setting.limit, config)
        if given is not None:
            # A broker limit that was lowered since then applies.
            value = str(min(int(given), setting.maximum(config)))
            found.insert(0, Synonym(setting.name, value, ConfigSource.TOPIC))
    elif setting.bounds is not None:
        if isinstance(setting.default, str):
            found = broker_synonyms(setting.default, config)
        else:
            found = [Synonym(setting.name, str(setting.default), ConfigSource.DEFAULT)]
        if given is not None:
            found.insert(0, Synonym(setting.name, given, ConfigSource.TOPIC))
    elif setting.is_duration or setting.is_schedule:
        default = NO_DURATION if setting.is_duration else LEVELS
        found = [Synonym(setting.name, default, ConfigSource.DEFAULT)]
        if given is not None:
            found.insert(0, Synonym(setting.name, given, ConfigSource.TOPIC))
    elif setting.values:
        if given is not None:
            found.append(Synonym(setting.name, given, ConfigSource.TOPIC))
        found.append(Synonym(setting.name, setting.values[0], ConfigSource.DEFAULT))
    return found


def find_topic_setting(name: str) -> TopicSetting:
    """Return the setting with this name.

    Raises:
        InvalidSettingError: there is no such setting; the message suggests a similar name.
    """
    setting = _BY_NAME.get(name)
    if setting is None:
        raise InvalidSettingError(f"there is no topic setting {shown(name)}{_suggestion(name)}")
    return setting


def _check_value(name: str, value: str | None, config: Config) -> str:
    setting = find_topic_setting(name)
    if value is None:
        raise InvalidSettingError(f"{name} has no value: give one")
    if setting.limit is not None:
        return _check_number(setting, value, config)
    if setting.bounds is not None:
        return _check_bounds(name, value, *setting.bounds)
    if setting.is_duration:
        return _check_duration(name, value, config.delay_max_ms)
    if setting.is_schedule:
        return _check_schedule(name, value, config.delay_max_ms)
    if value in setting.values:
        return value
    if setting.is_supported:
        allowed = " or ".join(setting.values)
        raise InvalidSettingError(f"{name}={shown(value)} is invalid: use {allowed}")
    raise InvalidSettingError(
        f"{name}={shown(value)} is not supported yet: "
        + "".join(f"use {name}={only} or " for only in setting.values)
        + "leave it out"
    )


def _check_number(setting: TopicSetting, value: str, config: Config) -> str:
    name, limit = setting.name, setting.maximum(config)
    if not _DIGITS.fullmatch(value):
        raise InvalidSettingError(
            f"{name}={shown(value)} is invalid: use a whole number from 0 to {limit}"
        )
    if int(value) > limit:
        holder = "limits.raised_batch_size_max_bytes, or what a request or a segment holds"
        if setting.ceiling is None and setting.limit is not None:
            holder = f"{config_settings()[setting.limit].key} of the broker"
        raise InvalidSettingError(f"{name}={value} is above {holder}: use at most {limit}")
    return str(int(value))


def _check_bounds(name: str, value: str, least: int, greatest: int) -> str:
    if not _SIGNED.fullmatch(value) or not least <= int(value) <= greatest:
        raise InvalidSettingError(
            f"{name}={shown(value)} is invalid: use a whole number from {least} to {greatest}"
        )
    return str(int(value))


def _check_duration(name: str, value: str, greatest_ms: int) -> str:
    try:
        duration_ms = _read_duration(value)
    except ValueError:
        duration_ms = 0
    if value != NO_DURATION and not 1 <= duration_ms <= greatest_ms:
        greatest = format_duration_ms(greatest_ms)
        raise InvalidSettingError(
            f"{name}={shown(value)} is invalid: use a number with ms, s, m, h or d, such as 15m, "
            f"from 1ms to {greatest}, or {NO_DURATION}"
        )
    return value


def _check_schedule(name: str, value: str, greatest_ms: int) -> str:
    words = value.split()
    if words == [LEVELS]:
        return LEVELS
    try:
        delays_ms = _read_schedule(value)
    except ValueError:
        delays_ms = ()
    if not 1 <= len(words) <= SCHEDULE_MAX or not all(1 <= d <= greatest_ms for d in delays_ms):
        delays_ms = ()
    if not delays_ms:
        greatest = format_duration_ms(greatest_ms)
        raise InvalidSettingError(
            f"{name}={shown(value)} is invalid: use 1 to {SCHEDULE_MAX} delays with ms, s, m, h or "
            f"d, such as 10s 30s 1m, each from 1ms to {greatest}, or {LEVELS}"
        )
    return " ".join(words)


def _read_schedule(text: str) -> tuple[int, ...]:
    """Return the delays of a schedule in ms; none for the levels. Raises ValueError."""
    return () if text == LEVELS else tuple(map(parse_duration_ms, text.split()))


def _read_duration(text: str) -> int:
    """Return a duration in ms; -1 for none. Raises ValueError."""
    return -1 if text == NO_DURATION else parse_duration_ms(text)


def _suggestion(name: str) -> str:
    # A request from the network may have thousands of names; difflib takes a millisecond for each.
    pairs = _letter_pairs(name[:SHOWN_CHARS_MAX])
    near = max(_PAIRS, key=lambda known: _likeness(pairs, _PAIRS[known]))
    return f"; did you mean {near}?" if _likeness(pairs, _PAIRS[near]) >= LIKENESS_MIN else ""


def _letter_pairs(name: str) -> int:
    """Return the pairs of adjacent letters in a name as a bit set; some pairs share a bit."""
    bits = 0
    for first, second in pairwise(name):
        bits |= 1 << (31 * ord(first) + ord(second)) % _PAIR_BITS
    return bits


def _likeness(pairs: int, others: int) -> float:
    """Return the likeness of two names: 0 for none, 1 for equal pairs."""
    return 2 * (pairs & others).bit_count() / max(1, pairs.bit_count() + others.bit_count())


_PAIRS: Final = {name: _letter_pairs(name) for name in _BY_NAME}
