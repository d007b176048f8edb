"""A model of a broker that keeps every promise: it writes clean histories."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.oracles.history_events import (
    Acknowledged,
    Attempted,
    Consumed,
    Event,
    Headers,
    MessageId,
    Place,
    Refused,
    Restarted,
    Unknown,
    encode_value,
)

START_MS = 1_800_000_000_000
TOPIC = "t"


@dataclass(frozen=True)
class Send:
    """One message for the model broker below."""

    kind: str  # immediate, delayed, instant, timer, cancelled, replaced, refused, lost answer
    partition: int = 0
    delay_ms: int = 100
    pause_ms: int = 3  # until the next one is sent
    producer: str = "p"


@dataclass
class ModelBroker:
    """A broker that keeps every promise; it writes the history that clients of it would write."""

    events: list[Event] = field(default_factory=list)
    now_ms: int = START_MS
    timers: list[tuple[int, int, Attempted]] = field(default_factory=list)  # due, accepted
    log: dict[int, list[tuple[int, Attempted, Headers]]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)

    def send(self, what: Send) -> None:
        if what.kind == "restart":
            self.events.append(Restarted(self.now_ms, self.now_ms + what.pause_ms))
        elif what.kind in ("timer", "cancelled", "replaced"):
            name = b"timer-%d" % len(self.events)
            self._accept(self._attempt(what, delay_ms=what.delay_ms, timer_id=name))
            if what.kind == "cancelled":
                self._accept(self._attempt(what, cancels=name))
            if what.kind == "replaced":
                self._accept(self._attempt(what, delay_ms=what.delay_ms // 2, timer_id=name))
        elif what.kind == "immediate":
            self._accept(self._attempt(what))
        elif what.kind == "instant":
            self._accept(self._attempt(what, deliver_at_ms=self.now_ms + what.delay_ms))
        else:
            self._accept(self._attempt(what, delay_ms=what.delay_ms), what.kind)
        self.now_ms += what.pause_ms
        self._deliver()

    def finish(self) -> list[Event]:
        """Deliver what is pending, let two readers read everything, return the history."""
        while self.timers:
            self.now_ms = max(self.now_ms, min(self.timers)[0])
            self._deliver()
        for reader in ("live", "final"):
            for partition, records in self.log.items():
                for offset, (at_ms, attempt, headers) in enumerate(records):
                    place = Place(TOPIC, partition, offset)
                    read_ms = at_ms + 1 if reader == "live" else self.now_ms + 50
                    self.events.append(
                        Consumed(reader, place, read_ms, attempt.key, attempt.value, headers)
                    )
        return self.events

    def _attempt(
        self,
        what: Send,
        *,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        timer_id: bytes | None = None,
        cancels: bytes | None = None,
    ) -> Attempted:
        counter = self.counters[what.producer] = self.counters.get(what.producer, -1) + 1
        message = MessageId(what.producer, counter)
        attempt = Attempted(
            message,
            TOPIC,
            what.partition,
            self.now_ms,
            encode_value(message, b"padding"),
            key=b"key",
            headers=(("own", b"1"), ("own", b"2")),
            delay_ms=delay_ms,
            deliver_at_ms=deliver_at_ms,
            timer_id=timer_id,
            cancels=cancels,
        )
        self.events.append(attempt)
        return attempt

    def _accept(self, attempt: Attempted, kind: str = "") -> None:
        self.now_ms += 1
        accepted_ms = self.now_ms
        self.now_ms += 1
        if kind == "refused":
            self.events.append(Refused(attempt.message, self.now_ms))
            return
        if kind == "lost answer":
            self.events.append(Unknown(attempt.message, self.now_ms))
        else:
            self.events.append(Acknowledged(attempt.message, self.now_ms))
        name = attempt.cancels or attempt.timer_id
        if name is not None:
            self.timers = [timer for timer in self.timers if timer[2].timer_id != name]
        if attempt.cancels is None:
            due_ms = attempt.deliver_at_ms or accepted_ms + (attempt.delay_ms or 0)
            self.timers.append((due_ms, accepted_ms, attempt))
        self._deliver()
        self.now_ms += 1  # what comes next is certainly sent after the answer

    def _deliver(self) -> None:
        self.timers.sort(key=lambda timer: timer[:2])
        while self.timers and self.timers[0][0] <= self.now_ms:
            due_ms, accepted_ms, attempt = self.timers.pop(0)
            headers = delivered_headers(attempt, accepted_ms, due_ms)
            self.log.setdefault(attempt.partition, []).append((self.now_ms, attempt, headers))


def delivered_headers(attempt: Attempted, accepted_ms: int, due_ms: int) -> Headers:
    headers = attempt.headers
    if attempt.asks_for_delivery_headers:
        headers += (("x-accepted-at", b"%d" % accepted_ms), ("x-due-at", b"%d" % due_ms))
    if attempt.timer_id is not None:
        headers += (("x-due-id", attempt.timer_id),)
    return headers


def history_of(sends: Sequence[Send]) -> list[Event]:
    broker = ModelBroker()
    for send in sends:
        broker.send(send)
    return broker.finish()


CLEAN_RUN = [
    Send("immediate"),
    Send("delayed", delay_ms=60),
    Send("delayed", delay_ms=40, producer="q"),
    Send("instant", delay_ms=80),
    Send("timer", delay_ms=50),
    Send("cancelled", delay_ms=70),
    Send("replaced", delay_ms=90),
    Send("restart", pause_ms=100),
    Send("immediate"),
    Send("delayed", partition=1, delay_ms=50),
    Send("refused"),
    Send("lost answer", delay_ms=20),
    Send("immediate", producer="q"),
    Send("immediate"),
    Send("delayed", partition=1, delay_ms=80),
]
