"""The contract of the delay headers (docs/DELAY.md) in plain Python, for one topic.

It reads header values by a table of known meanings, so it shares nothing with the parser under
test.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from appliance.units import NS_PER_MS
from tests.support.values.raw_batch import CREATED_MS, Raw

DELAY: Final = b"x-delay"
DELIVER_AT: Final = b"x-deliver-at"
LEVEL: Final = b"x-delay-level"
ID: Final = b"x-deliver-id"
CANCEL: Final = b"x-deliver-cancel"
REQUESTS: Final = (DELAY, DELIVER_AT, LEVEL, ID, CANCEL)
STAMPS: Final = (b"x-accepted-at", b"x-due-at", b"x-due-id")
RETRY: Final = b"x-retry-group"
RETRY_NOTES: Final = (b"x-retry-attempt", b"x-origin", b"x-retry-reason")
REPLY: Final = b"x-deliver-reply"
CRON: Final = (
    b"x-cron",
    b"x-cron-zone",
    b"x-cron-missed",
)
NEAR_MISSES: Final = {
    b"x-delay-ms": DELAY,
    b"x-delay-s": DELAY,
    b"x-delay-sec": DELAY,
    b"x-delay-seconds": DELAY,
    b"x-delay-millis": DELAY,
    b"x_delay": DELAY,
    b"x-deliver-after": DELAY,
    b"x-delay-until": DELIVER_AT,
    b"x-delayed-until": DELIVER_AT,
    b"x-deliver-on": DELIVER_AT,
    b"x-deliver-time": DELIVER_AT,
    b"x-delivery-at": DELIVER_AT,
    b"x-delivery-time": DELIVER_AT,
    b"x-delay-at": DELIVER_AT,
    b"x-delay-id": ID,
    b"x-delay-cancel": CANCEL,
    b"x-delivery-cancel": CANCEL,
}
"""Each with the header that was meant."""

NOW: Final = -1
"""The meaning of an `x-delay` that is negative: no delay, by a request."""

NO_DELAY: Final = -2
"""The meaning of one that is null: no request."""

Meanings = Mapping[tuple[bytes, bytes | None], int | None]
"""Meaning of a time header and its value: delay ms or NOW or NO_DELAY, epoch ms, or level.

None if it is malformed.
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """A record as a consumer must see it; a null header value appears as empty."""

    value: bytes
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """What the headers of one record request."""

    due_ms: int | None
    user_id: bytes | None
    cancels: bytes | None
    asks_now: bool = False


@dataclass(slots=True)
class Timer:
    """A pending record."""

    due_ms: int
    partition: int
    shown: Shown
    user_id: bytes | None


@dataclass(slots=True)
class DelayModel:
    """A topic.

    Attributes:
        meanings, level_delays_ms, delay_max_ms: how headers are read.
        uses_due_time, uses_append_time: the topic's timestamps.
        passes_invalid: what would be refused is visible at once.
        requires_delay: what asks for nothing is refused.
        default_ms: the delay of what asks for nothing; None for none.
        visible: records by partition.
        pending: in order of arrival.
        states: (state, due, partition) of each id.
    """

    meanings: Meanings
    level_delays_ms: Sequence[int]
    delay_max_ms: int
    uses_due_time: bool = False
    uses_append_time: bool = False
    passes_invalid: bool = False
    requires_delay: bool = False
    default_ms: int | None = None
    visible: list[list[Shown]] = field(default_factory=lambda: [[], []])
    pending: list[Timer] = field(default_factory=list)
    states: dict[bytes, tuple[str, int, int]] = field(default_factory=dict)

    def produce(self, partition: int, batch: Sequence[Raw], now_ns: int) -> tuple[int | None, int]:
        """Return the index of the first refused record or None, and the base offset."""
        now_ms, base_ms = now_ns // NS_PER_MS, -(-now_ns // NS_PER_MS)
        asks = []
        for index, record in enumerate(batch):
            ask = self._read(record, now_ms, base_ms)
            if ask is None and not self.passes_invalid:
                return index, -1
            if ask is not None and not (ask.cancels or ask.asks_now) and ask.due_ms is None:
                if self.default_ms is not None:
                    ask = Ask(base_ms + self.default_ms, ask.user_id, None)
                elif self.requires_delay:
                    return index, -1
            asks.append(ask or Ask(None, None, None))
        base_offset = len(self.visible[partition])
        for record, ask in zip(batch, asks, strict=True):
            self._accept(partition, record, ask, now_ms)
        is_whole = len(self.visible[partition]) == base_offset + len(batch)
        return None, base_offset if is_whole else -1

    def _read(self, record: Raw, now_ms: int, base_ms: int) -> Ask | None:
        """Parse the headers; None if the record is refused."""
        last = {name.lower(): value for name, value in record.headers}
        if not last.keys().isdisjoint((*CRON, *NEAR_MISSES)):
            return None
        dues, delays = [], []
        asks_now = False
        for name in (DELAY, DELIVER_AT, LEVEL):
            if name not in last:
                continue
            meaning = self.meanings[name, last[name]]
            if meaning is None:
                return None
            asks_now |= (name, meaning) == (DELAY, NOW)
            if (name, meaning) in ((LEVEL, 0), (DELAY, NOW), (DELAY, NO_DELAY)):
                continue
            if name == LEVEL:
                meaning = self.level_delays_ms[min(meaning, len(self.level_delays_ms)) - 1]
            if name == DELIVER_AT:
                dues.append(meaning)
                delays.append(meaning - now_ms)
            else:
                dues.append(base_ms + meaning if meaning else now_ms)
                delays.append(meaning)
        if len(dues) > 1 or any(delay > self.delay_max_ms for delay in delays):
            return None
        for name in (ID, CANCEL):
            if name in last and not 1 <= len(last[name] or b"") <= 255:
                return None
        if CANCEL in last and (dues or ID in last):
            return None
        return Ask(dues[0] if dues else None, last.get(ID), last.get(CANCEL), asks_now)

    def _accept(self, partition: int, record: Raw, ask: Ask, now_ms: int) -> None:
        if ask.cancels is not None:
            old = self._cancel(ask.cancels)
            if old is not None:
                self.states[ask.cancels] = ("cancelled", old.due_ms, old.partition)
            return
        if ask.due_ms is None and ask.user_id is None:
            shown = self._show(record, record.headers, now_ms if self.uses_append_time else None)
            self.visible[partition].append(shown)
            return
        due_ms = now_ms if ask.due_ms is None else ask.due_ms
        if ask.user_id is not None:
            self._cancel(ask.user_id)
            state = "pending" if due_ms > now_ms else "delivered"
            self.states[ask.user_id] = (state, due_ms, partition)
        headers = [each for each in record.headers if each[0].lower() not in (*REQUESTS, *STAMPS)]
        headers += [(b"x-accepted-at", b"%d" % now_ms), (b"x-due-at", b"%d" % due_ms)]
        if ask.user_id is not None:
            headers.append((b"x-due-id", ask.user_id))
        shown = self._show(record, headers, due_ms if self.uses_due_time else None)
        timer = Timer(due_ms, partition, shown, ask.user_id)
        if due_ms > now_ms:
            self.pending.append(timer)
        else:
            self._deliver(timer, now_ms)

    @staticmethod
    def _show(
        record: Raw, headers: Sequence[tuple[bytes, bytes | None]], timestamp_ms: int | None
    ) -> Shown:
        own_ms = CREATED_MS + record.timestamp_delta
        return Shown(
            record.value or b"",
            own_ms if timestamp_ms is None else timestamp_ms,
            tuple((name.decode(), value or b"") for name, value in headers),
        )

    def _cancel(self, user_id: bytes) -> Timer | None:
        for timer in self.pending:
            if timer.user_id == user_id:
                self.pending.remove(timer)
                return timer
        return None

    def _deliver(self, timer: Timer, now_ms: int) -> None:
        shown = timer.shown
        if self.uses_append_time:
            shown = Shown(shown.value, now_ms, shown.headers)
        self.visible[timer.partition].append(shown)

    def deliver_due(self, now_ms: int) -> int:
        """Deliver all that is due; return how many."""
        # A stable sort: equal due times keep their order of arrival.
        due = sorted(
            (timer for timer in self.pending if timer.due_ms <= now_ms),
            key=lambda timer: timer.due_ms,
        )
        for timer in due:
            self.pending.remove(timer)
            self._deliver(timer, now_ms)
            if timer.user_id is not None:
                self.states[timer.user_id] = ("delivered", timer.due_ms, timer.partition)
        return len(due)
