"""Topic settings and names: honoured, accepted because nothing changes, or refused by name."""

import re

import pytest

from appliance.config.config import Config
from appliance.errors import InvalidSettingError, InvalidTopicError
from appliance.units import KIB, MIB
from compat.kafka.configs.entries import ConfigSource, Synonym
from compat.kafka.configs.topic_names import RESERVED_TOPIC_NAMES, check_topic_name
from compat.kafka.configs.topic_setting_table import TOPIC_SETTINGS
from compat.kafka.configs.topic_settings import (
    TopicPolicy,
    check_topic_settings,
    list_topic_settings,
    read_topic_policy,
)
from tests.support.harness.configs import small_config

CONFIG = Config()
ABOVE = CONFIG.topic_batch_size_max_bytes + 1
TOPIC, BROKER, DEFAULT = ConfigSource.TOPIC, ConfigSource.BROKER, ConfigSource.DEFAULT

KAFKA_NAMES = {
    *("cleanup.policy", "compression.gzip.level", "compression.lz4.level", "compression.type"),
    *("compression.zstd.level", "delete.retention.ms", "errors.deadletterqueue.group.enable"),
    *("file.delete.delay.ms", "flush.messages", "flush.ms"),
    *("follower.replication.throttled.replicas", "index.interval.bytes", "internal.segment.bytes"),
    *("leader.replication.throttled.replicas", "local.retention.bytes", "local.retention.ms"),
    *("max.compaction.lag.ms", "max.decompressed.message.bytes", "max.message.bytes"),
    *("message.downconversion.enable", "message.format.version", "message.timestamp.after.max.ms"),
    *("message.timestamp.before.max.ms", "message.timestamp.difference.max.ms"),
    *("message.timestamp.type", "min.cleanable.dirty.ratio", "min.compaction.lag.ms"),
    *("min.insync.replicas", "preallocate", "remote.copy.lag.bytes", "remote.copy.lag.ms"),
    *("remote.log.copy.disable", "remote.log.delete.on.disable", "remote.storage.enable"),
    *("retention.bytes", "retention.ms", "segment.bytes", "segment.index.bytes"),
    *("segment.jitter.ms", "segment.ms", "unclean.leader.election.enable"),
}


def test_every_setting_of_kafka_is_known() -> None:
    names = {setting.name for setting in TOPIC_SETTINGS}
    own = {name for name in names if re.match("delay|retry|index.keys|file", name)}
    assert own == {
        "index.keys",
        "delay.headers",
        "delay.invalid",
        "delay.required",
        "delay.default",
        "delay.paused",
        "delay.max.per.second",
        "delay.spread.ms",
        "delay.pending.max",
        "delay.timestamp",
        "delay.max.ms",
        "delay.dialects",
        "file.delete.delay.ms",
        "retry.schedule",
        "retry.max",
    }
    assert {setting.name for setting in TOPIC_SETTINGS} == KAFKA_NAMES | own
    assert len(TOPIC_SETTINGS) == len({setting.name for setting in TOPIC_SETTINGS})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-1"),
        ("retention.ms", "0"),
        ("retention.ms", "604800000"),
        ("retention.ms", "9223372036854775807"),
        ("retention.bytes", "-1"),
        ("retention.bytes", "1073741824"),
        # Without effect: Kafka Streams, Connect and Terraform set them.
        ("segment.bytes", "52428800"),
        ("segment.ms", "600000"),
        ("segment.index.bytes", "10485760"),
        ("delete.retention.ms", "86400000"),
        ("file.delete.delay.ms", "60000"),
        ("max.message.bytes", "0"),
        ("max.message.bytes", "1048588"),
        ("message.timestamp.type", "CreateTime"),
        ("message.timestamp.type", "LogAppendTime"),
        ("delay.headers", "on"),
        ("delay.headers", "off"),
        ("delay.timestamp", "created"),
        ("delay.timestamp", "due"),
        ("delay.max.ms", "315360000000"),
        ("retry.schedule", "levels"),
        ("retry.schedule", "10s 30s 1m 3650d"),
        ("retry.max", "0"),
        # Not to be changed, and given as they are.
        ("delay.dialects", "latermq"),
        ("cleanup.policy", "delete"),
        ("compression.type", "producer"),
        ("min.insync.replicas", "1"),
        ("unclean.leader.election.enable", "false"),
        ("remote.storage.enable", "false"),
        ("leader.replication.throttled.replicas", ""),
    ],
)
def test_accepted_settings_are_kept_as_given(name: str, value: str) -> None:
    assert check_topic_settings({name: value}, CONFIG) == {name: value}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cleanup.policy", "compact", "cleanup.policy='compact' is not supported yet"),
        ("cleanup.policy", "compact", ": use cleanup.policy=delete or leave it out"),
        ("cleanup.policy", "compact,delete", "not supported yet"),
        ("retention.ms", "-2", "retention.ms='-2' is invalid: use a whole number from -1 to 9"),
        ("retention.ms", "7d", "use a whole number from -1"),
        ("retention.ms", "9223372036854775808", "to 9223372036854775807"),
        ("retention.bytes", "", "use a whole number from -1"),
        ("segment.bytes", "0", "use a whole number from 1 to 2147483647"),
        ("compression.zstd.level", "3", "compression.zstd.level='3' is not supported yet"),
        ("min.insync.replicas", "2", "not supported yet"),
        ("delay.dialects", "rocketmq", "not supported yet"),
        ("delay.headers", "true", "delay.headers='true' is invalid: use on or off"),
        ("delay.headers", "On", "delay.headers='On' is invalid: use on or off"),
        ("delay.headers", None, "delay.headers has no value"),
        ("delay.invalid", "PASS", "delay.invalid='PASS' is invalid: use refuse or pass"),
        ("delay.required", "yes", "delay.required='yes' is invalid: use false or true"),
        ("delay.default", "15", "delay.default='15' is invalid: use a number with ms, s, m, h or"),
        ("delay.default", "0s", "such as 15m, from 1ms to 3650d, or none"),
        ("delay.default", "3651d", "such as 15m, from 1ms to 3650d, or none"),
        ("delay.default", "", "such as 15m"),
        ("retry.schedule", "", "such as 10s 30s 1m, each from 1ms to 3650d, or levels"),
        ("retry.schedule", "10s 30", "retry.schedule='10s 30' is invalid: use 1 to 64 delays with"),
        ("retry.schedule", "10s levels", "such as 10s 30s 1m"),
        ("retry.schedule", "10s 0s", "such as 10s 30s 1m"),
        ("retry.schedule", "1s 3651d", "such as 10s 30s 1m"),
        ("retry.schedule", "1s " * 65, "use 1 to 64 delays"),
        ("retry.max", "-1", "use a whole number from 0 to 1000000"),
        ("message.timestamp.type", "logappendtime", "use CreateTime or LogAppendTime"),
        ("max.message.bytes", str(ABOVE), "is above limits.raised_batch_size_max_bytes, or what"),
        ("max.message.bytes", "-1", "whole number"),
        ("max.message.bytes", "1e3", "whole number"),
        ("max.message.bytes", "", "whole number"),
        ("max.message.bytes", "٣", "whole number"),
        ("delay.max.ms", "315360000001", "above delay.max_ms of the broker"),
        ("retention", "1", "there is no topic setting 'retention'; did you mean retention.ms?"),
        ("delay.header", "off", "did you mean delay.headers?"),
        ("clenup.policy", "delete", "did you mean cleanup.policy?"),
        ("preallocat", "true", "did you mean preallocate?"),
        ("qqqqqqqqqqqq", "1", "there is no topic setting 'qqqqqqqqqqqq'"),
        ("", "1", "there is no topic setting ''"),
    ],
)
def test_refused_settings_are_named(name: str, value: str | None, message: str) -> None:
    with pytest.raises(InvalidSettingError) as refusal:
        check_topic_settings({name: value}, CONFIG)
    assert message in refusal.value.message


def test_leading_zeros_of_numbers_are_dropped() -> None:
    assert check_topic_settings({"delay.max.ms": "007"}, CONFIG) == {"delay.max.ms": "7"}


def test_settings_mean_what_they_say() -> None:
    assert read_topic_policy({}, CONFIG) == TopicPolicy(
        batch_size_max_bytes=CONFIG.batch_size_max_bytes,
        delay_max_ms=CONFIG.delay_max_ms,
        uses_append_time=False,
        reads_delay_headers=True,
        passes_invalid_delays=False,
        requires_delay=False,
        delay_default_ms=-1,
        deliveries_per_s=-1,
        delivery_spread_ms=0,
        pending_timers_max=-1,
        retry_delays_ms=(),
        retry_max=16,
        uses_due_time=False,
    )
    settings = {
        "max.message.bytes": "2000",
        "delay.max.ms": "1000",
        "message.timestamp.type": "LogAppendTime",
        "delay.headers": "off",
        "delay.invalid": "pass",
        "delay.required": "true",
        "delay.default": "15m",
        "delay.max.per.second": "70",
        "delay.spread.ms": "5000",
        "delay.pending.max": "9",
        "delay.timestamp": "due",
        "retry.schedule": "10s 1m 2h",
        "retry.max": "3",
    }
    assert read_topic_policy(settings, CONFIG) == TopicPolicy(
        batch_size_max_bytes=2000,
        delay_max_ms=1000,
        uses_append_time=True,
        reads_delay_headers=False,
        passes_invalid_delays=True,
        requires_delay=True,
        delay_default_ms=900_000,
        deliveries_per_s=70,
        delivery_spread_ms=5000,
        pending_timers_max=9,
        retry_delays_ms=(10_000, 60_000, 7_200_000),
        retry_max=3,
        uses_due_time=True,
    )
    settings["delay.paused"] = "true"
    assert read_topic_policy(settings, CONFIG).deliveries_per_s == 0


def test_a_limit_that_the_broker_lowered_later_holds_for_old_topics() -> None:
    policy = read_topic_policy(
        {"max.message.bytes": "1000000"}, small_config(request_size_max_bytes=13 * KIB)
    )
    assert policy.batch_size_max_bytes == 12 * KIB


def test_a_topic_raises_the_limit_of_a_batch_to_what_a_segment_and_a_request_hold() -> None:
    """franz-go's suite sets 8 MiB."""
    wanted = {"max.message.bytes": str(8 * MIB)}
    assert check_topic_settings(wanted, CONFIG) == wanted
    assert read_topic_policy(wanted, CONFIG).batch_size_max_bytes == 8 * MIB
    segment = small_config(segment_size_bytes=64 * KIB, partition_count_max_per_topic=64)
    assert segment.topic_batch_size_max_bytes == (64 * KIB - 4 * KIB - 64 * 32) // 4
    request = small_config(segment_size_bytes=16 * MIB, request_size_max_bytes=MIB)
    assert request.topic_batch_size_max_bytes == MIB - KIB
    assert CONFIG.topic_batch_size_max_bytes == CONFIG.raised_batch_size_max_bytes == 16 * MIB
    largest = Config(raised_batch_size_max_bytes=100 * MIB)
    assert largest.topic_batch_size_max_bytes == 100 * MIB - KIB


def test_settings_are_listed_by_name_with_their_values() -> None:
    entries = list_topic_settings({"delay.headers": "off", "retention.ms": "-1"}, CONFIG)
    names = [entry.name for entry in entries]
    assert names == sorted(names)
    assert "compression.zstd.level" not in names  # it has no value here
    by_name = {entry.name: entry for entry in entries}
    headers, retention = by_name["delay.headers"], by_name["retention.ms"]
    assert (headers.value, headers.source, headers.is_read_only) == ("off", TOPIC, False)
    assert (retention.value, retention.source, retention.is_read_only) == ("-1", TOPIC, False)
    assert by_name["retention.bytes"].source == DEFAULT
    assert by_name["segment.bytes"].value == "1073741824"
    assert by_name["delay.timestamp"].value == "created"
    assert by_name["delay.invalid"].value == "refuse"
    assert by_name["delay.timestamp"].source == DEFAULT
    assert by_name["delay.max.ms"].value == str(CONFIG.delay_max_ms)


def test_a_limit_comes_from_the_topic_then_the_broker_then_the_default() -> None:
    config = small_config(delay_max_ms=8_000_000)
    default = Synonym("delay.max_ms", str(Config().delay_max_ms), DEFAULT)
    broker = Synonym("delay.max_ms", "8000000", BROKER)
    assert synonyms_of("delay.max.ms", {}, Config()) == (default,)
    assert synonyms_of("delay.max.ms", {}, config) == (broker, default)
    lowered = Synonym("delay.max.ms", "70", TOPIC)
    assert synonyms_of("delay.max.ms", {"delay.max.ms": "70"}, config) == (lowered, broker, default)
    # What the broker lowered later holds, and is shown.
    raised = Synonym("delay.max.ms", "8000000", TOPIC)
    assert synonyms_of("delay.max.ms", {"delay.max.ms": "9000000"}, config)[0] == raised


def synonyms_of(name: str, settings: dict[str, str], config: Config) -> tuple[Synonym, ...]:
    (entry,) = (each for each in list_topic_settings(settings, config) if each.name == name)
    return entry.synonyms


@pytest.mark.parametrize("name", ["a", "A-Z_0.9", "x" * 249, "...", "_", "__mine"])
def test_topic_names_that_kafka_allows_are_allowed(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "x" * 250,
        "a b",
        "a/b",
        "a\n",
        "ä",
        "٣",
        "a\x00",
        *sorted(RESERVED_TOPIC_NAMES),
    ],
)
def test_other_topic_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopicError):
        check_topic_name(name)
