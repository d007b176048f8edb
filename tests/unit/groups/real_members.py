"""Members of a group that are real clients: threads with librdkafka, tasks of aiokafka, and kcat.

kcat is a process, so that it can be killed or stopped as by kill -9 and kill -STOP.
"""

import asyncio
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from confluent_kafka import Consumer, TopicPartition

SESSION_MS: Final = 2_000
HEARTBEAT_MS: Final = 300
COMMIT_MS: Final = 300

LIBRDKAFKA: Final[dict[str, Any]] = {
    "auto.offset.reset": "earliest",
    "session.timeout.ms": SESSION_MS,
    "heartbeat.interval.ms": HEARTBEAT_MS,
    "auto.commit.interval.ms": COMMIT_MS,
    "partition.assignment.strategy": "range",
    "log_level": 0,
}

Seen = Callable[[bytes], None]
"""Is called with the value of each record that a member reads."""


class RealMember(Protocol):
    """One client in a group."""

    def leave(self) -> None:
        """Commit and leave the group; it has ended when this returns."""


class LibrdkafkaMember:
    """confluent-kafka in a thread.

    Attributes:
        rebalances: how often partitions were given or taken.
    """

    def __init__(self, address: str, group: str, topic: str, seen: Seen, **settings: Any) -> None:
        self.rebalances = 0
        self._seen = seen
        self._is_over = threading.Event()
        self._consumer = Consumer(
            {"bootstrap.servers": address, "group.id": group} | LIBRDKAFKA | settings
        )
        self._consumer.subscribe([topic], on_assign=self._count, on_revoke=self._count)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _count(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1

    def _run(self) -> None:
        while not self._is_over.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._seen(message.value() or b"")
        self._consumer.close()

    def leave(self) -> None:
        self._is_over.set()
        self._thread.join()


class AiokafkaMember:
    """aiokafka in a loop of its own."""

    def __init__(self, address: str, group: str, topic: str, seen: Seen) -> None:
        self._address, self._group, self._topic, self._seen = address, group, topic, seen
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        consumer = AIOKafkaConsumer(
            self._topic,
            bootstrap_servers=self._address,
            group_id=self._group,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            auto_commit_interval_ms=COMMIT_MS,
            partition_assignment_strategy=(RangePartitionAssignor,),
        )
        await consumer.start()
        try:
            while not self._is_over.is_set():
                batches = await consumer.getmany(timeout_ms=100)
                for records in batches.values():
                    for record in records:
                        self._seen(record.value)
        finally:
            await consumer.stop()

    def leave(self) -> None:
        self._is_over.set()
        self._thread.join()


class KcatMember:
    """kcat, with the librdkafka of Debian."""

    def __init__(self, address: str, group: str, topic: str, seen: Seen) -> None:
        settings = [f"-X{name}={value}" for name, value in LIBRDKAFKA.items()]
        command = ["kcat", "-b", address, "-q", "-u", "-G", group, *settings, topic]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._seen = seen
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # A line cut off by its end is read again by another member.
            if line.endswith(b"\n"):
                self._seen(line.rstrip(b"\n"))

    def freeze(self) -> None:
        """Stop it by SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue it by SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def crash(self) -> None:
        """End it as kill -9 does."""
        self._process.kill()
        self._end()

    def leave(self) -> None:
        self.thaw()
        self._process.terminate()
        self._end()

    def _end(self) -> None:
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
