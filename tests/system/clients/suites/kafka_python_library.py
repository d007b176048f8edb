"""kafka-python: the newest versions of the protocol, idempotent by default."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from tests.system.clients.delayed import Received, now_ms
from tests.system.clients.suites.library import (
    INVALID_RECORD,
    Described,
    RefusedError,
    Sent,
    ignore,
)
from tests.system.clients.suites.using import LIMIT_S

with warnings.catch_warnings():
    # It reads its schemas by functions of importlib.resources that are deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import (
        ConsumerRebalanceListener,
        KafkaAdminClient,
        KafkaConsumer,
        KafkaProducer,
        OffsetAndMetadata,
        TopicPartition,
    )
    from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.errors import KafkaError, NoError


def received(record: Any) -> Received:
    return Received(
        value=record.value or b"",
        key=record.key,
        headers=tuple((name, value) for name, value in record.headers),
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp,
        at_ms=now_ms(),
    )


def refusal(error: KafkaError) -> RefusedError:
    return RefusedError(getattr(error, "errno", -1), str(error))


class Listener(ConsumerRebalanceListener):
    def __init__(self, on_change: Callable[[str, Iterable[int]], None]) -> None:
        self._on_change = on_change

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._on_change("assigned", [one.partition for one in assigned])

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._on_change("revoked", [one.partition for one in revoked])


class Reader:
    def __init__(self, client: KafkaConsumer) -> None:
        self._client = client
        self._on_records: Callable[[Sequence[Received]], None] = ignore

    def assign(self, topic: str, places: Mapping[int, int | None]) -> None:
        self._client.assign([TopicPartition(topic, index) for index in places])
        for index, offset in places.items():
            place = TopicPartition(topic, index)
            if offset is None:
                self._client.seek_to_beginning(place)
            else:
                self._client.seek(place, offset)

    def subscribe(
        self,
        topic: str,
        on_change: Callable[[str, Iterable[int]], None] = ignore,
        on_records: Callable[[Sequence[Received]], None] = ignore,
    ) -> None:
        self._on_records = on_records
        self._client.subscribe([topic], listener=Listener(on_change))

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self._client.seek(TopicPartition(topic, partition), offset)

    def poll(self, limit_s: float, count: int = 500) -> list[Received]:
        polled = self._client.poll(timeout_ms=int(limit_s * 1000), max_records=count)
        records = [received(one) for some in polled.values() for one in some]
        self._on_records(records)
        return records

    def share(self) -> set[int]:
        return {one.partition for one in self._client.assignment()}

    def commit(self, topic: str, offsets: Mapping[int, int], metadata: str = "") -> None:
        try:
            self._client.commit(
                {
                    TopicPartition(topic, index): OffsetAndMetadata(offset, metadata, -1)
                    for index, offset in offsets.items()
                }
            )
        except KafkaError as error:
            raise refusal(error) from error

    def committed(self, topic: str, partition: int) -> int | None:
        found: int | None = self._client.committed(TopicPartition(topic, partition))
        return found

    def ends(self, topic: str) -> tuple[int, int]:
        one = TopicPartition(topic, 0)
        return self._client.beginning_offsets([one])[one], self._client.end_offsets([one])[one]

    def offset_at(self, topic: str, time_ms: int) -> int | None:
        one = TopicPartition(topic, 0)
        found = self._client.offsets_for_times({one: time_ms})[one]
        return None if found is None else found.offset


class Adapter:
    is_binary = True
    sets_time = True
    invalid_record = INVALID_RECORD
    shows_reason = True
    assignor = "range"

    def __init__(self, address: str) -> None:
        self.address = address
        # It compiles its messages when they are first used: not by several threads at once.
        self.topics()

    @contextmanager
    def _administrating(self) -> Iterator[KafkaAdminClient]:
        with closing(KafkaAdminClient(bootstrap_servers=self.address)) as admin:
            try:
                yield admin
            except KafkaError as error:
                raise refusal(error) from error

    def create(self, topic: str, partition_count: int = 1) -> None:
        with self._administrating() as admin:
            admin.create_topics([NewTopic(topic, partition_count, 1)])

    def topics(self) -> set[str]:
        with self._administrating() as admin:
            return set(admin.list_topics())

    def describe_topic(self, topic: str) -> int:
        with self._administrating() as admin:
            return len(admin.describe_topics([topic])[0]["partitions"])

    def cluster(self) -> tuple[str, str]:
        with self._administrating() as admin:
            shown = admin.describe_cluster()
        (broker,) = shown["brokers"]
        assert shown["controller_id"] == broker["broker_id"]
        return f"{broker['host']}:{broker['port']}", shown["cluster_id"]

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
        settings: dict[str, Any] = {"enable_idempotence": is_idempotent or acks < 0}
        if batch_bytes is not None:
            settings |= {"batch_size": batch_bytes, "linger_ms": 1}
        producer = KafkaProducer(
            bootstrap_servers=self.address,
            acks="all" if acks < 0 else acks,
            compression_type=None if codec == "none" else codec,
            **{"linger_ms": 30, **settings},
        )
        outcomes: list[int | RefusedError] = []
        with closing(producer):
            futures = [
                producer.send(
                    topic,
                    one.value,
                    one.key,
                    list(one.headers),
                    partition,
                    one.timestamp_ms,
                )
                for one in records
            ]
            for future in futures:
                try:
                    outcomes.append(future.get(LIMIT_S).offset)
                except KafkaError as error:
                    outcomes.append(refusal(error))
        return outcomes

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
        settings: dict[str, Any] = {}
        if instance is not None:
            settings["group_instance_id"] = instance
        if is_cooperative:
            settings["partition_assignment_strategy"] = [CooperativeStickyAssignor]
        if session_timeout_ms is not None:
            settings["session_timeout_ms"] = session_timeout_ms
            settings["heartbeat_interval_ms"] = session_timeout_ms // 6
        if client_id is not None:
            settings["client_id"] = client_id
        client = KafkaConsumer(
            bootstrap_servers=self.address,
            group_id=group,
            enable_auto_commit=auto_commits and group is not None,
            auto_offset_reset="earliest" if can_reset else "none",
            fetch_max_wait_ms=fetch_wait_ms,
            **settings,
        )
        with closing(client):
            yield Reader(client)

    def list_groups(self) -> Mapping[str, str]:
        with self._administrating() as admin:
            return {one["group_id"]: one["group_state"] for one in admin.list_groups()}

    def describe_group(self, group: str) -> Described:
        with self._administrating() as admin:
            shown = admin.describe_groups([group])[group]
        (member,) = shown["members"]
        (place,) = member["member_assignment"]["assigned_partitions"]
        return Described(
            shown["group_state"].lower(),
            shown["protocol_data"],
            member["client_id"],
            member["client_host"],
            (place["topic"], tuple(place["partitions"])),
        )

    def group_offsets(self, group: str) -> Mapping[tuple[str, int], tuple[int, str | None]]:
        with self._administrating() as admin:
            places = admin.list_group_offsets([group])[group]
        return {(*place,): (found.offset, found.metadata) for place, found in places.items()}

    def set_offset(self, group: str, topic: str, offset: int) -> None:
        place = TopicPartition(topic, 0)
        with self._administrating() as admin:
            answer = admin.alter_group_offsets(group, {place: OffsetAndMetadata(offset, "", -1)})
        assert answer == {place: NoError}

    def delete_offset(self, group: str, topic: str) -> None:
        place = TopicPartition(topic, 0)
        with self._administrating() as admin:
            assert admin.delete_group_offsets(group, [place]) == {place: NoError}

    def delete_group(self, group: str) -> None:
        with self._administrating() as admin:
            assert admin.delete_groups([group]) == {group: "OK"}

    def create_partitions(self, topic: str, count: int) -> None:
        with self._administrating() as admin:
            admin.create_partitions({topic: count})

    def settings_of(self, topic: str | None) -> Mapping[str, str | None]:
        kind = ConfigResourceType.BROKER if topic is None else ConfigResourceType.TOPIC
        with self._administrating() as admin:
            name = topic or str(admin.describe_cluster()["brokers"][0]["broker_id"])
            found = admin.describe_configs([ConfigResource(kind, name)], config_filter="all")
        ((shown,),) = (of_kind.values() for of_kind in found.values())
        return {name: entry["value"] for name, entry in shown.items()}

    def change_setting(self, topic: str, name: str, value: str) -> None:
        changed = ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})
        with self._administrating() as admin:
            admin.alter_configs([changed])

    def delete_records(self, topic: str, offset: int) -> int:
        place = TopicPartition(topic, 0)
        with self._administrating() as admin:
            start: int = admin.delete_records({place: offset})[place]["low_watermark"]
            return start

    def delete_topic(self, topic: str) -> None:
        with self._administrating() as admin:
            admin.delete_topics([topic])
