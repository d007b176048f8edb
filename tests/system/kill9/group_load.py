"""A consumer group that works through the kills: members come, go, read and commit."""

import random
import threading
import time
from collections import defaultdict
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.offsets_client import FETCH_VERSION, committed, fetch_request
from tests.support.clients.wire_socket import ask_broker
from tests.support.oracles.commit_history import (
    Committed,
    GroupEvent,
    Partition,
    Read,
    Resumed,
    note,
)
from tests.support.oracles.history_events import Place
from tests.support.oracles.kafka_oracle import OffsetFetchResponse
from tests.system.kill9.workload import CLIENT, PARTITION_COUNTS

GROUP: Final = "workers"
SESSION_TIMEOUTS_MS: Final = (1_500, 3_000, 3_000)
"""Of each member. Shorter than some restarts and longer than most: members survive and are lost,
and one that left while the broker was away holds the others up no longer than that."""
COMMIT_EVERY_S: Final = 0.1
STAY_S: Final = (2.0, 6.0)
"""How long a member stays before it leaves and comes back as another one."""
ASK_LIMIT_S: Final = 60.0
RETRY_S: Final = 0.02

CONSUMER: Final[dict[str, Any]] = {
    "group.id": GROUP,
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "max.poll.interval.ms": 20_000,
    "heartbeat.interval.ms": 200,
    "coordinator.query.interval.ms": 1_000,
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 20,
    **CLIENT,
}


class GroupLog:
    """What all members note, and what was acknowledged to any of them.

    Attributes:
        events: the history.
    """

    def __init__(self, events: list[GroupEvent]) -> None:
        self.events = events
        self._acknowledged: dict[Partition, int] = defaultdict(lambda: -1)
        self._lock = threading.Lock()

    def acknowledged(self, partition: Partition) -> int:
        """The highest commit that was acknowledged so far; -1 for none."""
        with self._lock:
            return self._acknowledged[partition]

    def note_commit(self, event: Committed) -> None:
        with self._lock:
            self.events.append(event)
            highest = max(self._acknowledged[event.partition], event.offset)
            self._acknowledged[event.partition] = highest


class Worker(threading.Thread):
    """One member at a time: joins, reads, commits, leaves, and joins again under another name."""

    def __init__(
        self, address: str, name: str, session_timeout_ms: int, seed: int, log: GroupLog
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.fatal: list[str] = []
        self._address = address
        self._settings = {
            "bootstrap.servers": address,
            "session.timeout.ms": session_timeout_ms,
            **CONSUMER,
        }
        self._random = random.Random(seed)
        self._log = log
        self._stopping = threading.Event()
        self._stays = 0
        self._member = name
        self._next: dict[Partition, int] = {}
        self._committed: dict[Partition, int] = {}

    def run(self) -> None:
        while not self._stopping.is_set():
            self._stays += 1
            self._member = f"{self.name}#{self._stays}"
            try:
                self._stay(self._random.uniform(*STAY_S))
            except Exception as error:  # noqa: BLE001 (the root of a thread: it is reported)
                self.fatal.append(f"{self._member}: {error!r}")
                return

    def stop(self) -> None:
        """Leave the group; it has ended when this returns."""
        self._stopping.set()
        self.join()

    def _stay(self, duration_s: float) -> None:
        consumer = Consumer(self._settings)
        consumer.subscribe(
            list(PARTITION_COUNTS), on_assign=self._resume, on_revoke=self._give_back
        )
        end_s, commit_s = time.monotonic() + duration_s, time.monotonic()
        while time.monotonic() < end_s and not self._stopping.is_set():
            for message in consumer.consume(500, timeout=0.05):
                self._note(message)
            if time.monotonic() - commit_s >= COMMIT_EVERY_S:
                commit_s = time.monotonic()
                self._commit(consumer)
        consumer.close()

    def _note(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._AUTO_OFFSET_RESET:
                self.fatal.append(f"{self._member}: {error}")
            return
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        place = Place(topic, partition, offset)
        self._log.events.append(Read(self._member, place, message.value() or b""))
        self._next[topic, partition] = offset + 1

    def _resume(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Ask for the committed offsets, instead of leaving that to the client, to see them."""
        self._next, self._committed = {}, {}
        names = [(each.topic, each.partition) for each in partitions]
        known = [self._log.acknowledged(name) for name in names]
        reported = read_committed(self._address, names)
        for name, acknowledged in zip(names, known, strict=True):
            offset, metadata = reported[name]
            self._log.events.append(Resumed(self._member, name, offset, metadata, acknowledged))
            self._committed[name] = offset
        consumer.assign([TopicPartition(*name, max(reported[name][0], 0)) for name in names])

    def _give_back(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit(consumer)
        self._next = {}
        consumer.unassign()

    def _commit(self, consumer: Consumer) -> None:
        new = {name: end for name, end in self._next.items() if end != self._committed.get(name)}
        if not new:
            return
        offsets = [TopicPartition(*name, end, note(name, end)) for name, end in new.items()]
        try:
            answers = consumer.commit(offsets=offsets, asynchronous=False) or []
        except KafkaException:
            return  # It may be stored or not; the next member reads which.
        for answer in answers:
            if answer.error is None:
                name = (answer.topic, answer.partition)
                self._committed[name] = answer.offset
                self._log.note_commit(Committed(self._member, name, answer.offset))


class GroupLoad:
    """A group of several workers.

    Attributes:
        log: what they saw.
    """

    def __init__(self, address: str, rng: random.Random, events: list[GroupEvent]) -> None:
        self.log = GroupLog(events)
        self._workers = [
            Worker(address, f"w{number}", timeout_ms, rng.randrange(2**32), self.log)
            for number, timeout_ms in enumerate(SESSION_TIMEOUTS_MS)
        ]

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    def await_commits(self, ends: dict[Partition, int], limit_s: float) -> list[str]:
        """Wait until everything up to `ends` is committed; return what is not after `limit_s`."""
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s:
            behind = {
                name: (self.log.acknowledged(name), end)
                for name, end in ends.items()
                if end and self.log.acknowledged(name) < end
            }
            if not behind:
                return []
            time.sleep(0.02)
        return [
            f"the group is stuck at {at} of {end} in {name}" for name, (at, end) in behind.items()
        ]

    def finish(self) -> list[str]:
        """Let all leave; return their errors."""
        for worker in self._workers:
            worker.stop()
        return [problem for worker in self._workers for problem in worker.fatal]


def read_committed(address: str, partitions: list[Partition]) -> dict[Partition, tuple[int, str]]:
    """Return the committed offset and metadata of each partition, -1 if there is none.

    Over a socket: confluent-kafka reads metadata as text in C, which may not end where they end.

    Raises:
        OSError: the broker stayed away for too long.
    """
    request = fetch_request(FETCH_VERSION, {GROUP: partitions})
    deadline_s = time.monotonic() + ASK_LIMIT_S
    while True:
        try:
            answer = ask_broker(
                address, request, FETCH_VERSION, OffsetFetchResponse, limit_s=ASK_LIMIT_S
            )
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(RETRY_S)
            continue
        if answer.error_code == ErrorCode.coordinator_load_in_progress:
            # A sync master has no lease for a moment; clients ask again.
            assert time.monotonic() < deadline_s, "the broker has no lease"
            time.sleep(RETRY_S)
            continue
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        reported = committed(answer.topics, FETCH_VERSION)
        assert all(each.error == 0 for each in reported.values())
        # confluent-kafka sends the zero byte as well that ends a text in C.
        return {
            name: (reported[name].offset, (reported[name].metadata or "").removesuffix("\0"))
            for name in partitions
        }
