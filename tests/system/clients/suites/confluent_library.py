"""confluent-kafka, which is librdkafka's newest."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import Consumer as Client
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.system.clients.delayed import Received, now_ms
from tests.system.clients.suites.library import Described, RefusedError, Sent, ignore
from tests.system.clients.suites.using import LIMIT_S


def result(futures: Mapping[Any, Any]) -> Any:
    """What came of the one thing that was asked for."""
    (future,) = futures.values()
    try:
        return future.result(LIMIT_S)
    except KafkaException as error:
        raise refusal(error.args[0]) from error


def refusal(error: KafkaError) -> RefusedError:
    # Its own code for the records of a batch that are not the bad one.
    is_of_batch = error.code() == KafkaError._INVALID_DIFFERENT_RECORD
    return RefusedError(KafkaError.INVALID_RECORD if is_of_batch else error.code(), error.str())


def received(message: Any) -> Received:
    if message.error() is not None:
        raise refusal(message.error())
    return Received(
        value=message.value() or b"",
        key=message.key(),
        headers=tuple(message.headers() or ()),
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=message.timestamp()[1],
        at_ms=now_ms(),
    )


class Reader:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._on_records: Callable[[Sequence[Received]], None] = ignore
        self._share: set[int] = set()  # the client's own answer waits for the thread that polls

    def assign(self, topic: str, places: Mapping[int, int | None]) -> None:
        self._client.assign(
            [
                TopicPartition(topic, index, OFFSET_BEGINNING if offset is None else offset)
                for index, offset in places.items()
            ]
        )

    def subscribe(
        self,
        topic: str,
        on_change: Callable[[str, Iterable[int]], None] = ignore,
        on_records: Callable[[Sequence[Received]], None] = ignore,
    ) -> None:
        def gain(_: Client, places: list[TopicPartition]) -> None:
            self._share |= {one.partition for one in places}
            on_change("assigned", [one.partition for one in places])

        def lose(_: Client, places: list[TopicPartition]) -> None:
            self._share -= {one.partition for one in places}
            on_change("revoked", [one.partition for one in places])

        self._on_records = on_records
        self._client.subscribe([topic], on_assign=gain, on_revoke=lose, on_lost=lose)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self._client.seek(TopicPartition(topic, partition, offset))

    def poll(self, limit_s: float, count: int = 500) -> list[Received]:
        first = self._client.poll(limit_s)
        if first is None:
            return []
        records = [received(first)]
        self._on_records(records)
        # At once: waiting for more would make an early record look punctual.
        more = self._client.consume(count - 1, timeout=0) if count > 1 else []
        records[1:] = map(received, more)
        self._on_records(records[1:])
        return records

    def share(self) -> set[int]:
        return set(self._share)

    def commit(self, topic: str, offsets: Mapping[int, int], metadata: str = "") -> None:
        places = [TopicPartition(topic, *each, metadata) for each in offsets.items()]
        try:
            self._client.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            raise refusal(error.args[0]) from error

    def committed(self, topic: str, partition: int) -> int | None:
        (found,) = self._client.committed([TopicPartition(topic, partition)], LIMIT_S)
        return found.offset if found.offset >= 0 else None

    def ends(self, topic: str) -> tuple[int, int]:
        return self._client.get_watermark_offsets(TopicPartition(topic, 0), LIMIT_S)

    def offset_at(self, topic: str, time_ms: int) -> int | None:
        (found,) = self._client.offsets_for_times([TopicPartition(topic, 0, time_ms)], LIMIT_S)
        return found.offset if found.offset >= 0 else None


class Adapter:
    is_binary = True
    sets_time = True
    invalid_record = KafkaError.INVALID_RECORD
    shows_reason = False
    assignor = "range"

    def __init__(self, address: str) -> None:
        self.address = address
        self._settings: dict[str, Any] = {"bootstrap.servers": address, "log_level": 0}
        self.admin = AdminClient(self._settings)

    def create(self, topic: str, partition_count: int = 1) -> None:
        result(self.admin.create_topics([NewTopic(topic, partition_count, 1)]))

    def topics(self) -> set[str]:
        return set(self.admin.list_topics(timeout=LIMIT_S).topics)

    def describe_topic(self, topic: str) -> int:
        shown = result(self.admin.describe_topics(TopicCollection([topic])))
        assert (shown.name, shown.partitions[0].leader is None) == (topic, False)
        return len(shown.partitions)

    def cluster(self) -> tuple[str, str]:
        shown = self.admin.describe_cluster().result(LIMIT_S)
        return f"{shown.controller.host}:{shown.controller.port}", shown.cluster_id

    def try_send(
        self,
        topic: str,
        records: Sequence[Sent],
        *,
        partition: int = 0,
        acks: int = -1,
        codec: str = "none",
        is_idempotent: bool = False,
        batch_bytes: int | None = None,
    ) -> list[int | RefusedError]:
        settings = {"linger.ms": 30, "compression.type": codec, "acks": acks}
        if is_idempotent:
            settings["enable.idempotence"] = True
        if batch_bytes is not None:
            settings["batch.size"] = batch_bytes
        outcomes: dict[int, int | RefusedError] = {}
        producer = Producer({**self._settings, "message.send.max.retries": 5, **settings})

        def note(index: int) -> Callable[[Any, Any], None]:
            def take(error: Any, message: Any) -> None:
                outcomes[index] = refusal(error) if error else message.offset()

            return take

        for index, one in enumerate(records):
            producer.produce(
                topic,
                one.value,
                one.key,
                partition,
                on_delivery=note(index),
                timestamp=one.timestamp_ms or 0,
                headers=list(one.headers),
            )
        assert producer.flush(LIMIT_S) == 0
        return [outcomes[index] for index in range(len(records))]

    @contextmanager
    def consuming(
        self,
        group: str | None = None,
        *,
        instance: str | None = None,
        is_cooperative: bool = False,
        can_reset: bool = True,
        auto_commits: bool = True,
        session_timeout_ms: int | None = None,
        client_id: str | None = None,
        fetch_wait_ms: int = 500,
    ) -> Iterator[Reader]:
        settings = {
            # It asks for a group's name; without commits nothing comes of it.
            "group.id": group or "unused",
            "enable.auto.commit": auto_commits and group is not None,
            "auto.offset.reset": "earliest" if can_reset else "error",
            "fetch.wait.max.ms": fetch_wait_ms,
        }
        if instance is not None:
            settings["group.instance.id"] = instance
        if is_cooperative:
            settings["partition.assignment.strategy"] = "cooperative-sticky"
        if session_timeout_ms is not None:
            settings["session.timeout.ms"] = session_timeout_ms
            settings["heartbeat.interval.ms"] = session_timeout_ms // 6
        if client_id is not None:
            settings["client.id"] = client_id
        client = Client({**self._settings, **settings})
        try:
            yield Reader(client)
        finally:
            client.close()

    def list_groups(self) -> Mapping[str, str]:
        listed = self.admin.list_consumer_groups().result(LIMIT_S)
        return {group.group_id: group.state.name for group in listed.valid}

    def describe_group(self, group: str) -> Described:
        shown = result(self.admin.describe_consumer_groups([group]))
        (member,) = shown.members
        (place,) = member.assignment.topic_partitions
        return Described(
            shown.state.name.lower(),
            shown.partition_assignor,
            member.client_id,
            member.host,
            (place.topic, (place.partition,)),
        )

    def group_offsets(self, group: str) -> Mapping[tuple[str, int], tuple[int, str | None]]:
        asked = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        places = result(asked).topic_partitions
        return {(one.topic, one.partition): (one.offset, one.metadata) for one in places}

    def set_offset(self, group: str, topic: str, offset: int) -> None:
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, offset)])
        result(self.admin.alter_consumer_group_offsets([wanted]))

    def delete_group(self, group: str) -> None:
        result(self.admin.delete_consumer_groups([group]))

    def create_partitions(self, topic: str, count: int) -> None:
        result(self.admin.create_partitions([NewPartitions(topic, count)]))

    def settings_of(self, topic: str | None) -> Mapping[str, str | None]:
        node = self.admin.describe_cluster().result(LIMIT_S).nodes[0]
        kind = ResourceType.BROKER if topic is None else ResourceType.TOPIC
        shown = result(self.admin.describe_configs([ConfigResource(kind, topic or str(node.id))]))
        return {name: entry.value for name, entry in shown.items()}

    def change_setting(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        result(self.admin.incremental_alter_configs([changed]))

    def delete_records(self, topic: str, offset: int) -> int:
        deleted = result(self.admin.delete_records([TopicPartition(topic, 0, offset)]))
        start: int = deleted.low_watermark
        return start

    def delete_topic(self, topic: str) -> None:
        result(self.admin.delete_topics([topic]))
