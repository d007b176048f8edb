"""Topics, records and settings, tried with confluent-kafka."""

import time
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewPartitions

from tests.system.clients.suites import confluent_groups  # noqa: F401 - has more features
from tests.system.clients.suites.confluent_client import (
    ADMIN,
    SUITE,
    consuming,
    create,
    reading,
    receive,
    send,
    send_values,
    values_of,
)
from tests.system.clients.suites.harness import (
    GAP_END,
    GAP_RECORDS,
    GAP_STARTS,
    HEADERS,
    LIMIT_S,
    TIME_MS,
    cancelled_records,
    check_delayed,
    codec_values,
    now_ms,
    replaced_records,
)


@SUITE.feature
def create_topic(name: str) -> None:
    create(name, 3)
    assert len(ADMIN.list_topics(name, LIMIT_S).topics[name].partitions) == 3
    with pytest.raises(KafkaException) as refused:
        create(name, 3)
    assert refused.value.args[0].name() == "TOPIC_ALREADY_EXISTS"


@SUITE.feature
def list_topics(name: str) -> None:
    create(name, 2)
    assert name in ADMIN.list_topics(timeout=LIMIT_S).topics
    (answer,) = ADMIN.describe_topics(TopicCollection([name])).values()
    shown = answer.result(LIMIT_S)
    assert (shown.name, len(shown.partitions)) == (name, 2)
    assert shown.partitions[0].leader is not None


@SUITE.feature
def auto_create(name: str) -> None:
    send_values(name, b"first")
    assert len(ADMIN.list_topics(name, LIMIT_S).topics[name].partitions) == 4


@SUITE.feature
def describe_cluster(_name: str) -> None:
    shown = ADMIN.describe_cluster().result(LIMIT_S)
    assert shown.controller is not None
    assert f"{shown.controller.host}:{shown.controller.port}" == SUITE.address
    assert (shown.cluster_id, len(shown.nodes)) != ("", 0)


def produce_with_acks(name: str, acks: int) -> None:
    create(name)
    send_values(name, b"one", b"two", acks=acks)
    with reading(name) as consumer:
        assert values_of(receive(consumer, 2)) == [b"one", b"two"]


@SUITE.feature
def acks_0(name: str) -> None:
    produce_with_acks(name, 0)


@SUITE.feature
def acks_1(name: str) -> None:
    produce_with_acks(name, 1)


@SUITE.feature
def acks_all(name: str) -> None:
    produce_with_acks(name, -1)


def use_codec(name: str, codec: str) -> None:
    create(name)
    sent = send_values(name, *codec_values(), compression_type=codec)
    assert sorted(message.offset() or 0 for message in sent) == list(range(100))
    with reading(name) as consumer:
        assert values_of(receive(consumer, 100)) == codec_values()


@SUITE.feature
def codec_gzip(name: str) -> None:
    use_codec(name, "gzip")


@SUITE.feature
def codec_snappy(name: str) -> None:
    use_codec(name, "snappy")


@SUITE.feature
def codec_lz4(name: str) -> None:
    use_codec(name, "lz4")


@SUITE.feature
def codec_zstd(name: str) -> None:
    use_codec(name, "zstd")


@SUITE.feature
def headers(name: str) -> None:
    create(name)
    send(name, [(b"value", HEADERS)])
    with reading(name) as consumer:
        assert receive(consumer, 1)[0].headers() == list(HEADERS)


@SUITE.feature
def idempotent(name: str) -> None:
    create(name)
    values = [b"%d" % index for index in range(1_000)]
    send_values(name, *values, enable_idempotence=True, batch_num_messages=50, linger_ms=1)
    with reading(name) as consumer:
        assert values_of(receive(consumer, 1_000)) == values


@SUITE.feature
def delay(name: str) -> None:
    create(name)
    sent_ms = now_ms()
    send(name, [(b"late", [*HEADERS, ("x-delay", b"300ms")]), (b"now", ())])
    with reading(name) as consumer:
        first, late = receive(consumer, 2)
        assert values_of([first, late]) == [b"now", b"late"]
        got = late.headers()
        assert isinstance(got, list)
        check_delayed(got, sent_ms)


@SUITE.feature
def deliver_at(name: str) -> None:
    create(name)
    sent_ms = now_ms()
    due_ms = sent_ms + 400
    send(name, [(b"late", [("x-deliver-at", b"%d" % due_ms)])])
    with reading(name) as consumer:
        (late,) = receive(consumer, 1)
        got = late.headers()
        assert isinstance(got, list)
        check_delayed(got, sent_ms, due_ms)


@SUITE.feature
def cancel(name: str) -> None:
    create(name)
    send(name, cancelled_records())
    with reading(name) as consumer:
        assert values_of(receive(consumer, 1)) == [b"end"]


@SUITE.feature
def replace(name: str) -> None:
    create(name)
    send(name, replaced_records())
    with reading(name) as consumer:
        assert values_of(receive(consumer, 2)) == [b"new", b"end"]


@SUITE.feature
def bad_delay(name: str) -> None:
    create(name)
    with pytest.raises(KafkaException) as refused:
        send(name, [(b"bad", [("x-delay", b"soon")])])
    assert refused.value.args[0].name() == "INVALID_RECORD"


@SUITE.feature
def assign(name: str) -> None:
    create(name, 2)
    for partition in (0, 1):
        send_values(name, b"%d" % partition, partition=partition)
    with consuming(enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(name, index, 0) for index in (0, 1)])
        assert sorted(values_of(receive(consumer, 2))) == [b"0", b"1"]


@SUITE.feature
def seek(name: str) -> None:
    create(name)
    send_values(name, *[b"%d" % index for index in range(10)])
    with reading(name) as consumer:
        receive(consumer, 10)
        consumer.seek(TopicPartition(name, 0, 7))
        assert values_of(receive(consumer, 3)) == [b"7", b"8", b"9"]


@SUITE.feature
def gaps(name: str) -> None:
    with reading(name) as consumer:
        found = receive(consumer, len(GAP_RECORDS))
        assert [(one.offset(), one.value()) for one in found] == GAP_RECORDS
        send_values(name, b"after")
        (after,) = receive(consumer, 1)
        assert (after.offset(), after.value()) == (GAP_END, b"after")
    for start in GAP_STARTS:
        with consuming(enable_auto_commit=False, auto_offset_reset="error") as consumer:
            consumer.assign([TopicPartition(name, 0, start)])
            (after,) = receive(consumer, 1)
            assert (after.offset(), after.value()) == (GAP_END, b"after")
            assert consumer.poll(0.3) is None


@SUITE.feature
def wait(name: str) -> None:
    create(name)
    with reading(name) as consumer:
        assert consumer.poll(0.3) is None
        begin_s = time.monotonic()
        send(name, [(b"late", [("x-delay", b"300ms")])])
        assert values_of(receive(consumer, 1)) == [b"late"]
        assert time.monotonic() - begin_s >= 0.3


@SUITE.feature
def ends(name: str) -> None:
    create(name)
    send_values(name, b"one", b"two")
    with consuming() as consumer:
        found = consumer.get_watermark_offsets(TopicPartition(name, 0), LIMIT_S)
        assert found == (0, 2)


@SUITE.feature
def offsets_by_time(name: str) -> None:
    create(name)
    times_ms = [TIME_MS + 1_000 * index for index in range(5)]
    send(name, [(b"x", ())] * 5, times_ms=times_ms)
    with consuming() as consumer:
        for time_ms, offset in ((TIME_MS + 2_500, 3), (TIME_MS + 9_000, -1)):
            (found,) = consumer.offsets_for_times([TopicPartition(name, 0, time_ms)], LIMIT_S)
            assert found.offset == offset, found


@SUITE.feature
def create_partitions(name: str) -> None:
    create(name)
    (answer,) = ADMIN.create_partitions([NewPartitions(name, 3)]).values()
    answer.result(LIMIT_S)
    assert len(ADMIN.list_topics(name, LIMIT_S).topics[name].partitions) == 3
    send_values(name, b"new", partition=2)
    with reading(name, 2) as consumer:
        assert values_of(receive(consumer, 1)) == [b"new"]


def settings_of(kind: ResourceType, name: str) -> dict[str, Any]:
    (answer,) = ADMIN.describe_configs([ConfigResource(kind, name)]).values()
    return answer.result(LIMIT_S)


@SUITE.feature
def describe_configs(name: str) -> None:
    create(name)
    shown = settings_of(ResourceType.TOPIC, name)
    assert (shown["cleanup.policy"].value, shown["cleanup.policy"].is_default) == ("delete", True)
    node = ADMIN.describe_cluster().result(LIMIT_S).nodes[0]
    assert settings_of(ResourceType.BROKER, str(node.id))


@SUITE.feature
def alter_configs(name: str) -> None:
    create(name)
    entry = ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    (answer,) = ADMIN.incremental_alter_configs([changed]).values()
    answer.result(LIMIT_S)
    shown = settings_of(ResourceType.TOPIC, name)["max.message.bytes"]
    assert (shown.value, shown.is_default) == ("2000", False)
    with pytest.raises(KafkaException) as refused:
        send_values(name, b"x" * 3_000)
    assert refused.value.args[0].name() == "MSG_SIZE_TOO_LARGE"


@SUITE.feature
def delete_records(name: str) -> None:
    create(name)
    send_values(name, *[b"%d" % index for index in range(5)])
    (answer,) = ADMIN.delete_records([TopicPartition(name, 0, 3)]).values()
    assert answer.result(LIMIT_S).low_watermark == 3
    with reading(name) as consumer:
        assert values_of(receive(consumer, 2)) == [b"3", b"4"]


@SUITE.feature
def delete_topic(name: str) -> None:
    create(name)
    (answer,) = ADMIN.delete_topics([name]).values()
    answer.result(LIMIT_S)
    assert name not in ADMIN.list_topics(timeout=LIMIT_S).topics


if __name__ == "__main__":
    SUITE.run()
