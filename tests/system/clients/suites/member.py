"""A member of a consumer group in a process of its own, which may be asked to leave or be killed.

`python -m tests.system.clients.suites.member LIBRARY ADDRESS GROUP TOPIC` reads, says what it got,
commits that, and says so; on SIGTERM it leaves the group. What it says are the lines of
group_history, each written by one call before the next thing is done, so that a kill loses none
that counts.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any, Final

SESSION_TIMEOUT_MS: Final = 3_000
HEARTBEAT_INTERVAL_MS: Final = 500
POLL_MS: Final = 100

_stopped: list[int] = []


def say(kind: str, rows: Iterable[tuple[int, int, str]]) -> None:
    """Write one line for each row of partition, offset and value."""
    now_ns = time.monotonic_ns()  # the same clock in all processes
    text = "".join(f"{kind} {now_ns} {row[0]} {row[1]} {row[2]}\n" for row in rows)
    os.write(1, text.encode())


def say_partitions(kind: str, partitions: Iterable[Any]) -> None:
    say(kind, [(one.partition, -1, "-") for one in partitions])


def next_offsets(rows: Iterable[tuple[int, int, str]]) -> dict[int, int]:
    """Return what is to be committed for each partition after these rows."""
    offsets: dict[int, int] = {}
    for partition, offset, _ in rows:
        offsets[partition] = max(offset + 1, offsets.get(partition, 0))
    return offsets


def say_committed(offsets: dict[int, int]) -> None:
    say("committed", [(partition, offset, "-") for partition, offset in offsets.items()])


def run_confluent(address: str, group: str, topic: str) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
            "log_level": 0,
        }
    )
    consumer.subscribe(
        [topic],
        on_assign=lambda _, partitions: say_partitions("assigned", partitions),
        on_revoke=lambda _, partitions: say_partitions("revoked", partitions),
        on_lost=lambda _, partitions: say_partitions("revoked", partitions),
    )
    while not _stopped:
        messages = [one for one in consumer.consume(100, POLL_MS / 1000) if one.error() is None]
        rows = [(one.partition(), one.offset(), one.value().decode()) for one in messages]
        say("got", rows)
        if not rows:
            continue
        offsets = next_offsets(rows)
        try:
            consumer.commit(
                offsets=[TopicPartition(topic, *one) for one in offsets.items()],
                asynchronous=False,
            )
        except KafkaException:
            continue  # a rebalance: whoever gets the partition gets these records again
        say_committed(offsets)
    consumer.close()


def run_kafka_python(address: str, group: str, topic: str) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
    from kafka.errors import KafkaError

    class Listener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned: Any) -> None:
            say_partitions("assigned", assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            say_partitions("revoked", revoked)

    consumer = KafkaConsumer(
        bootstrap_servers=address,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
    )
    consumer.subscribe([topic], listener=Listener())
    while not _stopped:
        polled = consumer.poll(timeout_ms=2 * POLL_MS, max_records=100)
        rows = [
            (one.partition, one.offset, one.value.decode())
            for some in polled.values()
            for one in some
        ]
        say("got", rows)
        if not rows:
            continue
        offsets = next_offsets(rows)
        try:
            consumer.commit(
                {
                    TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)
                    for partition, offset in offsets.items()
                }
            )
        except KafkaError:
            continue
        say_committed(offsets)
    consumer.close()


async def run_aiokafka(address: str, group: str, topic: str) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
    from aiokafka.errors import KafkaError

    class Listener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned: Any) -> None:
            say_partitions("assigned", assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            say_partitions("revoked", revoked)

    consumer = AIOKafkaConsumer(
        bootstrap_servers=address,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
    )
    await consumer.start()
    consumer.subscribe([topic], listener=Listener())
    while not _stopped:
        polled = await consumer.getmany(timeout_ms=POLL_MS, max_records=100)
        rows = [
            (one.partition, one.offset, one.value.decode())
            for some in polled.values()
            for one in some
        ]
        say("got", rows)
        if not rows:
            continue
        offsets = next_offsets(rows)
        try:
            await consumer.commit(
                {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
            )
        except KafkaError:
            continue
        say_committed(offsets)
    await consumer.stop()


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, _: _stopped.append(number))
    library, address, group, topic = sys.argv[1:]
    if library == "aiokafka":
        asyncio.run(run_aiokafka(address, group, topic))
    else:
        run = run_confluent if library == "confluent" else run_kafka_python
        run(address, group, topic)


if __name__ == "__main__":
    main()
