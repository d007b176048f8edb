"""Random batches with right and wrong delay headers do what docs/DELAY.md says, record by record.

Compared with a model: which batch is refused and at which record, which offset is answered, what is
visible at once, what is delivered when and in which order, and what became of every id.
"""

from dataclasses import dataclass
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from appliance.units import NS_PER_MS
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.oracles.delay_model import (
    CANCEL,
    CRON,
    DELAY,
    DELIVER_AT,
    ID,
    LEVEL,
    NEAR_MISSES,
    NO_DELAY,
    NOW,
    DelayModel,
    Meanings,
    Shown,
)
from tests.support.simulator.virtual_clock import START_MS
from tests.support.values.kafka_records import Fetched
from tests.support.values.raw_batch import NONE, SNAPPY, ZSTD, Raw, make_batch

MEANINGS: Meanings = {
    (DELAY, b"0"): 0,
    (DELAY, b"1"): 1,
    (DELAY, b"1s"): 1000,
    (DELAY, b"PT2S"): 2000,
    (DELAY, (2000).to_bytes(8, "big")): 2000,
    (DELAY, (2000).to_bytes(4, "big")): 2000,
    (DELAY, b'"2s"'): 2000,
    (DELAY, b"-30s"): NOW,
    (DELAY, (-1).to_bytes(8, "big", signed=True)): NOW,
    (DELAY, None): NO_DELAY,
    (DELAY, b"soon"): None,
    (DELAY, b"11000d"): 11_000 * 86_400_000,
    (DELIVER_AT, b"%d" % (START_MS - 1000)): START_MS - 1000,
    (DELIVER_AT, b"%d" % (START_MS + 1000)): START_MS + 1000,
    (DELIVER_AT, b"2026-01-01T00:00:02Z"): START_MS + 2000,
    (DELIVER_AT, b"2026-01-01T00:01Z"): START_MS + 60_000,
    (DELIVER_AT, b"2026-01-01T00:00:02"): None,
    (DELIVER_AT, b"%d000" % START_MS): None,
    (DELIVER_AT, None): None,
    (DELIVER_AT, b""): None,
    (LEVEL, b"0"): 0,
    (LEVEL, b"1"): 1,
    (LEVEL, b"2"): 2,
    (LEVEL, b"99"): 99,
    (LEVEL, b"-1"): 0,
    (LEVEL, None): 0,
    (LEVEL, b"high"): None,
}
IDS = (b"a", b"b", b"\x00\xff" * 127 + b"c")
WRONG_IDS = (b"", None, bytes(256))

TIMES = [key for key, meaning in MEANINGS.items() if meaning is not None and meaning < 2**45]
WRONG = [key for key in MEANINGS if key not in TIMES]
OTHERS = [
    (b"h", b"1"),
    (b"h", None),
    (b"x-accepted-at", b"forged"),
    (b"x-due-at", b"forged"),
    (b"x-due-id", b""),
    (b"X-Due-At", b"forged"),
    (b"x-delivery-count", b"9"),
]

time_header = st.sampled_from(TIMES)
id_header = st.tuples(st.just(ID), st.sampled_from(IDS))
cancel_header = st.tuples(st.just(CANCEL), st.sampled_from(IDS))
other_header = st.sampled_from(OTHERS)
wrong_header = st.one_of(
    st.sampled_from(WRONG),
    st.tuples(st.sampled_from([ID, CANCEL]), st.sampled_from(WRONG_IDS)),
    st.tuples(st.sampled_from([*NEAR_MISSES, *CRON]), st.sampled_from([b"1", None])),
)
CASES = (bytes.lower, bytes.lower, bytes.title, bytes.upper)


@st.composite
def record_headers(draw: st.DrawFn) -> list[tuple[bytes, bytes | None]]:
    """Mostly right: one time or none, perhaps an id; or a cancel; among others, in any order."""
    kind = draw(
        st.sampled_from(["plain", "plain", "time", "time", "named", "named", "cancel", "any"])
    )
    headers: list[Any] = draw(st.lists(other_header, max_size=2))
    if kind in {"time", "named"}:
        headers.append(draw(time_header))
    if kind == "named":
        headers.append(draw(id_header))
    if kind == "cancel":
        headers.append(draw(cancel_header))
    if kind == "any" and draw(st.integers(0, 3)) == 0:
        any_header = st.one_of(time_header, id_header, cancel_header, wrong_header)
        headers += draw(st.lists(any_header, max_size=3))
    cased = [(draw(st.sampled_from(CASES))(name), value) for name, value in headers]
    return draw(st.permutations(cased))


@dataclass(frozen=True)
class Send:
    """A batch; values of its records are numbered when it is sent."""

    partition: int
    headers: list[list[tuple[bytes, bytes | None]]]
    codec: int


sends = st.builds(
    Send,
    st.integers(0, 1),
    st.lists(record_headers(), min_size=1, max_size=6),
    st.sampled_from([NONE, NONE, SNAPPY, ZSTD]),
)


@dataclass(frozen=True)
class Moment:
    """Less than a millisecond."""

    ns: int


waits = st.sampled_from([0, 1, 999, 1000, 5000, 7_200_000, Moment(1), Moment(600_000)])
restarts = st.just("restart")


def shown(record: Fetched) -> Shown:
    return Shown(record.value, record.timestamp_ms, record.headers)


class Run:
    """A broker and its model, side by side."""

    def __init__(self, topic_settings: dict[str, str]) -> None:
        harness = with_topic(2, topic_settings)
        self.client = WireClient(harness)
        self.model = DelayModel(
            MEANINGS,
            harness.config.delay_levels,
            harness.config.delay_max_ms,
            uses_due_time=topic_settings.get("delay.timestamp") == "due",
            uses_append_time=topic_settings.get("message.timestamp.type") == "LogAppendTime",
            passes_invalid=topic_settings.get("delay.invalid") == "pass",
            requires_delay=topic_settings.get("delay.required") == "true",
            default_ms=2_000 if "delay.default" in topic_settings else None,
        )
        self.sent = 0

    @property
    def harness(self) -> BrokerHarness:
        return self.client.harness

    def do(self, step: Send | Moment | int | str) -> None:
        if isinstance(step, Send):
            self.send(step)
        elif not isinstance(step, str):
            ns = step.ns if isinstance(step, Moment) else step * NS_PER_MS
            self.harness.clock.advance_ns(ns)
            assert self.harness.deliver_all() == self.model.deliver_due(
                self.harness.clock.wall_ms()
            )
        else:
            self.client = WireClient(self.harness.restart())
        self.compare()

    def send(self, step: Send) -> None:
        batch = [
            Raw(b"%d" % (self.sent + index), b"key", headers, timestamp_delta=index)
            for index, headers in enumerate(step.headers)
        ]
        self.sent += len(batch)
        now_ns = self.harness.clock.wall_ns()
        wrong_index, base_offset = self.model.produce(step.partition, batch, now_ns)
        part = self.client.produce("t", step.partition, make_batch(batch, codec=step.codec))
        assert part.base_offset == base_offset
        if wrong_index is None:
            assert part.error_code == 0
        else:
            assert part.error_code == ErrorCode.invalid_record
            assert [error.batch_index for error in part.record_errors] == [wrong_index]

    def compare(self) -> None:
        for partition, expected in enumerate(self.model.visible):
            found = self.harness.fetch("t", partition)
            assert [record.offset for record in found] == list(range(len(expected)))
            assert [shown(record) for record in found] == expected
        assert self.harness.broker.pending_timers == len(self.model.pending)
        for user_id in IDS:
            unknown = ("unknown", None, None)
            state = self.model.states.get(user_id, unknown)
            assert self.harness.timer_state("t", user_id) == state


NAMED = (ID, b"a")
SOON, LATER, PAST = (DELAY, b"1"), (DELAY, b"PT2S"), (DELAY, b"0")
LONG_AGO = (DELIVER_AT, b"%d" % (START_MS - 1000))
CANCELLED = (CANCEL, b"a")
WRONG_AT = [(DELIVER_AT, b"%d000" % START_MS), NAMED]
OTHER, CANCEL_OTHER = (ID, b"b"), (CANCEL, b"b")


@settings(max_examples=300)
@given(
    topic_settings=st.sampled_from(
        [
            {},
            {},
            {"delay.timestamp": "due"},
            {"message.timestamp.type": "LogAppendTime"},
            {"delay.invalid": "pass"},
            {"delay.invalid": "pass", "delay.timestamp": "due"},
            {"delay.required": "true"},
            {"delay.required": "true", "delay.invalid": "pass"},
            {"delay.default": "2s"},
            {"delay.default": "2s", "delay.required": "true", "delay.timestamp": "due"},
        ]
    ),
    steps=st.lists(st.one_of(sends, sends, waits, restarts), max_size=12),
)
@example({}, [Send(0, [[NAMED, LATER], [NAMED, SOON], [CANCELLED]], 0), "restart", 5000])
@example({}, [Send(0, [[CANCELLED], [NAMED, LATER]], 0), Send(1, [[CANCELLED]], 0), 5000])
@example({}, [Send(0, [[CANCELLED], [NAMED, LATER]], 0), "restart", 5000])
@example({}, [Send(0, [[NAMED, LATER], [NAMED, SOON]], 0), "restart", 5000])
@example({}, [Send(0, [[NAMED, LATER], [CANCELLED], [NAMED, LATER]], 0), "restart", 5000])
@example({}, [Send(0, [[NAMED, LATER], [CANCELLED], [CANCELLED]], 0), "restart", 5000])
@example({}, [Send(0, [[NAMED, PAST], [NAMED, LATER]], 0), "restart", 5000])
@example({}, [Send(0, [[NAMED, PAST], [CANCELLED]], 0), "restart", 5000])
@example({}, [Send(0, [[NAMED, LATER], [OTHER, LATER], [CANCEL_OTHER]], 0), "restart", 5000])
@example({}, [Send(0, [[NAMED, SOON]], 0), 1, Send(0, [[CANCELLED], [CANCEL_OTHER]], 0)])
@example({}, [Send(0, [[NAMED, LATER]], 0), Send(1, [[NAMED, PAST]], 0), 5000])
@example({}, [Send(0, [[NAMED, LATER]], 0), Send(1, [[NAMED, LONG_AGO]], 0), 5000])
@example({}, [Send(0, [[NAMED, LATER]], 0), Send(1, [[NAMED, SOON]], 0), 1, "restart", 5000])
@example({}, [Send(0, [[NAMED, LATER]], 0), Send(1, [[NAMED]], 0), "restart", 5000])
@example({}, [Send(0, [[NAMED, LATER], [NAMED, PAST], [NAMED, SOON]], 0), 1])
@example({}, [Moment(600_000), Send(0, [[NAMED, SOON], [LATER], [PAST]], 0), 1, 1999, 1])
@example({"delay.invalid": "pass"}, [Send(0, [[NAMED, LATER], [SOON, *WRONG_AT], [SOON]], 0), 5000])
@example({"delay.timestamp": "due"}, [Send(0, [[SOON], [PAST], [NAMED]], ZSTD), 5000])
def test_batches_do_what_the_contract_says(
    topic_settings: dict[str, str], steps: list[Send | Moment | int | str]
) -> None:
    run = Run(topic_settings)
    for step in steps:
        run.do(step)
    run.do(7_200_000 * 2)
    assert not run.model.pending
