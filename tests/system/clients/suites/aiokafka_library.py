"""aiokafka: old versions of the protocol, its own codecs (snappy in xerial's framing)."""

import asyncio
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    OffsetAndMetadata,
    TopicPartition,
)
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, UnknownError

from tests.system.clients.delayed import Received, now_ms
from tests.system.clients.suites.library import Described, RefusedError, Sent, ignore
from tests.system.clients.suites.using import LIMIT_S


def received(record: Any) -> Received:
    return Received(
        value=record.value or b"",
        key=record.key,
        headers=tuple(record.headers),
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp,
        at_ms=now_ms(),
    )


def check(rows: Sequence[Sequence[Any]]) -> None:
    """Raise the first error of rows that hold a code second."""
    for row in rows:
        if row[1]:
            raise RefusedError(row[1], str(row))


class Listener(ConsumerRebalanceListener):
    def __init__(self, on_change: Callable[[str, Iterable[int]], None]) -> None:
        self._on_change = on_change

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._on_change("assigned", [one.partition for one in assigned])

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._on_change("revoked", [one.partition for one in revoked])


class Reader:
    """It has an event loop of its own, which runs during each call: `poll` does what waits."""

    def __init__(self, runner: asyncio.Runner, client: AIOKafkaConsumer) -> None:
        self._runner = runner
        self._client = client
        self._on_records: Callable[[Sequence[Received]], None] = ignore

    def assign(self, topic: str, places: Mapping[int, int | None]) -> None:
        async def assign() -> None:
            self._client.assign([TopicPartition(topic, index) for index in places])

        self._runner.run(assign())
        for index, offset in places.items():
            if offset is not None:
                self._client.seek(TopicPartition(topic, index), offset)

    def subscribe(
        self,
        topic: str,
        on_change: Callable[[str, Iterable[int]], None] = ignore,
        on_records: Callable[[Sequence[Received]], None] = ignore,
    ) -> None:
        async def subscribe() -> None:
            self._client.subscribe([topic], listener=Listener(on_change))

        self._on_records = on_records
        self._runner.run(subscribe())

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self._client.seek(TopicPartition(topic, partition), offset)

    def poll(self, limit_s: float, count: int = 500) -> list[Received]:
        async def poll() -> list[Received]:
            polled = await self._client.getmany(timeout_ms=int(limit_s * 1000), max_records=count)
            records = [received(one) for some in polled.values() for one in some]
            self._on_records(records)
            return records

        return self._runner.run(poll())

    def share(self) -> set[int]:
        return {one.partition for one in self._client.assignment()}

    def commit(self, topic: str, offsets: Mapping[int, int], metadata: str = "") -> None:
        try:
            self._runner.run(
                self._client.commit(
                    {
                        TopicPartition(topic, index): OffsetAndMetadata(offset, metadata)
                        for index, offset in offsets.items()
                    }
                )
            )
        except KafkaError as error:
            raise RefusedError(getattr(error, "errno", -1), str(error)) from error

    def committed(self, topic: str, partition: int) -> int | None:
        found: int | None = self._runner.run(
            self._client.committed(TopicPartition(topic, partition))
        )
        return found

    def ends(self, topic: str) -> tuple[int, int]:
        one = TopicPartition(topic, 0)
        first = self._runner.run(self._client.beginning_offsets([one]))[one]
        return first, self._runner.run(self._client.end_offsets([one]))[one]

    def offset_at(self, topic: str, time_ms: int) -> int | None:
        one = TopicPartition(topic, 0)
        found = self._runner.run(self._client.offsets_for_times({one: time_ms}))[one]
        return None if found is None else found.offset


class Adapter:
    is_binary = True
    sets_time = True
    invalid_record = UnknownError.errno
    shows_reason = False
    assignor = "roundrobin"

    def __init__(self, address: str) -> None:
        self.address = address

    def _ask(self, question: Callable[[AIOKafkaAdminClient], Coroutine[Any, Any, Any]]) -> Any:
        @asynccontextmanager
        async def administrating() -> AsyncIterator[AIOKafkaAdminClient]:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
            await admin.start()
            try:
                yield admin
            finally:
                await admin.close()

        async def ask() -> Any:
            async with administrating() as admin:
                return await question(admin)

        return asyncio.run(asyncio.wait_for(ask(), LIMIT_S))

    def create(self, topic: str, partition_count: int = 1) -> None:
        made = self._ask(lambda admin: admin.create_topics([NewTopic(topic, partition_count, 1)]))
        check(made.topic_errors)

    def topics(self) -> set[str]:
        return set(self._ask(lambda admin: admin.list_topics()))

    def describe_topic(self, topic: str) -> int:
        (shown,) = self._ask(lambda admin: admin.describe_topics([topic]))
        return len(shown["partitions"])

    def cluster(self) -> tuple[str, str]:
        shown = self._ask(lambda admin: admin.describe_cluster())
        (broker,) = shown["brokers"]
        assert shown["controller_id"] == broker["node_id"]
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
        settings: dict[str, Any] = {"enable_idempotence": is_idempotent, "linger_ms": 30}
        if batch_bytes is not None:
            settings |= {"max_batch_size": batch_bytes, "linger_ms": 1}

        async def send() -> list[Any]:
            async with AIOKafkaProducer(
                bootstrap_servers=self.address,
                acks="all" if acks < 0 else acks,
                compression_type=None if codec == "none" else codec,
                **settings,
            ) as producer:
                futures = [
                    await producer.send(
                        topic,
                        one.value,
                        one.key,
                        partition,
                        one.timestamp_ms,
                        list(one.headers),
                    )
                    for one in records
                ]
                return list(await asyncio.gather(*futures, return_exceptions=True))

        outcomes: list[int | RefusedError] = []
        for answer in asyncio.run(asyncio.wait_for(send(), LIMIT_S)):
            if isinstance(answer, KafkaError):
                outcomes.append(RefusedError(answer.errno, str(answer)))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                outcomes.append(-1 if answer is None else answer.offset)  # acks 0: no answer
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
        assert not is_cooperative
        settings: dict[str, Any] = {}
        if session_timeout_ms is not None:
            settings["session_timeout_ms"] = session_timeout_ms
            settings["heartbeat_interval_ms"] = session_timeout_ms // 6
        if client_id is not None:
            settings["client_id"] = client_id

        async def start() -> AIOKafkaConsumer:
            client = AIOKafkaConsumer(
                bootstrap_servers=self.address,
                group_id=group,
                group_instance_id=instance,
                enable_auto_commit=auto_commits and group is not None,
                auto_offset_reset="earliest" if can_reset else "none",
                fetch_max_wait_ms=fetch_wait_ms,
                **settings,
            )
            await client.start()
            return client

        with asyncio.Runner() as runner:
            client = runner.run(start())
            try:
                yield Reader(runner, client)
            finally:
                runner.run(client.stop())

    def list_groups(self) -> Mapping[str, str]:
        return dict(self._ask(lambda admin: admin.list_consumer_groups()))

    def describe_group(self, group: str) -> Described:
        (answer,) = self._ask(lambda admin: admin.describe_consumer_groups([group]))
        ((_, _, state, _, protocol, members, *_),) = answer.groups
        ((_, client_id, host, *_),) = [member[-5:] for member in members]
        return Described(state.lower(), protocol, client_id, host, None)

    def group_offsets(self, group: str) -> Mapping[tuple[str, int], tuple[int, str | None]]:
        places = self._ask(lambda admin: admin.list_consumer_group_offsets(group))
        return {(*place,): (found.offset, found.metadata) for place, found in places.items()}

    def create_partitions(self, topic: str, count: int) -> None:
        wanted = {topic: NewPartitions(count)}
        check(self._ask(lambda admin: admin.create_partitions(wanted)).topic_errors)

    def settings_of(self, topic: str | None) -> Mapping[str, str | None]:
        kind = ConfigResourceType.BROKER if topic is None else ConfigResourceType.TOPIC

        async def describe(admin: Any) -> Any:
            name = topic or str((await admin.describe_cluster())["brokers"][0]["node_id"])
            return await admin.describe_configs([ConfigResource(kind, name)])

        (answer,) = self._ask(describe)
        ((code, message, _, _, entries),) = answer.resources
        assert code == 0, message
        return {entry[0]: entry[1] for entry in entries}

    def change_setting(self, topic: str, name: str, value: str) -> None:
        changed = ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})
        (answer,) = self._ask(lambda admin: admin.alter_configs([changed]))
        assert [row[0] for row in answer.resources] == [0], answer

    def delete_records(self, topic: str, offset: int) -> int:
        place = TopicPartition(topic, 0)
        wanted = {place: RecordsToDelete(before_offset=offset)}
        start: int = self._ask(lambda admin: admin.delete_records(wanted))[place]
        return start

    def delete_topic(self, topic: str) -> None:
        check(self._ask(lambda admin: admin.delete_topics([topic])).topic_error_codes)
