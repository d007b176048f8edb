"""What the kill -9 test does to the broker: producers that send everything, readers that note it.

Every thread appends to one list of events, which the checker judges afterwards.
"""

import http.client
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.oracles.history_events import (
    Acknowledged,
    Attempted,
    Consumed,
    Event,
    Headers,
    MessageId,
    Place,
    Refused,
    Unknown,
    encode_value,
)

# In PLAIN everything is immediate, so the offsets that the clients report are true.
PLAIN: Final = "plain"
MIXED: Final = "mixed"
GROUP: Final = b"again"
RETRY: Final = "again.retry"
DEAD: Final = "again.dlq"
RECURS: Final = "recurs"
OUTCOMES: Final = "outcomes"
PARTITION_COUNTS: Final = {PLAIN: 2, MIXED: 4, RETRY: 4, DEAD: 4, RECURS: 1, OUTCOMES: 2}

CLIENT: Final[dict[str, Any]] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    # Its search for other brokers would keep it from this one for seconds after each restart.
    "metadata.recovery.strategy": "none",
    "topic.metadata.refresh.fast.interval.ms": 50,
    "socket.timeout.ms": 5_000,
    "batch.size": 200_000,  # what queues up during a restart must stay below the broker's limit
    "log_level": 0,  # that the broker is away is what this test is about
}
IDEMPOTENT: Final[dict[str, Any]] = {
    "enable.idempotence": True,
    "acks": "all",
    "compression.type": "lz4",
    "linger.ms": 3,
    "retry.backoff.ms": 20,
    "message.timeout.ms": 120_000,
}
# Without retries: a message is sent at most once, so an error without an answer means "unknown"
# and never "perhaps twice".
FORGETFUL: Final[dict[str, Any]] = {
    "acks": "1",
    "message.send.max.retries": 0,
    "linger.ms": 2,
    "message.timeout.ms": 5_000,
}
ONE_BY_ONE: Final[dict[str, Any]] = {**FORGETFUL, "batch.num.messages": 1, "linger.ms": 0}

# With these the broker says that it has stored nothing of the batch.
_DEFINITE: Final = frozenset({KafkaError.INVALID_RECORD, KafkaError._INVALID_DIFFERENT_RECORD})

# How the client raises a fatal error, such as a sequence number that the broker has forgotten; the
# second if other callbacks were waiting to be called.
_FATAL: Final = (KafkaException, SystemError)

_MALFORMED: Final[tuple[Headers, ...]] = (
    (("x-delay", b"soon"),),
    (("x-delay", b"+5"),),
    (("x-deliver-at", b"1767225600"),),
    (("x-delay", b"50"), ("x-delay-level", b"1")),
    (("x-deliver-cancel", b"a"), ("x-deliver-id", b"a")),
)
_LEVEL_1_MS: Final = 1_000
RETRY_MAX: Final = 16
_ADMIN_SHARE: Final = 0.2
"""Of the cancels of acknowledged timers, those that go through the admin API."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class AdminCancels(threading.Thread):
    """Cancels timers by the admin API, one at a time, until asked to stop.

    Args:
        address: HOST:PORT of the admin server.
        events: the history.
    """

    def __init__(self, address: str, events: list[Event]) -> None:
        super().__init__(name="admin-cancels", daemon=True)
        self._address = address
        self._events = events
        self._timers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._counter = 0

    def cancel(self, timer_id: bytes) -> None:
        """Cancel a timer of MIXED, soon."""
        self._timers.put(timer_id)

    def run(self) -> None:
        while (timer_id := self._timers.get()) is not None:
            message = MessageId("admin", self._counter)
            self._counter += 1
            self._events.append(Attempted(message, MIXED, 0, now_ms(), b"", cancels=timer_id))
            self._events.append(self._ask(message, timer_id))

    def _ask(self, message: MessageId, timer_id: bytes) -> Acknowledged | Refused | Unknown:
        connection = http.client.HTTPConnection(self._address, timeout=10)
        try:
            connection.request("DELETE", f"/api/v1/topics/{MIXED}/timers/{timer_id.decode()}")
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            return Unknown(message, now_ms(), repr(error))
        finally:
            connection.close()
        if status == 200:
            return Acknowledged(message, now_ms())
        if status in (404, 409):  # there is nothing to cancel any more
            return Refused(message, now_ms())
        return Unknown(message, now_ms(), f"status {status}")

    def finish(self) -> None:
        """Do what is still to be done, and stop."""
        self._timers.put(None)
        self.join()


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """One producer: its name in the history, its client's settings, and how much it sends."""

    name: str
    client: Mapping[str, Any]
    messages_per_s: int
    malformed_share: float = 0.0


class Load(threading.Thread):
    """Sends a random mixture until asked to stop; remembers each attempt and its outcome.

    Args:
        address: HOST:PORT of the broker.
        spec: what to send.
        seed: of everything random here.
        events: the history; appended to from this thread and from the client's callbacks.
        cancels: does some of the cancels.
    """

    def __init__(
        self, address: str, spec: LoadSpec, seed: int, events: list[Event], cancels: AdminCancels
    ) -> None:
        super().__init__(name=f"load-{spec.name}", daemon=True)
        self.fatal: list[str] = []
        self._spec = spec
        self._random = random.Random(seed)
        self._events = events
        self._cancels = cancels
        self._stopping = threading.Event()
        self._counter = 0
        self._cancellable: set[MessageId] = set()  # once acknowledged
        self._pending: deque[Attempted] = deque(maxlen=50)  # acknowledged timers to cancel
        self._producer = Producer({"bootstrap.servers": address, **CLIENT, **spec.client})

    def run(self) -> None:
        burst = max(1, self._spec.messages_per_s // 200)
        try:
            while not self._stopping.wait(burst / self._spec.messages_per_s):
                for _ in range(burst):
                    self._send_any()
                self._producer.poll(0)
        except _FATAL as error:
            self.fatal.append(f"{self._spec.name}: {error!r}")

    def finish(self, limit_s: float) -> int:
        """Stop sending, wait for all outcomes; return how many messages have none."""
        self._stopping.set()
        self.join()
        try:
            return self._producer.flush(limit_s)
        except _FATAL as error:
            self.fatal.append(f"{self._spec.name}: {error!r}")
            return len(self._producer)

    def _send_any(self) -> None:
        draw = self._random.random()
        if self._random.random() < self._spec.malformed_share:
            self._send(self._attempt(MIXED), self._random.choice(_MALFORMED))
        elif draw < 0.25:
            self._send(self._attempt(PLAIN))
        elif draw < 0.45:
            self._send(self._attempt(MIXED))
        elif draw < 0.50:
            self._send_again()
        elif draw < 0.75:
            self._send_delayed(self._attempt(MIXED))
        elif draw < 0.80:
            attempt = replace(self._attempt(MIXED), delay_ms=_LEVEL_1_MS)
            self._send(attempt, (("x-delay-level", b"1"),))
        elif draw < 0.88:
            name = b"%s-%d" % (self._spec.name.encode(), self._counter)
            timer = replace(self._attempt(MIXED), timer_id=name)
            if self._random.random() < 0.1:  # cancel it before it is acknowledged
                self._send_delayed(timer)
                self._cancel(timer)
            else:
                self._cancellable.add(timer.message)
                self._send_delayed(timer)
        elif self._pending:
            timer = self._pending.popleft()
            if timer.timer_id is not None and self._random.random() < _ADMIN_SHARE:
                self._cancels.cancel(timer.timer_id)
            else:
                self._cancel(timer)

    def _send_again(self) -> None:
        """Send what a consumer wants again: it comes in another topic."""
        before = self._random.choice((0, 3, RETRY_MAX))
        attempt = replace(self._attempt(MIXED), topic=DEAD, retry_attempt=before)
        wish: Headers = (("x-retry-group", GROUP), ("x-retry-attempt", b"%d" % before))
        if before < RETRY_MAX:
            delay_ms = self._random.randint(50, 3_000)
            wish += (("x-delay", b"%d" % delay_ms),)
            attempt = replace(attempt, topic=RETRY, delay_ms=delay_ms, retry_attempt=before + 1)
        self._send(attempt, wish, to=MIXED)

    def _send_delayed(self, attempt: Attempted) -> None:
        delay_ms = self._random.randint(50, 3_000)
        kind = self._random.random()
        if kind < 0.25:
            instant_ms = now_ms() + (delay_ms if kind < 0.2 else -delay_ms)
            header = ("x-deliver-at", b"%d" % instant_ms)
            self._send(replace(attempt, deliver_at_ms=instant_ms), (header,))
        else:
            header = ("x-delay", b"%d" % delay_ms)
            self._send(replace(attempt, delay_ms=delay_ms), (header,))

    def _cancel(self, timer: Attempted) -> None:
        """Cancel a timer or put another in its place; its id is not used again afterwards."""
        if self._random.random() < 0.5:
            asks_reply = self._random.random() < 0.5
            cancel = replace(self._attempt(MIXED), cancels=timer.timer_id, asks_reply=asks_reply)
            self._send(cancel, (("x-deliver-reply", OUTCOMES.encode()),) if asks_reply else ())
        elif self._random.random() < 0.8:
            self._send_delayed(replace(self._attempt(MIXED), timer_id=timer.timer_id))
        else:  # a replacement without a delay is delivered now
            self._send(replace(self._attempt(MIXED), timer_id=timer.timer_id))

    def _attempt(self, topic: str) -> Attempted:
        message = MessageId(self._spec.name, self._counter)
        self._counter += 1
        size = self._random.choice((0, 20, 100, 300, 300, 4_000))
        own: Headers = (("trace", b"%d" % message.counter), ("dup", b"1"), ("dup", b""))
        return Attempted(
            message,
            topic,
            self._random.randrange(PARTITION_COUNTS[topic]),
            now_ms(),
            encode_value(message, self._random.randbytes(size)),
            key=self._random.choice((None, b"", b"key-%d" % self._random.randrange(9))),
            headers=own[: self._random.randrange(len(own) + 1)],
        )

    def _send(self, attempt: Attempted, request: Headers = (), to: str = "") -> None:
        if attempt.timer_id is not None:
            request += (("x-deliver-id", attempt.timer_id),)
        if attempt.cancels is not None:
            request += (("x-deliver-cancel", attempt.cancels),)
        self._events.append(attempt)
        # The request headers go between the application's own, wherever they fall.
        cut = self._random.randrange(len(attempt.headers) + 1)
        headers = attempt.headers[:cut] + request + attempt.headers[cut:]
        self._producer.produce(
            to or attempt.topic,
            attempt.value,
            attempt.key,
            attempt.partition,
            on_delivery=lambda error, message: self._on_outcome(attempt, error, message),
            headers=list(headers),
        )

    def _on_outcome(self, attempt: Attempted, error: KafkaError | None, message: Message) -> None:
        if error is None:
            offset = message.offset() if attempt.topic == PLAIN else None
            self._events.append(Acknowledged(attempt.message, now_ms(), offset))
            if attempt.message in self._cancellable:
                self._cancellable.remove(attempt.message)
                self._pending.append(attempt)
        elif error.code() in _DEFINITE:
            self._events.append(Refused(attempt.message, now_ms()))
        else:
            self._events.append(Unknown(attempt.message, now_ms(), str(error)))


class Reader(threading.Thread):
    """Reads all partitions of both topics from offset 0, through every restart, until stopped."""

    def __init__(self, address: str, name: str, events: list[Event]) -> None:
        super().__init__(name=f"reader-{name}", daemon=True)
        self.fatal: list[str] = []
        self._reader_name = name
        self._events = events
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": name,  # required by the client; no group is ever joined
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 20,
                **CLIENT,
            }
        )
        self._partitions = [
            TopicPartition(topic, partition, 0)
            for topic, count in PARTITION_COUNTS.items()
            for partition in range(count)
        ]
        self._consumer.assign(self._partitions)

    def run(self) -> None:
        while not self._stopping.is_set():
            self._read_once()

    def finish(self) -> None:
        self._stopping.set()
        if self.is_alive():
            self.join()
        self._consumer.close()

    def read_to_end(self, limit_s: float) -> None:
        """Read every partition to where it ends now; call it instead of starting the thread.

        Raises:
            TimeoutError: that took longer than `limit_s`.
        """
        ends = {
            (one.topic, one.partition): self._consumer.get_watermark_offsets(one, timeout=60)[1]
            for one in self._partitions
        }
        missing = sum(ends.values())
        deadline_s = time.monotonic() + limit_s
        while missing > 0:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{missing} of {sum(ends.values())} records not read: {ends}")
            missing -= self._read_once()

    def _read_once(self) -> int:
        first = self._consumer.poll(0.05)
        # At once: waiting for more would make an early record look punctual.
        if first is None:
            return 0
        messages = [first, *self._consumer.consume(1_000, timeout=0)]
        at_ms = now_ms()
        count = 0
        for message in messages:
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._AUTO_OFFSET_RESET:
                    self.fatal.append(f"{self._reader_name}: {error}")
                continue
            count += 1
            self._events.append(_consumed(self._reader_name, message, at_ms))
        return count


def _consumed(reader: str, message: Message, at_ms: int) -> Consumed:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    pairs = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    # A null value is none of ours; its text can never be equal to what was sent.
    headers = tuple((name, b"null!" if value is None else value) for name, value in pairs)
    place = Place(topic, partition, offset)
    return Consumed(reader, place, at_ms, message.key(), message.value() or b"", headers)


def create_topics(address: str) -> None:
    """Create both topics, so that no test time goes into their automatic creation.

    Raises:
        KafkaException: the broker refused.
    """
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    topics = [NewTopic(name, count, 1) for name, count in PARTITION_COUNTS.items()]
    for future in admin.create_topics(topics).values():
        future.result(timeout=60)
