"""Consumers without a group, of three libraries, that keep their own place in a topic."""

import asyncio
import time
import warnings
from collections.abc import Mapping
from typing import Any, Final, Protocol

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AiokafkaPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer
from confluent_kafka import TopicPartition as ConfluentPartition

with warnings.catch_warnings():
    # It reads its schemas by functions of importlib.resources that are deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer
    from kafka import TopicPartition as KafkaPythonPartition

LIMIT_S: Final = 60.0

Read = tuple[int, int, bytes]
"""Partition, offset and value of a record."""


class Reader(Protocol):
    """Reads all partitions of a topic, each from the place that is given or its beginning."""

    def __init__(
        self, address: str, topic: str, partition_count: int, places: Mapping[int, int]
    ) -> None: ...

    def read(self, count: int) -> list[Read]:
        """Wait for so many records, and take no more."""

    def close(self) -> None: ...


class ConfluentReader:
    def __init__(
        self, address: str, topic: str, partition_count: int, places: Mapping[int, int]
    ) -> None:
        # The library asks for a group's name; without commits nothing comes of it.
        settings: dict[str, Any] = {"group.id": "unused", "enable.auto.commit": False}
        self._consumer = Consumer({"bootstrap.servers": address, "log_level": 0, **settings})
        self._consumer.assign(
            [
                ConfluentPartition(topic, index, places.get(index, OFFSET_BEGINNING))
                for index in range(partition_count)
            ]
        )

    def read(self, count: int) -> list[Read]:
        records: list[Read] = []
        deadline_s = time.monotonic() + LIMIT_S
        while len(records) < count:
            assert time.monotonic() < deadline_s, f"{len(records)} of {count}"
            for one in self._consumer.consume(count - len(records), 0.2):
                assert one.error() is None, one.error()
                partition, offset = one.partition(), one.offset()
                assert partition is not None
                assert offset is not None
                records.append((partition, offset, one.value() or b""))
        return records

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonReader:
    def __init__(
        self, address: str, topic: str, partition_count: int, places: Mapping[int, int]
    ) -> None:
        self._consumer = KafkaConsumer(bootstrap_servers=address)
        partitions = [KafkaPythonPartition(topic, index) for index in range(partition_count)]
        self._consumer.assign(partitions)
        for one in partitions:
            self._consumer.seek(one, places.get(one.partition, 0))

    def read(self, count: int) -> list[Read]:
        records: list[Read] = []
        deadline_s = time.monotonic() + LIMIT_S
        while len(records) < count:
            assert time.monotonic() < deadline_s, f"{len(records)} of {count}"
            polled = self._consumer.poll(timeout_ms=200, max_records=count - len(records))
            for some in polled.values():
                records += [(one.partition, one.offset, one.value) for one in some]
        return records

    def close(self) -> None:
        self._consumer.close()


class AiokafkaReader:
    def __init__(
        self, address: str, topic: str, partition_count: int, places: Mapping[int, int]
    ) -> None:
        self._runner = asyncio.Runner()
        self._consumer = self._runner.run(self._start(address, topic, partition_count, places))

    @staticmethod
    async def _start(
        address: str, topic: str, partition_count: int, places: Mapping[int, int]
    ) -> Any:
        consumer = AIOKafkaConsumer(bootstrap_servers=address)
        await consumer.start()
        partitions = [AiokafkaPartition(topic, index) for index in range(partition_count)]
        consumer.assign(partitions)
        for one in partitions:
            consumer.seek(one, places.get(one.partition, 0))
        return consumer

    def read(self, count: int) -> list[Read]:
        return self._runner.run(asyncio.wait_for(self._read(count), LIMIT_S))

    async def _read(self, count: int) -> list[Read]:
        records: list[Read] = []
        while len(records) < count:
            one = await self._consumer.getone()
            records.append((one.partition, one.offset, one.value))
        return records

    def close(self) -> None:
        self._runner.run(self._consumer.stop())
        self._runner.close()


READERS: Final[tuple[type[Reader], ...]] = (ConfluentReader, KafkaPythonReader, AiokafkaReader)
