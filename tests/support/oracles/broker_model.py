"""What a broker must do, in plain Python: the oracle for tests that crash and restart a real one.

It knows batches, delays, ids and topics, but no files, frames or bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.support.harness.broker_harness import BrokerHarness
from tests.support.values.kafka_records import (
    Fetched,
    Headers,
    Producer,
    Record,
    by_level,
    cancel,
    delay,
    deliver_at,
)

UNKNOWN_TOPIC: Final = 3
TOPIC_EXISTS: Final = 36

RETRY_MAX: Final = 16
FIRST_RETRY_LEVEL: Final = 3

Shown = tuple[bytes, int | None]
"""The value of a visible record, and when it was due if it was held."""


@dataclass(frozen=True, slots=True)
class Intent:
    """What a producer requests for one record: a unique value, and at most one of three times."""

    value: bytes
    delay_ms: int = 0
    level: int = 0
    due_at_ms: int = 0
    user_id: bytes | None = None
    cancels: bytes | None = None
    retry_group: str = ""
    """Not empty: it is to come again in the topic of that group."""
    attempts: int = 0
    """That it had before."""

    def record(self) -> Record:
        """The record as sent; its key is the beginning of the value, which a delivery must keep."""
        return Record(self.value, self.value[:8], self._headers(), timestamp_ms=len(self.value))

    def _headers(self) -> Headers:
        if self.retry_group:
            before = (("x-retry-attempt", b"%d" % self.attempts),) if self.attempts else ()
            wait = delay(self.delay_ms) if self.delay_ms else ()
            return (("x-retry-group", self.retry_group.encode()), *before, *wait)
        if self.cancels is not None:
            return cancel(self.cancels)
        if self.level:
            return by_level(self.level, self.user_id)
        if self.due_at_ms:
            return deliver_at(self.due_at_ms, self.user_id)
        if self.delay_ms or self.user_id is not None:
            return delay(self.delay_ms, self.user_id)
        return ()


@dataclass(frozen=True, slots=True)
class Batch:
    """One Produce request of one batch."""

    topic: str
    partition: int
    intents: tuple[Intent, ...]
    producer: Producer | None


@dataclass(frozen=True, slots=True)
class Timer:
    """A pending record; the order of its fields is the order of delivery."""

    due_ms: int
    arrival: int
    topic: str
    partition: int
    value: bytes
    user_id: bytes | None


@dataclass(slots=True)
class ModelTopic:
    partitions: list[list[Shown]]
    ids: dict[bytes, tuple[str, int, int]] = field(default_factory=dict)
    """State, due time and partition of the last timer of each id."""
    named: dict[bytes, Timer] = field(default_factory=dict)
    """Pending timers with an id."""


@dataclass(slots=True)
class Model:
    """Topics, visible records, pending timers and producers of one broker."""

    level_delays_ms: Sequence[int]
    topics: dict[str, ModelTopic] = field(default_factory=dict)
    pending: set[Timer] = field(default_factory=set)
    answers: dict[tuple[str, int, int, int], int] = field(default_factory=dict)
    """Base offset answered to (topic, partition, producer id, first sequence)."""
    arrivals: int = 0

    def copy(self) -> "Model":
        """Return an independent copy."""
        topics = {
            name: ModelTopic(
                [list(p) for p in topic.partitions], dict(topic.ids), dict(topic.named)
            )
            for name, topic in self.topics.items()
        }
        return Model(
            self.level_delays_ms, topics, set(self.pending), dict(self.answers), self.arrivals
        )

    def create_topic(self, name: str, partition_count: int) -> int:
        """The error code."""
        if name in self.topics:
            return TOPIC_EXISTS
        self.topics[name] = ModelTopic([[] for _ in range(partition_count)])
        return 0

    def delete_topic(self, name: str) -> int:
        """The error code."""
        if self.topics.pop(name, None) is None:
            return UNKNOWN_TOPIC
        self.pending = {timer for timer in self.pending if timer.topic != name}
        self.answers = {key: value for key, value in self.answers.items() if key[0] != name}
        return 0

    def produce(self, batch: Batch, now_ms: int) -> tuple[int, int]:
        """Error code and base offset."""
        topic = self.topics.get(batch.topic)
        if topic is None:
            return UNKNOWN_TOPIC, -1
        if batch.producer is None:
            return 0, self._accept(topic, batch, now_ms)
        sent = (
            batch.topic, batch.partition, batch.producer.producer_id, batch.producer.sequence
        )  # fmt: skip
        if sent not in self.answers:
            self.answers[sent] = self._accept(topic, batch, now_ms)
        return 0, self.answers[sent]

    def _accept(self, topic: ModelTopic, batch: Batch, now_ms: int) -> int:
        visible = topic.partitions[batch.partition]
        base_offset = len(visible)
        for intent in batch.intents:
            self._accept_one(topic, batch, intent, now_ms)
        return base_offset if len(visible) == base_offset + len(batch.intents) else -1

    def _accept_one(self, topic: ModelTopic, batch: Batch, intent: Intent, now_ms: int) -> None:
        if intent.cancels is not None:
            self._cancel(topic, intent.cancels)
            return
        if intent.retry_group:
            self._accept_retry(batch, intent, now_ms)
            return
        due_ms = intent.due_at_ms or now_ms + intent.delay_ms
        if intent.level:
            due_ms = now_ms + self.level_delays_ms[intent.level - 1]
        if intent.user_id is not None:
            self.pending.discard(topic.named.pop(intent.user_id, None))
        has_request = bool(intent.due_at_ms or intent.delay_ms or intent.level or intent.user_id)
        if due_ms <= now_ms:
            shown = due_ms if has_request else None
            topic.partitions[batch.partition].append((intent.value, shown))
            if intent.user_id is not None:
                topic.ids[intent.user_id] = ("delivered", due_ms, batch.partition)
            return
        self.arrivals += 1
        timer = Timer(
            due_ms, self.arrivals, batch.topic, batch.partition, intent.value, intent.user_id
        )
        self.pending.add(timer)
        if intent.user_id is not None:
            topic.named[intent.user_id] = timer
            topic.ids[intent.user_id] = ("pending", due_ms, batch.partition)

    def _accept_retry(self, batch: Batch, intent: Intent, now_ms: int) -> None:
        is_dead = intent.attempts >= RETRY_MAX
        name = f"{intent.retry_group}.{'dlq' if is_dead else 'retry'}"
        due_ms = now_ms
        if not is_dead:
            level = FIRST_RETRY_LEVEL + intent.attempts
            due_ms += intent.delay_ms or self.level_delays_ms[level - 1]
        partition = batch.partition % len(self.topics[name].partitions)
        self.arrivals += 1
        self.pending.add(Timer(due_ms, self.arrivals, name, partition, intent.value, None))

    def cancel(self, topic_name: str, user_id: bytes) -> tuple[str, int | None, int | None]:
        """Cancel by name; return state, due time and partition of that id afterwards."""
        topic = self.topics[topic_name]
        self._cancel(topic, user_id)
        return topic.ids.get(user_id, ("unknown", None, None))

    def _cancel(self, topic: ModelTopic, user_id: bytes) -> None:
        old = topic.named.pop(user_id, None)
        if old is not None:
            self.pending.discard(old)
            topic.ids[user_id] = ("cancelled", old.due_ms, old.partition)

    def next_due_ms(self) -> int | None:
        return min((timer.due_ms for timer in self.pending), default=None)

    def due_groups(self, now_ms: int, limit: int) -> list[list[Timer]]:
        """The next chunk of what is due: one list for each deliver frame."""
        due = sorted(
            (timer for timer in self.pending if timer.due_ms <= now_ms),
            key=lambda timer: (timer.due_ms, timer.arrival),
        )
        groups: dict[tuple[str, int], list[Timer]] = {}
        for timer in due[:limit]:
            groups.setdefault((timer.topic, timer.partition), []).append(timer)
        return list(groups.values())

    def deliver(self, group: Sequence[Timer]) -> None:
        """Make the timers of one deliver frame visible."""
        for timer in group:
            topic = self.topics[timer.topic]
            topic.partitions[timer.partition].append((timer.value, timer.due_ms))
            self.pending.remove(timer)
            if timer.user_id is not None:
                del topic.named[timer.user_id]
                topic.ids[timer.user_id] = ("delivered", timer.due_ms, timer.partition)

    def deliver_all(self, now_ms: int) -> int:
        """Deliver all that is due; return how many."""
        count = 0
        for group in self.due_groups(now_ms, len(self.pending)):
            count += len(group)
            self.deliver(group)
        return count

    # Comparison

    def visible(self) -> dict[tuple[str, int], list[Shown]]:
        """Every record of every partition, by topic and partition."""
        return {
            (name, index): records
            for name, topic in self.topics.items()
            for index, records in enumerate(topic.partitions)
        }

    def timer_states(self) -> dict[tuple[str, bytes], tuple[str, int, int]]:
        """State, due time and partition by topic and id."""
        return {
            (name, user_id): state
            for name, topic in self.topics.items()
            for user_id, state in topic.ids.items()
        }


def shown(record: Fetched) -> Shown:
    """What the model knows of a record; the other fields are checked here."""
    assert record.key == record.value[:8]
    assert record.timestamp_ms == len(record.value)
    due = record.header("x-due-at")
    return record.value, None if due is None else int(due)


def visible_in(
    harness: BrokerHarness, known: Callable[[bytes], bool] = lambda _: True
) -> dict[tuple[str, int], list[Shown]]:
    """The result of `Model.visible` for a real broker; every record is checked as well."""
    found = {}
    for topic in harness.broker.topics.all():
        for partition in topic.partitions:
            records = harness.fetch(topic.name, partition.index)
            assert [record.offset for record in records] == list(range(len(records)))
            for record in records:
                assert known(record.value), f"{record.value[:20]!r} was never sent"
            found[topic.name, partition.index] = [shown(record) for record in records]
    return found
