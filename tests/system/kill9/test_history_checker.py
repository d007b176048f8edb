"""The checker of black-box runs finds each kind of broken promise, and nothing in a clean run."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.oracles.history import check_history
from tests.support.oracles.history_events import (
    Acknowledged,
    Attempted,
    Consumed,
    Event,
    MessageId,
    Place,
    Refused,
    Rule,
    Unknown,
    decode_value,
    encode_value,
)
from tests.system.kill9.model_broker import (
    CLEAN_RUN,
    START_MS,
    TOPIC,
    Send,
    delivered_headers,
    history_of,
)

Tape = list[Consumed]  # a partition, as one reader reads it


class Run:
    """A clean history taken apart, for the faults below to break."""

    def __init__(self, events: list[Event]) -> None:
        self.attempts = [event for event in events if isinstance(event, Attempted)]
        self.ends = {e.message: e for e in events if isinstance(e, Acknowledged | Refused)}
        self.rest = [event for event in events if not isinstance(event, Consumed)]
        self.tapes: dict[tuple[str, int], Tape] = {}
        for event in events:
            if isinstance(event, Consumed):
                self.tapes.setdefault((event.reader, event.place.partition), []).append(event)
        self.delivered = [
            attempt
            for attempt in self.attempts
            if any(attempt.value == record.value for record in self.log(attempt.partition))
        ]
        self.waiting = [one for one in self.delivered if one.delay_ms or one.deliver_at_ms]

        self.waiting.sort(key=self.due_ms)

    def due_ms(self, attempt: Attempted) -> int:
        record = next(one for one in self.log(attempt.partition) if one.value == attempt.value)
        return int(dict(record.headers)["x-due-at"])

    def final_tapes(self) -> list[Tape]:
        return [tape for (reader, _), tape in self.tapes.items() if reader == "final"]

    def log(self, partition: int) -> Tape:
        return self.tapes.get(("live", partition), [])

    def edit_log(self, partition: int, edit: Callable[[Tape], object]) -> list[Event]:
        """Change the partition itself, which is to say what every reader reads of it."""
        for reader in ("live", "final"):
            tape = self.tapes.setdefault((reader, partition), [])
            edit(tape)
            tape[:] = [
                replace(one, reader=reader, place=Place(TOPIC, partition, offset))
                for offset, one in enumerate(tape)
            ]
        return self.events()

    def edit_record(self, victim: Attempted, edit: Callable[[Consumed], Consumed]) -> list[Event]:
        def edit_tape(tape: Tape) -> None:
            tape[:] = [edit(one) if one.value == victim.value else one for one in tape]

        return self.edit_log(victim.partition, edit_tape)

    def remove(self, victim: Attempted) -> list[Event]:
        def edit_tape(tape: Tape) -> None:
            tape[:] = [one for one in tape if one.value != victim.value]

        return self.edit_log(victim.partition, edit_tape)

    def insert(self, attempt: Attempted) -> list[Event]:
        """Deliver, after all others, a message that must not be delivered."""
        accepted_ms = attempt.at_ms + 1
        due_ms = accepted_ms + (attempt.delay_ms or 0)
        headers = delivered_headers(attempt, accepted_ms, due_ms)
        place = Place(TOPIC, attempt.partition, 0)
        record = Consumed("live", place, due_ms + 60_000, attempt.key, attempt.value, headers)
        return self.edit_log(attempt.partition, lambda tape: tape.append(record))

    def events(self) -> list[Event]:
        """Put the history together again, the final reader last."""
        tapes = sorted(self.tapes.items(), key=lambda item: item[0][0] == "final")
        return self.rest + [record for _, tape in tapes for record in tape]


T = TypeVar("T")


def choose(options: Sequence[T], index: int) -> T:
    assert options, "the clean history holds nothing that could break so"
    return options[index % len(options)]


def lose(run: Run, index: int) -> list[Event]:
    named = Counter(one.cancels or one.timer_id for one in run.attempts)
    certain = [
        one
        for one in run.delivered
        if isinstance(run.ends.get(one.message), Acknowledged)
        and (one.timer_id is None or named[one.timer_id] == 1)
    ]
    return run.remove(choose(certain, index))


def double(run: Run, index: int) -> list[Event]:
    victim = choose(run.delivered, index)

    def repeat(tape: Tape) -> None:
        tape.extend([one for one in tape if one.value == victim.value])

    return run.edit_log(victim.partition, repeat)


def deliver_early(run: Run, index: int) -> list[Event]:
    victim = choose(run.waiting, index)
    early_ms = run.due_ms(victim) - 1
    return run.edit_record(victim, lambda record: replace(record, at_ms=early_ms))


def shift_due_time(run: Run, index: int) -> list[Event]:
    """The broker waits for another time than it was asked for, and says so."""

    def shift(record: Consumed) -> Consumed:
        headers = tuple(
            (name, b"%d" % (int(value) - 1) if name == "x-due-at" else value)
            for name, value in record.headers
        )
        return replace(record, headers=headers)

    return run.edit_record(choose(run.waiting, index), shift)


def move_behind_all(run: Run, victim: Attempted) -> list[Event]:
    def move(tape: Tape) -> None:
        tape.sort(key=lambda one: one.value == victim.value)

    return run.edit_log(victim.partition, move)


def overtake_timer(run: Run, index: int) -> list[Event]:
    """A timer that was pending before it was due comes out after one that is due later."""
    last_due = {one.partition: one for one in run.waiting}
    pending = [
        one
        for one in run.waiting
        if isinstance(run.ends.get(one.message), Acknowledged)
        and run.ends[one.message].at_ms < run.due_ms(one) < run.due_ms(last_due[one.partition])
    ]
    return move_behind_all(run, choose(pending, index))


def overtake_immediate(run: Run, index: int) -> list[Event]:
    immediate = [one for one in run.delivered if one not in run.waiting]
    last = {(one.partition, one.message.producer): one for one in immediate}
    firsts = [one for one in immediate if last[one.partition, one.message.producer] is not one]
    return move_behind_all(run, choose(firsts, index))


def invent(run: Run, index: int) -> list[Event]:
    victim = choose(run.delivered, index)
    message = MessageId("ghost", index)
    return run.insert(replace(victim, message=message, value=encode_value(message)))


def deliver_cancel_record(run: Run, index: int) -> list[Event]:
    return run.insert(choose([one for one in run.attempts if one.cancels is not None], index))


def change_body(run: Run, index: int) -> list[Event]:
    def flip_last_bit(record: Consumed) -> Consumed:
        value = record.value[:-1] + bytes([record.value[-1] ^ 1])
        return replace(record, value=value)

    return run.edit_record(choose(run.delivered, index), flip_last_bit)


def change_key(run: Run, index: int) -> list[Event]:
    victim = choose(run.delivered, index)
    return run.edit_record(victim, lambda record: replace(record, key=None))


def swap_own_headers(run: Run, index: int) -> list[Event]:
    def swap(record: Consumed) -> Consumed:
        one, two, *others = record.headers
        return replace(record, headers=(two, one, *others))

    return run.edit_record(choose(run.delivered, index), swap)


def leave_request_header(run: Run, index: int) -> list[Event]:
    def leave(record: Consumed) -> Consumed:
        return replace(record, headers=(*record.headers, ("x-delay", b"100")))

    return run.edit_record(choose(run.waiting, index), leave)


def forget_due_header(run: Run, index: int) -> list[Event]:
    def forget(record: Consumed) -> Consumed:
        return replace(record, headers=tuple(h for h in record.headers if h[0] != "x-due-at"))

    return run.edit_record(choose(run.waiting, index), forget)


def deliver_to_other_partition(run: Run, index: int) -> list[Event]:
    victim = choose(run.delivered, index)
    record = next(one for one in run.log(victim.partition) if one.value == victim.value)
    run.remove(victim)
    return run.edit_log(victim.partition + 1, lambda tape: tape.append(record))


def deliver_cancelled(run: Run, index: int) -> list[Event]:
    certain = [
        one
        for one in run.attempts
        if one.timer_id is not None
        and one not in run.delivered
        and run.ends[one.message].at_ms + (one.delay_ms or 0) > one.at_ms + 20
    ]
    return run.insert(choose(certain, index))


def deliver_refused(run: Run, index: int) -> list[Event]:
    refused = [one for one in run.attempts if isinstance(run.ends.get(one.message), Refused)]
    return run.insert(choose(refused, index))


def swap_offsets_between_readings(run: Run, index: int) -> list[Event]:
    tape = choose([tape for tape in run.final_tapes() if len(tape) > 1], index)
    one, two = tape[:2]
    tape[:2] = [replace(two, place=one.place), replace(one, place=two.place)]
    return run.events()


def skip_offset(run: Run, index: int) -> list[Event]:
    tape = choose([tape for tape in run.final_tapes() if len(tape) > 1], index)
    del tape[index % (len(tape) - 1)]
    return run.events()


def forget_last_offset(run: Run, index: int) -> list[Event]:
    choose([tape for tape in run.final_tapes() if len(tape) > 1], index).pop()
    return run.events()


# A fault breaks one promise; the number chooses the message that it hits.
Fault = Callable[[Run, int], list[Event]]

FAULTS: list[tuple[Rule, Fault]] = [
    (Rule.LOST, lose),
    (Rule.DOUBLED, double),
    (Rule.EARLY, deliver_early),
    (Rule.WRONG_DUE, shift_due_time),
    (Rule.REORDERED, overtake_timer),
    (Rule.REORDERED, overtake_immediate),
    (Rule.INVENTED, invent),
    (Rule.INVENTED, deliver_cancel_record),
    (Rule.CHANGED, change_body),
    (Rule.CHANGED, change_key),
    (Rule.CHANGED, swap_own_headers),
    (Rule.CHANGED, leave_request_header),
    (Rule.CHANGED, forget_due_header),
    (Rule.CHANGED, deliver_to_other_partition),
    (Rule.CANCELLED, deliver_cancelled),
    (Rule.REFUSED, deliver_refused),
    (Rule.MOVED, swap_offsets_between_readings),
    (Rule.GAP, skip_offset),
    (Rule.VANISHED, forget_last_offset),
]

kinds = ("immediate", "delayed", "instant", "timer", "cancelled", "replaced", "refused")
sends = st.builds(
    Send,
    kind=st.sampled_from((*kinds, "lost answer", "restart")),
    partition=st.integers(0, 2),
    delay_ms=st.integers(1, 200),
    pause_ms=st.integers(0, 150),
    producer=st.sampled_from(("p", "q")),
)


def test_each_rule_has_a_fault() -> None:
    """A rule without a fault below could be broken without anybody noticing."""
    assert {rule for rule, _ in FAULTS} == set(Rule)


@pytest.mark.parametrize(
    ("rule", "fault"), FAULTS, ids=lambda value: getattr(value, "__name__", "")
)
def test_planted_fault_is_found(rule: Rule, fault: Callable[[Run, int], list[Event]]) -> None:
    """One broken promise in an otherwise clean history is named."""
    found = check_history(fault(Run(history_of(CLEAN_RUN)), 1))
    assert rule in {violation.rule for violation in found}, found


@settings(max_examples=60, deadline=None)
@given(st.lists(sends, max_size=25))
def test_any_clean_history_is_found_clean(drawn: list[Send]) -> None:
    """Whatever is sent, in whatever order: a broker that keeps its promises is not accused."""
    assert check_history(history_of(drawn + CLEAN_RUN)) == []


@settings(max_examples=200, deadline=None)
@given(st.lists(sends, max_size=12), st.sampled_from(FAULTS), st.integers(0, 99))
def test_any_fault_in_any_history_is_found(
    drawn: list[Send], case: tuple[Rule, Fault], index: int
) -> None:
    """Whatever else happened, one broken promise is named, whichever message it hits."""
    rule, fault = case
    found = check_history(fault(Run(history_of(drawn + CLEAN_RUN)), index))
    assert rule in {violation.rule for violation in found}, found


def test_acknowledged_offset_that_another_message_holds_is_found() -> None:
    """Where the client knows the offset, it is the offset for ever."""
    one, two = (MessageId("p", counter) for counter in range(2))
    events: list[Event] = []
    for offset, message in enumerate((one, two)):
        events.append(Attempted(message, TOPIC, 0, START_MS, encode_value(message)))
        events.append(Acknowledged(message, START_MS + 1, offset=1 - offset))
    for offset, message in enumerate((one, two)):
        place = Place(TOPIC, 0, offset)
        events.append(Consumed("final", place, START_MS + 2, None, encode_value(message)))
    assert [violation.rule for violation in check_history(events)] == [Rule.MOVED] * 2


def test_cancel_sent_long_after_the_due_time_does_not_excuse_a_lost_timer() -> None:
    """A late cancel finds a delivered timer, not a reason why it was never delivered."""
    timer, cancel = (MessageId("p", counter) for counter in range(2))
    at_ms = START_MS + 30_000
    events: list[Event] = [
        Attempted(timer, TOPIC, 0, START_MS, b"", delay_ms=100, timer_id=b"x"),
        Acknowledged(timer, START_MS + 1),
        Attempted(cancel, TOPIC, 0, at_ms, b"", cancels=b"x"),
        Acknowledged(cancel, at_ms + 1),
    ]
    assert [violation.rule for violation in check_history(events, late_ms=1_000)] == [Rule.LOST]
    assert check_history(events, late_ms=60_000) == []


def test_replacement_that_is_lost_does_not_excuse_what_it_replaced() -> None:
    """If neither comes out, the replacement took effect and is lost, or the first one is."""
    first, second = (MessageId("p", counter) for counter in range(2))
    events: list[Event] = []
    for message in (first, second):
        at_ms = START_MS + 10 * message.counter
        events.append(Attempted(message, TOPIC, 0, at_ms, b"", delay_ms=900, timer_id=b"x"))
        events.append(Acknowledged(message, at_ms + 1))
    found = check_history(events)
    assert {violation.message for violation in found} == {first, second}


def test_unknown_outcome_may_be_delivered_or_not() -> None:
    """Without an answer neither outcome contradicts one."""
    message = MessageId("p", 0)
    attempt = Attempted(message, TOPIC, 0, START_MS, encode_value(message))
    unknown = Unknown(message, START_MS + 1)
    seen = Consumed("final", Place(TOPIC, 0, 0), START_MS + 2, None, attempt.value)
    assert check_history([attempt, unknown]) == []
    assert check_history([attempt, unknown, seen]) == []


@given(st.binary(max_size=200), st.integers(0, 10**12))
def test_value_carries_its_message_and_notices_any_changed_byte(body: bytes, index: int) -> None:
    """One flipped bit anywhere in a value is noticed."""
    value = encode_value(MessageId("p1", 42), body)
    assert decode_value(value) == MessageId("p1", 42)
    position, bit = index // 8 % len(value), index % 8
    changed = bytearray(value)
    changed[position] ^= 1 << bit
    assert decode_value(bytes(changed)) is None
