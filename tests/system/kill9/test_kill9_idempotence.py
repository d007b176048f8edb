"""Idempotent producers of three clients through kill -9: no duplicate, no gap, in order.

Each client retries by its own rules. It sends numbers, one after another, into a partition of its
own while the broker is killed; at the end the partition holds just these numbers.
"""

import asyncio
import gc
import logging
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.harness.appliance_process import ApplianceProcess
from tests.system.kill9.workload import CLIENT, IDEMPOTENT, MIXED, create_topics

with warnings.catch_warnings():
    # It reads its definitions with a function that Python wants to retire.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaProducer  # type: ignore[import-untyped]

KILL_COUNT: Final = 3
LIMIT_S: Final = 60.0
PAUSE_S: Final = 0.002
COUNT_MIN: Final = 500
TOPIC: Final = MIXED

# kafka-python leaves the sockets of lost connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """That the broker is away is what this is about; and a record of it would keep the sockets."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
    gc.collect()


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


def kill_under(senders: list[Sender], appliance: ApplianceProcess, rng: random.Random) -> None:
    for sender in senders:
        sender.start()
    for _ in range(KILL_COUNT):
        time.sleep(rng.uniform(0.3, 1.0))
        appliance.kill()
        appliance.start()
    deadline_s = time.monotonic() + LIMIT_S
    while min(sender.count for sender in senders) < COUNT_MIN and time.monotonic() < deadline_s:
        time.sleep(0.02)
    for sender in senders:
        sender.stop()


def test_idempotent_producers_leave_no_duplicate_and_no_gap(tmp_path: Path) -> None:
    """With async flush, where a kill meets more that is not on the disk; test_kill9 has both."""
    seed = int(os.environ.get("LATERMQ_SEED") or random.SystemRandom().randrange(2**32))
    appliance = ApplianceProcess(tmp_path / "data", ["--flush", "async"])
    try:
        appliance.start()
        create_topics(appliance.kafka)
        clients = (by_confluent, by_kafka_python, by_aiokafka)
        senders = [Sender(client(appliance.kafka, index)) for index, client in enumerate(clients)]
        kill_under(senders, appliance, random.Random(seed))
        for index, sender in enumerate(senders):
            assert sender.error is None, f"{sender.name}: {sender.error!r}"
            assert sender.count >= COUNT_MIN
            values = read_partition(appliance.kafka, index)
            assert values == list(range(sender.count)), sender.name
        appliance.stop()
    except BaseException:
        sys.stderr.write(f"seed {seed}; {appliance.said()}\n")
        raise
    finally:
        appliance.close()
