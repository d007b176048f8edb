"""Producers of three clients that send numbers, one after another, whatever their broker does.

Each retries by its own rules, into a partition of its own.
"""

import asyncio
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.system.kill9.workload import CLIENT, IDEMPOTENT, MIXED

with warnings.catch_warnings():
    # It reads its definitions with a function that Python wants to retire.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaProducer  # type: ignore[import-untyped]

LIMIT_S: Final = 60.0
PAUSE_S: Final = 0.002
TOPIC: Final = MIXED


class Sender(threading.Thread):
    """Sends 0, 1, 2 ... until it is stopped.

    Attributes:
        count: how many were sent, and acknowledged when the thread has ended.
        error: why it gave up, if it did.
    """

    def __init__(self, send_all: Callable[["Sender"], None]) -> None:
        super().__init__(name=send_all.__name__, daemon=True)
        self.count = 0
        self.error: BaseException | None = None
        self._send_all = send_all
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            self._send_all(self)
        except Exception as error:  # noqa: BLE001 (the root of a thread: it is reported)
            self.error = error

    def next(self) -> bytes | None:
        """The next value to send; None when it is time to end."""
        if self._stopping.wait(PAUSE_S):
            return None
        self.count += 1
        return b"%d" % (self.count - 1)

    def stop(self) -> None:
        self._stopping.set()
        self.join(LIMIT_S)


def by_confluent(address: str, partition: int) -> Callable[[Sender], None]:
    def librdkafka(sender: Sender) -> None:
        settings: dict[str, Any] = {"bootstrap.servers": address, **CLIENT, **IDEMPOTENT}
        producer = Producer(settings)
        failed = []

        def note(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(error)

        while (value := sender.next()) is not None:
            producer.produce(TOPIC, value, partition=partition, on_delivery=note)
            producer.poll(0)
        assert producer.flush(LIMIT_S) == 0
        assert not failed, failed

    return librdkafka


def by_kafka_python(address: str, partition: int) -> Callable[[Sender], None]:
    def kafka_python(sender: Sender) -> None:
        producer = KafkaProducer(
            bootstrap_servers=address,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=100,
            retry_backoff_ms=20,
            linger_ms=3,
        )
        futures = []
        while (value := sender.next()) is not None:
            futures.append(producer.send(TOPIC, value, partition=partition))
        producer.flush(LIMIT_S)
        for future in futures:
            future.get(0)
        producer.close()

    return kafka_python


def by_aiokafka(address: str, partition: int) -> Callable[[Sender], None]:
    async def send_all(sender: Sender) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=address,
            enable_idempotence=True,
            linger_ms=3,
            retry_backoff_ms=20,
            request_timeout_ms=int(LIMIT_S * 1000),
        )
        await producer.start()
        try:
            pending = []
            while (value := await asyncio.to_thread(sender.next)) is not None:
                pending.append(await producer.send(TOPIC, value, partition=partition))
            for each in pending:
                await each
        finally:
            await producer.stop()

    def aiokafka(sender: Sender) -> None:
        asyncio.run(send_all(sender))

    return aiokafka


def read_partition(address: str, partition: int) -> list[int]:
    """All values of a partition, in order."""
    settings: dict[str, Any] = {"bootstrap.servers": address, "group.id": "reader", **CLIENT}
    consumer = Consumer(settings)
    place = TopicPartition(TOPIC, partition, 0)
    consumer.assign([place])
    _, end = consumer.get_watermark_offsets(place, timeout=LIMIT_S)
    values: list[int] = []
    deadline_s = time.monotonic() + LIMIT_S
    while len(values) < end and time.monotonic() < deadline_s:
        values += [int(each.value() or b"-1") for each in consumer.consume(1_000, timeout=0.1)]
    consumer.close()
    return values
