"""Topics, records and settings, tried with kafka-python."""

import time

import pytest
from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import InvalidRecordError, MessageSizeTooLargeError, TopicAlreadyExistsError

from tests.system.clients.suites import kafka_python_groups  # noqa: F401 - has more features
from tests.system.clients.suites.harness import (
    GAP_END,
    GAP_RECORDS,
    GAP_STARTS,
    HEADERS,
    TIME_MS,
    cancelled_records,
    check_delayed,
    codec_values,
    now_ms,
    replaced_records,
)
from tests.system.clients.suites.kafka_python_client import (
    SUITE,
    administrating,
    consuming,
    create,
    partition_count,
    reading,
    receive,
    receive_values,
    send,
    send_values,
)


@SUITE.feature
def create_topic(name: str) -> None:
    create(name, 3)
    assert partition_count(name) == 3
    with pytest.raises(TopicAlreadyExistsError):
        create(name, 3)


@SUITE.feature
def list_topics(name: str) -> None:
    create(name, 2)
    with administrating() as admin:
        assert name in admin.list_topics()
    assert partition_count(name) == 2


@SUITE.feature
def auto_create(name: str) -> None:
    send_values(name, b"first")
    assert partition_count(name) == 4


@SUITE.feature
def describe_cluster(_name: str) -> None:
    with administrating() as admin:
        shown = admin.describe_cluster()
    (broker,) = shown["brokers"]
    assert f"{broker['host']}:{broker['port']}" == SUITE.address
    assert shown["cluster_id"]


def produce_with_acks(name: str, acks: int | str) -> None:
    create(name)
    send_values(name, b"one", b"two", acks=acks, enable_idempotence=False)
    with reading(name) as consumer:
        assert receive_values(consumer, 2) == [b"one", b"two"]


@SUITE.feature
def acks_0(name: str) -> None:
    produce_with_acks(name, 0)


@SUITE.feature
def acks_1(name: str) -> None:
    produce_with_acks(name, 1)


@SUITE.feature
def acks_all(name: str) -> None:
    produce_with_acks(name, "all")


def use_codec(name: str, codec: str) -> None:
    create(name)
    sent = send_values(name, *codec_values(), compression_type=codec)
    assert [one.offset for one in sent] == list(range(100))
    with reading(name) as consumer:
        assert receive_values(consumer, 100) == codec_values()


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
        assert tuple(receive(consumer, 1)[0].headers) == HEADERS


@SUITE.feature
def idempotent(name: str) -> None:
    create(name)
    values = [b"%d" % index for index in range(1_000)]
    send_values(name, *values, enable_idempotence=True, batch_size=2_000, linger_ms=1)
    with reading(name) as consumer:
        assert receive_values(consumer, 1_000) == values


@SUITE.feature
def delay(name: str) -> None:
    create(name)
    sent_ms = now_ms()
    send(name, [(b"late", [*HEADERS, ("x-delay", b"300ms")]), (b"now", ())])
    with reading(name) as consumer:
        first, late = receive(consumer, 2)
        assert (first.value, late.value) == (b"now", b"late")
        check_delayed(list(late.headers), sent_ms)


@SUITE.feature
def deliver_at(name: str) -> None:
    create(name)
    sent_ms = now_ms()
    due_ms = sent_ms + 400
    send(name, [(b"late", [("x-deliver-at", b"%d" % due_ms)])])
    with reading(name) as consumer:
        (late,) = receive(consumer, 1)
        check_delayed(list(late.headers), sent_ms, due_ms)


@SUITE.feature
def cancel(name: str) -> None:
    create(name)
    send(name, cancelled_records())
    with reading(name) as consumer:
        assert receive_values(consumer, 1) == [b"end"]


@SUITE.feature
def replace(name: str) -> None:
    create(name)
    send(name, replaced_records())
    with reading(name) as consumer:
        assert receive_values(consumer, 2) == [b"new", b"end"]


@SUITE.feature
def bad_delay(name: str) -> None:
    create(name)
    with pytest.raises(InvalidRecordError) as refused:
        send(name, [(b"bad", [("x-delay", b"soon")])])
    assert "x-delay" in str(refused.value)


@SUITE.feature
def assign(name: str) -> None:
    create(name, 2)
    for partition in (0, 1):
        send_values(name, b"%d" % partition, partition=partition)
    with consuming() as consumer:
        consumer.assign([TopicPartition(name, index) for index in (0, 1)])
        assert sorted(receive_values(consumer, 2)) == [b"0", b"1"]


@SUITE.feature
def seek(name: str) -> None:
    create(name)
    send_values(name, *[b"%d" % index for index in range(10)])
    with reading(name) as consumer:
        receive(consumer, 10)
        consumer.seek(TopicPartition(name, 0), 7)
        assert receive_values(consumer, 3) == [b"7", b"8", b"9"]


@SUITE.feature
def gaps(name: str) -> None:
    with reading(name) as consumer:
        found = receive(consumer, len(GAP_RECORDS))
        assert [(one.offset, one.value) for one in found] == GAP_RECORDS
        send_values(name, b"after")
        (after,) = receive(consumer, 1)
        assert (after.offset, after.value) == (GAP_END, b"after")
        for start in GAP_STARTS:
            consumer.seek(TopicPartition(name, 0), start)
            (after,) = receive(consumer, 1)
            assert (after.offset, after.value) == (GAP_END, b"after")
            assert consumer.poll(timeout_ms=300) == {}


@SUITE.feature
def wait(name: str) -> None:
    create(name)
    with reading(name) as consumer:
        assert consumer.poll(timeout_ms=300) == {}
        begin_s = time.monotonic()
        send(name, [(b"late", [("x-delay", b"300ms")])])
        assert receive_values(consumer, 1) == [b"late"]
        assert time.monotonic() - begin_s >= 0.3


@SUITE.feature
def ends(name: str) -> None:
    create(name)
    send_values(name, b"one", b"two")
    one = TopicPartition(name, 0)
    with consuming() as consumer:
        assert consumer.beginning_offsets([one]) == {one: 0}
        assert consumer.end_offsets([one]) == {one: 2}


@SUITE.feature
def offsets_by_time(name: str) -> None:
    create(name)
    times_ms = [TIME_MS + 1_000 * index for index in range(5)]
    send(name, [(b"x", ())] * 5, times_ms=times_ms)
    one = TopicPartition(name, 0)
    with consuming() as consumer:
        found = consumer.offsets_for_times({one: TIME_MS + 2_500})[one]
        assert (found.offset, found.timestamp) == (3, TIME_MS + 3_000)
        assert consumer.offsets_for_times({one: TIME_MS + 9_000})[one] is None


@SUITE.feature
def create_partitions(name: str) -> None:
    create(name)
    with administrating() as admin:
        admin.create_partitions({name: 3})
    assert partition_count(name) == 3
    send_values(name, b"new", partition=2)
    with reading(name, 2) as consumer:
        assert receive_values(consumer, 1) == [b"new"]


@SUITE.feature
def describe_configs(name: str) -> None:
    create(name)
    with administrating() as admin:
        (broker,) = admin.describe_cluster()["brokers"]
        node = str(broker["broker_id"])
        topic = ConfigResource(ConfigResourceType.TOPIC, name)
        shown = admin.describe_configs(
            [topic, ConfigResource(ConfigResourceType.BROKER, node)], config_filter="all"
        )
    assert shown["topic"][name]["cleanup.policy"]["value"] == "delete"
    assert shown["broker"][node]


@SUITE.feature
def alter_configs(name: str) -> None:
    create(name)
    with administrating() as admin:
        setting = {"max.message.bytes": "2000"}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, setting)])
        # It shows what is not as by default.
        shown = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
    assert shown["topic"][name]["max.message.bytes"]["value"] == "2000"
    with pytest.raises(MessageSizeTooLargeError):
        send_values(name, b"x" * 3_000)


@SUITE.feature
def delete_records(name: str) -> None:
    create(name)
    send_values(name, *[b"%d" % index for index in range(5)])
    one = TopicPartition(name, 0)
    with administrating() as admin:
        assert admin.delete_records({one: 3})[one]["low_watermark"] == 3
    with reading(name) as consumer:
        assert receive_values(consumer, 2) == [b"3", b"4"]


@SUITE.feature
def delete_topic(name: str) -> None:
    create(name)
    with administrating() as admin:
        admin.delete_topics([name])
        assert name not in admin.list_topics()


if __name__ == "__main__":
    # kafka-python compiles its messages when they are first used: not by several threads at once.
    with administrating() as first:
        first.list_topics()
    SUITE.run()
