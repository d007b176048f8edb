"""What a broker must do, in plain Python: the oracle for tests that crash and restart a real one.

It knows batches, delays, recurring records, ids, replies and topics, but no files, frames or bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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

REPLY_TOPIC: Final = "r"
"""It has one partition."""

LATE_MS_MAX: Final = 60_000
"""A recurring record that is later has missed its instant."""

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
    every_s: int = 0
    """Not 0: it recurs at each multiple of so many seconds, a divisor of 60."""
    missed: str = "once"
    has_reply: bool = False
    """It asks what becomes of its id."""

    def record(self) -> Record:
        """The record as sent; its key is the beginning of the value, which a delivery must keep."""
        return Record(self.value, self.value[:8], self._headers(), timestamp_ms=len(self.value))

    def _headers(self) -> Headers:
        reply = (("x-deliver-reply", REPLY_TOPIC.encode()),) if self.has_reply else ()
        return (*self._requests(), *reply)

    def _requests(self) -> Headers:
        if self.every_s:
            cron = b"*/%d * * * * *" % self.every_s
            missed = ("x-cron-missed", self.missed.encode())
            return (("x-cron", cron), missed, ("x-deliver-id", self.user_id or b""))
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
    every_ms: int = 0
    missed: str = ""

    def next_after(self, ms: int) -> int:
        """The instant of a recurring record that follows another instant."""
        return ms // self.every_ms * self.every_ms + self.every_ms

    def is_passed_over(self, now_ms: int) -> bool:
        """Whether it recurs, and this occurrence is not delivered."""
        if self.missed != "none":
            return False
        return self.next_after(self.due_ms) <= now_ms or now_ms - self.due_ms > LATE_MS_MAX

    def following_ms(self, now_ms: int) -> int:
        """When it is due again after it was delivered or passed over."""
        return self.next_after(self.due_ms if self.missed == "all" else max(self.due_ms, now_ms))


@dataclass(frozen=True, slots=True)
class DueFrame:
    """The timers of one deliver frame, or of a cancel frame that only sets them anew."""

    timers: tuple[Timer, ...]
    now_ms: int
    is_shown: bool


@dataclass(slots=True)
class ModelTopic:
    partitions: list[list[Shown]]
    ids: dict[bytes, tuple[str, int, int]] = field(default_factory=dict)
    """State, due time and partition of the last timer of each id."""
    named: dict[bytes, Timer] = field(default_factory=dict)
    """Pending timers with an id."""
    offsets: dict[bytes, int] = field(default_factory=dict)
    """Where the last delivered record of each id is in its partition."""


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
                [list(p) for p in topic.partitions],
                dict(topic.ids),
                dict(topic.named),
                dict(topic.offsets),
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
        replies = []
        for intent in batch.intents:
            if intent.has_reply:
                replies += self._replies(topic, batch.topic, intent)
            self._accept_one(topic, batch, intent, now_ms)
        for value in replies:
            self._add(Timer(now_ms, 0, REPLY_TOPIC, 0, value, None))
        return base_offset if len(visible) == base_offset + len(batch.intents) else -1

    def _accept_one(self, topic: ModelTopic, batch: Batch, intent: Intent, now_ms: int) -> None:
        if intent.cancels is not None:
            self._cancel(topic, intent.cancels)
            return
        if intent.retry_group:
            self._accept_retry(batch, intent, now_ms)
            return
        every_ms = intent.every_s * 1_000
        due_ms = intent.due_at_ms or now_ms + intent.delay_ms
        if every_ms:
            due_ms = now_ms // every_ms * every_ms + every_ms
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
                topic.offsets[intent.user_id] = len(topic.partitions[batch.partition]) - 1
            return
        self._add(
            Timer(
                due_ms, 0, batch.topic, batch.partition, intent.value, intent.user_id, every_ms,
                intent.missed if every_ms else "",
            )
        )  # fmt: skip

    def _add(self, timer: Timer) -> None:
        """Make a timer pending; it arrives last."""
        self.arrivals += 1
        timer = replace(timer, arrival=self.arrivals)
        self.pending.add(timer)
        if timer.user_id is not None:
            topic = self.topics[timer.topic]
            topic.named[timer.user_id] = timer
            topic.ids[timer.user_id] = ("pending", timer.due_ms, timer.partition)

    def _replies(self, topic: ModelTopic, name: str, intent: Intent) -> list[bytes]:
        """The value of the reply to a record that is about to take effect, if it gets one."""
        user_id = intent.user_id if intent.cancels is None else intent.cancels
        state, _, partition = topic.ids.get(user_id or b"", ("unknown", 0, 0))
        place = ""
        if intent.cancels is None:
            if state != "pending":
                return []
            outcome = "replaced"
        elif state == "delivered":
            outcome = "too-late"
            place = f',"partition":{partition},"offset":{topic.offsets[intent.cancels]}'
        else:
            outcome = "unknown" if state == "unknown" else "cancelled"
        return [f'{{"outcome":"{outcome}","topic":"{name}"{place}}}'.encode()]

    def _accept_retry(self, batch: Batch, intent: Intent, now_ms: int) -> None:
        is_dead = intent.attempts >= RETRY_MAX
        name = f"{intent.retry_group}.{'dlq' if is_dead else 'retry'}"
        due_ms = now_ms
        if not is_dead:
            level = FIRST_RETRY_LEVEL + intent.attempts
            due_ms += intent.delay_ms or self.level_delays_ms[level - 1]
        partition = batch.partition % len(self.topics[name].partitions)
        self._add(Timer(due_ms, 0, name, partition, intent.value, None))

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

    def due_frames(self, now_ms: int, limit: int) -> list[DueFrame]:
        """The frames of the next chunk of what is due.

        A partition ends early where a recurring record comes again before the next of its timers.
        """
        due = sorted(
            (timer for timer in self.pending if timer.due_ms <= now_ms),
            key=lambda timer: (timer.due_ms, timer.arrival),
        )
        groups: dict[tuple[str, int], list[Timer]] = {}
        for timer in due[:limit]:
            groups.setdefault((timer.topic, timer.partition), []).append(timer)
        frames = []
        for group in groups.values():
            shown, passed_over = [], []
            next_due_ms = now_ms
            for timer in group:
                if timer.due_ms > next_due_ms:
                    break
                if timer.is_passed_over(now_ms):
                    passed_over.append(timer)
                    continue
                shown.append(timer)
                if timer.every_ms:
                    next_due_ms = min(next_due_ms, timer.following_ms(now_ms))
            if shown:
                frames.append(DueFrame(tuple(shown), now_ms, True))
            if passed_over:
                frames.append(DueFrame(tuple(passed_over), now_ms, False))
        return frames

    def apply(self, frame: DueFrame) -> None:
        """Make the timers of one frame visible, and set the recurring ones anew."""
        for timer in frame.timers:
            topic = self.topics[timer.topic]
            self.pending.remove(timer)
            if frame.is_shown:
                topic.partitions[timer.partition].append((timer.value, timer.due_ms))
            if timer.user_id is not None:
                del topic.named[timer.user_id]
                topic.ids[timer.user_id] = ("delivered", timer.due_ms, timer.partition)
                topic.offsets[timer.user_id] = len(topic.partitions[timer.partition]) - 1
            if timer.every_ms:
                self._add(replace(timer, due_ms=timer.following_ms(frame.now_ms)))

    def deliver_all(self, now_ms: int) -> int:
        """Deliver all that is due; return how many."""
        count = 0
        while frames := self.due_frames(now_ms, len(self.pending)):
            for frame in frames:
                count += len(frame.timers) * frame.is_shown
                self.apply(frame)
        return count

    def recurring(self) -> set[tuple[str, bytes]]:
        """Topics and ids of the recurring records that are pending."""
        return {(timer.topic, timer.user_id or b"") for timer in self.pending if timer.every_ms}

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
    if not record.value.startswith(b'{"outcome"'):
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
