"""The settings of a topic: Kafka's by Kafka's names, and latermq's own.

A setting is honoured, or it is refused by its name: a topic that was made with retention.ms=1000
and keeps its records for ever would be a lie. One exception lets the tools pass that write out
defaults: a setting given with exactly the value that this broker has anyway is accepted and kept.
The names are all of Kafka 4.4 (LogConfig), and those of Kafka 3 that clients still send.
Layer 3; does no I/O.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from appliance.config import Config
from appliance.config import settings as config_settings
from appliance.errors import InvalidSettingError

_NO_LIMIT: Final = "9223372036854775807"
_DIGITS: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_SHOWN_CHARS_MAX: Final = 64
"""As much of a bad name or value as a refusal repeats: both come from the network."""


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """One row of the table.

    Args:
        name: what clients write.
        values: the allowed ones, the default first; a single one cannot be changed yet. Empty if
            no value is accepted, or if it is a number.
        limit: for a number from 0 upwards, the field of Config that is its limit and its default.
        note: what it does here, for docs/KAFKA.md.
    """

    name: str
    values: tuple[str, ...] = ()
    limit: Literal["batch_size_max_bytes", "delay_max_ms"] | None = None
    note: str = ""

    @property
    def is_supported(self) -> bool:
        """Whether there is a choice."""
        return self.limit is not None or len(self.values) > 1


TOPIC_SETTINGS: Final = (
    TopicSetting(
        "max.message.bytes",
        limit="batch_size_max_bytes",
        note="size of one record batch as it is sent",
    ),
    TopicSetting(
        "message.timestamp.type",
        ("CreateTime", "LogAppendTime"),
        note="the producer's time, or the time of append (of delivery, if delayed)",
    ),
    TopicSetting(
        "delay.headers",
        ("on", "off"),
        note="off: delay headers are records' own business and pass through unread",
    ),
    TopicSetting(
        "delay.timestamp",
        ("created", "due"),
        note="timestamp of a delivered record: the one it came with, or its due time",
    ),
    TopicSetting(
        "delay.max.ms",
        limit="delay_max_ms",
        note="a record that is due later after its receipt is refused",
    ),
    TopicSetting("delay.dialects", ("latermq",)),
    TopicSetting("cleanup.policy", ("delete",)),
    TopicSetting("compression.gzip.level"),
    TopicSetting("compression.lz4.level"),
    TopicSetting("compression.type", ("producer",)),
    TopicSetting("compression.zstd.level"),
    TopicSetting("delete.retention.ms"),
    TopicSetting("errors.deadletterqueue.group.enable", ("false",)),
    TopicSetting("file.delete.delay.ms"),
    TopicSetting("flush.messages", (_NO_LIMIT,)),
    TopicSetting("flush.ms", (_NO_LIMIT,)),
    TopicSetting("follower.replication.throttled.replicas", ("",)),
    TopicSetting("index.interval.bytes"),
    TopicSetting("internal.segment.bytes"),
    TopicSetting("leader.replication.throttled.replicas", ("",)),
    TopicSetting("local.retention.bytes", ("-2",)),
    TopicSetting("local.retention.ms", ("-2",)),
    TopicSetting("max.compaction.lag.ms", (_NO_LIMIT,)),
    TopicSetting("max.decompressed.message.bytes"),
    TopicSetting("message.downconversion.enable", ("false",)),
    TopicSetting("message.format.version"),
    TopicSetting("message.timestamp.after.max.ms", (_NO_LIMIT,)),
    TopicSetting("message.timestamp.before.max.ms", (_NO_LIMIT,)),
    TopicSetting("message.timestamp.difference.max.ms", (_NO_LIMIT,)),
    TopicSetting("min.cleanable.dirty.ratio"),
    TopicSetting("min.compaction.lag.ms", ("0",)),
    TopicSetting("min.insync.replicas", ("1",)),
    TopicSetting("preallocate", ("true",)),
    TopicSetting("remote.copy.lag.bytes"),
    TopicSetting("remote.copy.lag.ms"),
    TopicSetting("remote.log.copy.disable", ("false",)),
    TopicSetting("remote.log.delete.on.disable", ("false",)),
    TopicSetting("remote.storage.enable", ("false",)),
    TopicSetting("retention.bytes", ("-1",)),
    TopicSetting("retention.ms", ("-1",)),
    TopicSetting("segment.bytes"),
    TopicSetting("segment.index.bytes"),
    TopicSetting("segment.jitter.ms", ("0",)),
    TopicSetting("segment.ms"),
    TopicSetting("unclean.leader.election.enable", ("false",)),
)

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


@dataclass(frozen=True, slots=True)
class SettingValue:
    """What a setting is for one topic, as clients are shown it."""

    name: str
    value: str
    is_default: bool
    is_read_only: bool


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


def list_topic_settings(settings: Mapping[str, str], config: Config) -> list[SettingValue]:
    """List every setting that has a value here, given or not, in the order of the names."""
    policy = read_topic_policy(settings, config)
    numbers = {
        "max.message.bytes": str(policy.batch_size_max_bytes),
        "delay.max.ms": str(policy.delay_max_ms),
    }
    values = []
    for setting in sorted(TOPIC_SETTINGS, key=lambda setting: setting.name):
        if setting.limit is not None:
            value = numbers[setting.name]
        elif setting.values:
            value = settings.get(setting.name, setting.values[0])
        else:
            continue
        is_default = setting.name not in settings
        values.append(
            SettingValue(setting.name, value, is_default, is_read_only=not setting.is_supported)
        )
    return values


def _check_value(name: str, value: str | None, config: Config) -> str:
    setting = _BY_NAME.get(name)
    if setting is None:
        raise InvalidSettingError(f"there is no topic setting {_shown(name)}{_suggestion(name)}")
    if value is None:
        raise InvalidSettingError(f"{name} has no value")
    if setting.limit is not None:
        return _check_number(name, value, setting.limit, getattr(config, setting.limit))
    if value in setting.values:
        return value
    if setting.is_supported:
        allowed = " or ".join(setting.values)
        raise InvalidSettingError(f"{name} is {allowed}, not {_shown(value)}")
    raise InvalidSettingError(
        f"{name}={_shown(value)} is not supported yet"
        + "".join(f"; this broker always has {name}={only}" for only in setting.values)
    )


def _check_number(name: str, value: str, limit_name: str, limit: int) -> str:
    if not _DIGITS.fullmatch(value):
        raise InvalidSettingError(f"{name} is a whole number from 0 up, not {_shown(value)}")
    if int(value) > limit:
        raise InvalidSettingError(
            f"{name}={value} is above {config_settings()[limit_name].key} of the broker, {limit}"
        )
    return str(int(value))


def _shown(text: str) -> str:
    shown = text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "..."
    return repr(shown)


def _suggestion(name: str) -> str:
    # The cost of the comparison grows with the name, which comes from the network.
    near = difflib.get_close_matches(name[:_SHOWN_CHARS_MAX], _BY_NAME, n=1)
    return f"; did you mean {near[0]}?" if near else ""
