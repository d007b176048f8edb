"""The rules that the history of a black-box run must satisfy.

`check_history` is a pure function over recorded events. It knows nothing of the broker but its
promises: every acknowledged message is delivered exactly once and never early, a cancelled or
refused one never; order and content are kept; and an offset, once seen, always holds the same
record. A message whose outcome is unknown (the connection died) may be delivered once or not at
all.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.support.oracles.history_events import (
    Acknowledged,
    Attempted,
    Consumed,
    Event,
    MessageId,
    Outcome,
    Place,
    Refused,
    Rule,
    Unknown,
    Violation,
    decode_value,
)

# Added by the broker at the end of the headers of every record that came with a request header.
ACCEPTED_AT, DUE_AT, DUE_ID = "x-accepted-at", "x-due-at", "x-due-id"
RETRY_ATTEMPT, ORIGIN = "x-retry-attempt", "x-origin"


class _Delivery(NamedTuple):
    """A message at its offset, with the two times that the broker added to its headers."""

    attempt: Attempted
    place: Place
    acknowledged_ms: int | None
    accepted_ms: int  # 0 without a header
    due_ms: int  # 0 without a header; later than `accepted_ms` if it had to wait

    @property
    def rank(self) -> tuple[int, int]:
        return self.due_ms, self.accepted_ms


Attempts = Mapping[MessageId, Attempted]
Ends = Mapping[MessageId, Outcome]
Deliveries = dict[MessageId, list[_Delivery]]


def check_history(events: Sequence[Event], *, late_ms: int = 10_000) -> list[Violation]:
    """Check a whole run, whose last reader read all partitions to the end after all was due.

    Args:
        events: in any order; records of one reader and partition in the order they were read.
        late_ms: how long a due message may stay pending, ms (more than the longest restart);
            a cancellation sent later than that does not excuse a message that is missing.

    Returns:
        Every violation found, none if the broker kept its promises. O(n log n) in the number of
        events, and quadratic in the number of times that one timer id is used again.
    """
    attempts = {event.message: event for event in events if isinstance(event, Attempted)}
    ends = {e.message: e for e in events if isinstance(e, Acknowledged | Refused | Unknown)}
    readings = [event for event in events if isinstance(event, Consumed)]
    found = list(_check_offsets(readings))
    deliveries: Deliveries = defaultdict(list)
    for reading in readings:
        attempt = _find_attempt(reading, attempts)
        if isinstance(attempt, Violation):
            found.append(attempt)
            continue
        end = ends.get(attempt.message)
        delivery = _delivery(attempt, reading, end)
        found.extend(_check_content(delivery, reading))
        found.extend(_check_times(delivery, reading))
        known = deliveries[attempt.message]
        if all(delivery.place != other.place for other in known):
            known.append(delivery)
    found.extend(_check_outcomes(ends, deliveries))
    found.extend(_check_cancellations(attempts, ends, deliveries, late_ms))
    found.extend(_check_order(deliveries))
    return list(dict.fromkeys(found))  # two readers of one record report it twice


def _find_attempt(reading: Consumed, attempts: Attempts) -> Attempted | Violation:
    message = decode_value(reading.value)
    if message is None:
        facts = f"the checksum in the body is wrong: {reading.value[:80]!r}"
        return Violation(Rule.CHANGED, None, reading.place, facts)
    attempt = attempts.get(message)
    if attempt is None:
        return Violation(Rule.INVENTED, message, reading.place, "no such attempt")
    if attempt.cancels is not None:
        return Violation(Rule.INVENTED, message, reading.place, "it is a cancel, not a message")
    return attempt


def _delivery(attempt: Attempted, reading: Consumed, end: Outcome | None) -> _Delivery:
    added = dict(reading.headers) if attempt.asks_for_delivery_headers else {}
    acknowledged_ms = end.at_ms if isinstance(end, Acknowledged) else None
    accepted_ms, due_ms = (_time(added.get(name, b"")) for name in (ACCEPTED_AT, DUE_AT))
    return _Delivery(attempt, reading.place, acknowledged_ms, accepted_ms, due_ms)


def _time(text: bytes) -> int:
    return int(text) if re.fullmatch(rb"\d{1,15}", text) else 0


def _check_offsets(readings: Iterable[Consumed]) -> Iterator[Violation]:
    """Each reader sees 0, 1, 2 ...; all see the same; the last sees whatever any other saw."""
    first_seen: dict[Place, bytes] = {}
    next_offsets: dict[tuple[str, str, int], int] = defaultdict(int)
    last_reader = ""
    for reading in readings:
        place, last_reader = reading.place, reading.reader
        seen = first_seen.setdefault(place, reading.value)
        if seen != reading.value:
            facts = f"{decode_value(seen)} was there, {reading.reader} reads another"
            yield Violation(Rule.MOVED, decode_value(reading.value), place, facts)
        tape = (reading.reader, place.topic, place.partition)
        if place.offset != next_offsets[tape]:
            facts = f"{reading.reader} expected offset {next_offsets[tape]}"
            yield Violation(Rule.GAP, decode_value(reading.value), place, facts)
        next_offsets[tape] = place.offset + 1
    for place, value in first_seen.items():
        end = next_offsets[last_reader, place.topic, place.partition]
        if place.offset >= end:
            facts = f"{last_reader} found the end at {end}"
            yield Violation(Rule.VANISHED, decode_value(value), place, facts)


def _check_content(delivery: _Delivery, reading: Consumed) -> Iterator[Violation]:
    attempt, place = delivery.attempt, delivery.place
    count = len(attempt.headers)
    own, added = reading.headers[:count], reading.headers[count:]
    expected = {ACCEPTED_AT, DUE_AT} if attempt.asks_for_delivery_headers else set()
    if attempt.timer_id is not None:
        expected.add(DUE_ID)
    if attempt.retry_attempt is not None:
        expected |= {RETRY_ATTEMPT, ORIGIN}
    wrong = []
    if (place.topic, place.partition) != (attempt.topic, attempt.partition):
        wrong.append(f"sent to {attempt.topic}/{attempt.partition}")
    if reading.key != attempt.key:
        wrong.append(f"key {reading.key!r}, sent {attempt.key!r}")
    if reading.value != attempt.value:
        wrong.append("another body")
    if own != attempt.headers or sorted(expected) != sorted(name for name, _ in added):
        wrong.append(f"headers {reading.headers}, sent {attempt.headers} to get {expected}")
    elif attempt.timer_id is not None and dict(added)[DUE_ID] != attempt.timer_id:
        wrong.append(f"{DUE_ID} {dict(added)[DUE_ID]!r}, sent {attempt.timer_id!r}")
    elif attempt.retry_attempt not in (None, _time(dict(added).get(RETRY_ATTEMPT, b""))):
        wrong.append(f"{RETRY_ATTEMPT} {dict(added)[RETRY_ATTEMPT]!r}, not {attempt.retry_attempt}")
    elif expected and 0 in delivery.rank:
        wrong.append(f"times that are no numbers: {added}")
    if wrong:
        yield Violation(Rule.CHANGED, attempt.message, place, "; ".join(wrong))


def _check_times(delivery: _Delivery, reading: Consumed) -> Iterator[Violation]:
    """Trust neither header alone: the sender's clock gives an independent bound."""
    attempt, place = delivery.attempt, delivery.place
    accepted_ms, due_ms = delivery.accepted_ms, delivery.due_ms
    wanted_ms = attempt.deliver_at_ms or attempt.at_ms + (attempt.delay_ms or 0)
    earliest_ms = max(due_ms, wanted_ms)
    if reading.at_ms < earliest_ms:
        facts = f"{earliest_ms - reading.at_ms} ms early by {reading.reader}'s clock"
        yield Violation(Rule.EARLY, attempt.message, place, facts)
    if 0 in delivery.rank:
        return
    wanted_ms = attempt.deliver_at_ms or accepted_ms + (attempt.delay_ms or 0)
    # A delay counts from the end of the millisecond in which the record was accepted.
    rounded_ms = 1 if attempt.delay_ms and not attempt.deliver_at_ms else 0
    if not wanted_ms <= due_ms <= wanted_ms + rounded_ms:
        facts = f"due {due_ms}, asked for {wanted_ms}"
        yield Violation(Rule.WRONG_DUE, attempt.message, place, facts)
    latest_ms = delivery.acknowledged_ms or reading.at_ms
    if not attempt.at_ms <= accepted_ms <= latest_ms:
        facts = f"accepted {accepted_ms}, but sent {attempt.at_ms}, answered by {latest_ms}"
        yield Violation(Rule.WRONG_DUE, attempt.message, place, facts)


def _check_outcomes(ends: Ends, deliveries: Deliveries) -> Iterator[Violation]:
    for message, places in deliveries.items():
        end, place = ends.get(message), places[0].place
        if len(places) > 1:
            facts = "also at " + ", ".join(str(tuple(other.place)) for other in places[1:])
            yield Violation(Rule.DOUBLED, message, place, facts)
        if isinstance(end, Refused):
            yield Violation(Rule.REFUSED, message, place, f"refused at {end.at_ms}")
        if isinstance(end, Acknowledged) and end.offset not in (None, place.offset):
            facts = f"acknowledged with offset {end.offset}"
            yield Violation(Rule.MOVED, message, place, facts)


def _check_cancellations(
    attempts: Attempts, ends: Ends, deliveries: Deliveries, late_ms: int
) -> Iterator[Violation]:
    """Every acknowledged message is there, unless it was cancelled; then it is not."""
    by_timer: dict[tuple[str, bytes], list[Attempted]] = defaultdict(list)
    for attempt in attempts.values():
        name = attempt.cancels if attempt.timer_id is None else attempt.timer_id
        if name is not None and not isinstance(ends.get(attempt.message), Refused):
            by_timer[attempt.topic, name].append(attempt)
    # A message that is missing without an excuse took no effect, so it excuses no other. Latest
    # first: it is then already known whether a missing replacement is itself excused.
    effective = {one.message for one in attempts.values() if one.cancels is not None}
    effective |= deliveries.keys()
    for attempt in sorted(attempts.values(), key=lambda one: one.at_ms, reverse=True):
        if attempt.cancels is not None:
            continue
        others = by_timer[attempt.topic, attempt.timer_id] if attempt.timer_id else []
        end, places = ends.get(attempt.message), deliveries.get(attempt.message)
        if places:
            yield from _check_not_cancelled(places[0], others, ends)
            continue
        due_ms = attempt.deliver_at_ms or (
            (end.at_ms if end else attempt.at_ms) + (attempt.delay_ms or 0)
        )
        if any(
            other.message in effective
            and other.at_ms <= due_ms + late_ms
            and _last_moment_ms(other, ends, deliveries) >= attempt.at_ms
            for other in others
        ):
            effective.add(attempt.message)
        elif isinstance(end, Acknowledged):
            where = f"{attempt.topic}/{attempt.partition}, timer {attempt.timer_id!r}"
            facts = f"acknowledged {end.at_ms}, due by {due_ms}, sent to {where}"
            yield Violation(Rule.LOST, attempt.message, None, facts)


def _last_moment_ms(attempt: Attempted, ends: Ends, deliveries: Deliveries) -> float:
    """The latest time at which this attempt can have taken effect in the broker."""
    places, end = deliveries.get(attempt.message), ends.get(attempt.message)
    if places and places[0].accepted_ms:
        return places[0].accepted_ms
    return end.at_ms if isinstance(end, Acknowledged) else float("inf")


def _check_not_cancelled(
    delivery: _Delivery, others: Iterable[Attempted], ends: Ends
) -> Iterator[Violation]:
    due_ms, acknowledged_ms = delivery.due_ms, delivery.acknowledged_ms or float("inf")
    for other in others:
        answer = ends.get(other.message)
        if not isinstance(answer, Acknowledged) or other.at_ms <= acknowledged_ms:
            continue  # which of the two came first is unknown
        if answer.at_ms < due_ms:
            facts = f"by {other.message}, {due_ms - answer.at_ms} ms before it was due"
            yield Violation(Rule.CANCELLED, delivery.attempt.message, delivery.place, facts)


def _check_order(deliveries: Deliveries) -> Iterator[Violation]:
    """Timers come out by due time, then arrival; immediate messages as their producer sent them.

    A timer's place is certain only if it was pending (acknowledged) before it was due; then
    whatever is delivered before it must have been due no later. Which of two messages of one
    millisecond came first is known only within one producer.
    """
    partitions: dict[tuple[str, int], list[_Delivery]] = defaultdict(list)
    for places in deliveries.values():
        for delivery in places:
            partitions[delivery.place.topic, delivery.place.partition].append(delivery)
    for partition in partitions.values():
        partition.sort(key=lambda delivery: delivery.place.offset)
        yield from _check_immediate_order(one for one in partition if one.due_ms <= one.accepted_ms)
        yield from _check_timer_order(one for one in partition if one.due_ms > one.accepted_ms)


def _check_immediate_order(partition: Iterable[_Delivery]) -> Iterator[Violation]:
    last: dict[str, _Delivery] = {}
    for delivery in partition:
        producer, counter = delivery.attempt.message
        before = last.setdefault(producer, delivery)
        if counter < before.attempt.message.counter:
            yield _reordered(delivery, before, "sent before it")
        else:
            last[producer] = delivery


def _check_timer_order(partition: Iterable[_Delivery]) -> Iterator[Violation]:
    greatest: _Delivery | None = None  # of all before
    last: dict[tuple[tuple[int, int], str], _Delivery] = {}
    for delivery in partition:
        producer, counter = delivery.attempt.message
        before = last.setdefault((delivery.rank, producer), delivery)
        last[delivery.rank, producer] = delivery
        was_pending = (delivery.acknowledged_ms or delivery.due_ms) < delivery.due_ms
        if greatest is None or delivery.rank >= greatest.rank:
            greatest = delivery
        elif was_pending:
            yield _reordered(delivery, greatest, f"{delivery.rank} before {greatest.rank}")
        if was_pending and counter < before.attempt.message.counter:
            yield _reordered(delivery, before, "due in the same millisecond, sent before it")


def _reordered(delivery: _Delivery, before: _Delivery, why: str) -> Violation:
    facts = f"after {before.attempt.message} at offset {before.place.offset}: {why}"
    return Violation(Rule.REORDERED, delivery.attempt.message, delivery.place, facts)
