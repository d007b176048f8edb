"""A broker that is used at random, and a plain list of what became of each record.

The list is written while the broker is used, from what a client asks and what the broker answers.
It knows nothing of frames.
"""

import random
from dataclasses import dataclass, field
from typing import Any, Final

from appliance.store.state.group_frames import OFFSET_COMMITTED, OffsetEntry
from tests.support.harness.broker_harness import BrokerHarness, Stop
from tests.support.values.kafka_records import Headers, Record, by_level, cancel, delay

TOPICS: Final = {"orders": 3, "mails": 1, "empty": 1}
LEVEL_1_MS: Final = 1000


@dataclass
class Timer:
    """A timer as its producer knows it."""

    topic: str
    partition: int
    index: int
    user_id: bytes | None
    level: int
    due_ms: int
    accepted_ms: int
    key: bytes | None
    value: bytes
    state: str = "pending"
    completed_ms: int | None = None

    def complete(self, state: str, now_ms: int) -> None:
        assert self.state == "pending"
        self.state, self.completed_ms = state, now_ms


@dataclass
class UsedBroker:
    """Uses a broker at random."""

    rng: random.Random
    harness: BrokerHarness = field(default_factory=BrokerHarness)
    timers: list[Timer] = field(default_factory=list)
    committed: dict[tuple[str, str, int], int] = field(default_factory=dict)
    serial: int = 0

    def __post_init__(self) -> None:
        for name, count in TOPICS.items():
            self.harness.create_topic(name, count)

    def use(self, steps: int) -> None:
        """Do some random things."""
        verbs = [self.produce] * 10 + [self.tick] * 4 + [self.cancel] * 2 + [self.commit]
        for _ in range(steps):
            self.rng.choice(verbs)()

    def stop(self, how: Stop) -> None:
        """End the broker, and start it again."""
        self.harness = self.harness.reborn(how, self.rng.randrange(1 << 30))

    def _now_ms(self) -> int:
        return self.harness.clock.wall_ms()

    def produce(self) -> None:
        """Send a batch of records of any kind, compressed or not."""
        topic = self.rng.choice(["orders", "mails"])
        partition = self.rng.randrange(TOPICS[topic])
        records: list[Record] = []
        timers: list[Any] = []
        for index in range(self.rng.randint(1, 6)):
            records.append(self._record(topic, partition, index, timers))
        codec = self.rng.choice([0, 0, 1, 2, 3, 4])
        answer = self.harness.produce(topic, partition, records, codec=codec)
        assert answer.error == 0, answer
        for step in timers:
            step()

    def _record(self, topic: str, partition: int, index: int, then: list[Any]) -> Record:
        """A record; what accepting it means is added to `then`."""
        self.serial += 1
        key = self.rng.choice([None, b"", b"key-%d" % self.serial])
        value = b"%d " % self.serial + self.rng.randbytes(self.rng.choice([0, 5, 300]))
        user_id = self.rng.choice([None, b"id-%d" % self.rng.randrange(6)])
        kind = self.rng.choice(["plain", "plain", "delay", "delay", "level", "now", "cancel"])
        headers: Headers = (("trace", b"\xff%d" % index), ("empty", b""))[: self.rng.randrange(3)]
        now_ms = self._now_ms()
        if kind == "delay":
            after_ms = self.rng.randint(1, 5000)
            headers += delay(after_ms, user_id)
            timer = Timer(
                topic, partition, index, user_id, 0, now_ms + after_ms, now_ms, key, value
            )
            then.append(lambda: self._accept(timer))
        elif kind == "level":
            headers += by_level(1, user_id)
            timer = Timer(
                topic, partition, index, user_id, 1, now_ms + LEVEL_1_MS, now_ms, key, value
            )
            then.append(lambda: self._accept(timer))
        elif kind == "now" and user_id is not None:
            headers += delay(0, user_id)
            then.append(lambda: self._end(topic, user_id, "replaced"))
        elif kind == "cancel" and user_id is not None:
            headers += cancel(user_id)
            then.append(lambda: self._end(topic, user_id, "cancelled"))
        return Record(value, key=key, headers=headers, timestamp_ms=now_ms - self.rng.randrange(9))

    def _accept(self, timer: Timer) -> None:
        if timer.user_id is not None:
            self._end(timer.topic, timer.user_id, "replaced")
        self.timers.append(timer)

    def _end(self, topic: str, user_id: bytes, state: str) -> bool:
        for timer in self.timers:
            is_it = (timer.topic, timer.user_id) == (topic, user_id)
            if is_it and timer.state == "pending":
                timer.complete(state, self._now_ms())
                return True
        return False

    def tick(self) -> None:
        """Let time pass, and deliver what is due."""
        self.harness.tick(self.rng.choice([1, 100, 2000]))
        for timer in self.timers:
            if timer.state == "pending" and timer.due_ms <= self._now_ms():
                timer.complete("delivered", self._now_ms())

    def cancel(self) -> None:
        """Cancel through the admin API."""
        user_id = b"id-%d" % self.rng.randrange(6)
        self.harness.cancel_timer("orders", user_id)
        self.harness.flush()
        self._end("orders", user_id, "cancelled")

    def commit(self) -> None:
        """Commit offsets as a consumer group."""
        group, partition = self.rng.choice(["billing", "audit"]), self.rng.randrange(3)
        offset = self.rng.randint(0, self.harness.partition(partition, "orders").next_offset)
        self.harness.broker.groups.commit_offsets(
            [
                OffsetEntry(
                    op=OFFSET_COMMITTED,
                    group=group,
                    topic_id=self.harness.topic("orders").topic_id,
                    partition=partition,
                    offset=offset,
                    metadata="",
                    commit_ms=self._now_ms(),
                )
            ]
        )
        self.harness.flush()
        self.committed[group, "orders", partition] = offset
