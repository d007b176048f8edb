"""Delay headers as real software writes them: what is understood, what is refused by its name.

The forms of the values have a table of their own (tests/unit/core/paths/test_delay_text.py).
"""

import re
from dataclasses import replace

import pytest

from _core.paths.delay_names import names
from _core.paths.delay_notices import NOTICES_MAX, QUOTA_REASONS, DelayNotice
from _core.paths.delay_reasons import REASONS
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import WireClient, framed
from tests.support.docs.source_files import ROOT
from tests.support.harness.broker_harness import Stop, with_topic
from tests.support.oracles.delay_model import (
    CRON,
    NEAR_MISSES,
    REPLY,
    REQUESTS,
    RETRY,
    RETRY_NOTES,
    STAMPS,
)
from tests.support.oracles.kafka_oracle import ProduceResponse
from tests.support.simulator.virtual_clock import START_MS
from tests.support.values.kafka_records import Fetched
from tests.support.values.raw_batch import CODECS, CREATED_MS, Raw, RawHeaders, make_batch
from tests.support.values.record_requests import fetch_part, fetch_request, produce_request
from tests.support.values.topic_requests import DELETE, SET, change_settings, settings_of

RIGHT = NEAR_MISSES.values()
ONE_ID = (b"x-deliver-id", b"id")
EPOCH_S = START_MS // 1000


def send(client: WireClient, *batch: Raw, topic: str = "t", codec: int = 0) -> tuple[int, int]:
    """Error code and base offset."""
    part = client.produce(topic, 0, make_batch(batch, codec=codec))
    return part.error_code, part.base_offset


def records(client: WireClient, topic: str = "t") -> list[Fetched]:
    return client.harness.fetch(topic, 0)


def asking(name: bytes, value: bytes | None, *others: tuple[bytes, bytes | None]) -> Raw:
    return Raw(b"value", b"key", [(b"h", b"1"), (name, value), *others], 3)


def passing(client: WireClient) -> WireClient:
    """With the topic `p`, which delivers what it would refuse."""
    client.harness.create_topic("p", 1, {"delay.invalid": "pass"})
    return client


# No delay

NOTHING_ASKED: list[tuple[bytes, bytes | None]] = [
    (b"x-delay", None),
    (b"x-delay", b"null"),
    (b"x-delay", b"-1500"),
    (b"x-delay", b"-30s"),
    (b"x-delay", b"-PT15M"),
    (b"x-delay", b'"-1500"'),
    (b"x-delay", (-1500).to_bytes(8, "big", signed=True)),
    (b"x-delay", (-1500).to_bytes(4, "big", signed=True)),
    (b"x-delay-level", None),
    (b"x-delay-level", b"null"),
    (b"x-delay-level", b"-3"),
    (b"x-delay-level", (-3).to_bytes(8, "big", signed=True)),
]


@pytest.mark.parametrize(("name", "value"), NOTHING_ASKED)
def test_null_and_negative_delays_are_no_delay(
    client: WireClient, name: bytes, value: bytes | None
) -> None:
    """The record stays as it is, as with level 0: a column that is NULL is no request."""
    assert send(client, Raw(b"0"), asking(name, value)) == (0, 0)
    expected = (("h", b"1"), (name.decode(), value or b""))
    assert records(client)[1] == Fetched(1, CREATED_MS + 3, b"key", b"value", expected)


@pytest.mark.parametrize(("name", "value"), NOTHING_ASKED)
def test_no_delay_with_an_id_completes_the_pending_timer(
    client: WireClient, name: bytes, value: bytes | None
) -> None:
    assert send(client, asking(b"x-delay", b"10s", ONE_ID)) == (0, -1)
    assert send(client, asking(name, value, ONE_ID)) == (0, 0)
    assert client.harness.timer_state("t", b"id") == ("delivered", START_MS, 0)
    (found,) = records(client)
    stamp = b"%d" % START_MS
    added = (("x-accepted-at", stamp), ("x-due-at", stamp), ("x-due-id", b"id"))
    assert found.headers == (("h", b"1"), *added)


def test_no_delay_leaves_room_for_another_request(client: WireClient) -> None:
    for index, (name, value) in enumerate(NOTHING_ASKED):
        instant = b"%d" % (START_MS + 1000 + index)
        assert send(client, asking(name, value, (b"x-deliver-at", instant))) == (0, -1)
    assert client.harness.tick(1000 + len(NOTHING_ASKED)) == len(NOTHING_ASKED)


# The names

DELAYING: list[tuple[RawHeaders, int]] = [
    ([(b"X-Delay", b"10s")], 10_000),
    ([(b"X-DELAY", b"10s")], 10_000),
    ([(b"X-Deliver-At", b"%d" % (START_MS + 10_000))], 10_000),
    ([(b"X-Delay-Level", b"3")], 10_000),
    ([(b"x-delay", b"soon"), (b"X-Delay", b"10s")], 10_000),
    ([(b"X-Delay", b"5s"), (b"x-delay", b"10s")], 10_000),
]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("headers", "delay_ms"), DELAYING)
def test_names_match_without_regard_to_case(
    client: WireClient, headers: RawHeaders, delay_ms: int, codec: int
) -> None:
    """Of one that repeats the last counts, however it is written; all of them are removed."""
    stamped = [*headers, (b"X-Due-At", b"forged"), (b"X-Accepted-At", b""), (b"X-Due-ID", b"")]
    assert send(client, Raw(b"a"), Raw(b"later", headers=stamped), codec=codec) == (0, -1)
    assert client.harness.tick(delay_ms - 1) == 0
    assert client.harness.tick(1) == 1
    assert [name for name, _ in records(client)[1].headers] == ["x-accepted-at", "x-due-at"]


def test_ids_and_cancels_match_without_regard_to_case(client: WireClient) -> None:
    assert send(client, asking(b"X-Delay", b"10s", (b"X-Deliver-Id", b"id"))) == (0, -1)
    assert client.harness.timer_state("t", b"id")[0] == "pending"
    assert send(client, asking(b"X-Deliver-Cancel", b"id")) == (0, -1)
    assert client.harness.timer_state("t", b"id")[0] == "cancelled"


@pytest.mark.parametrize("spelled", [bytes.lower, bytes.upper])
@pytest.mark.parametrize(("name", "right"), NEAR_MISSES.items())
def test_near_misses_are_refused_with_the_right_name(
    client: WireClient, name: bytes, right: bytes, spelled: object
) -> None:
    """Whatever the value: a record that comes at once although it was to wait is worse."""
    assert callable(spelled)
    for value in (b"1000", None):
        batch = make_batch([Raw(b"now"), asking(spelled(name), value)])
        part = client.produce("t", 0, batch)
        assert (part.error_code, part.base_offset) == (ErrorCode.invalid_record, -1)
        assert [error.batch_index for error in part.record_errors] == [1]
        assert f"{name.decode()} is no delay header: use {right.decode()}," in part.error_message
    assert records(client) == []


@pytest.mark.parametrize("spelled", [bytes.lower, bytes.title])
@pytest.mark.parametrize("name", CRON)
def test_a_record_that_recurs_is_refused_where_delay_headers_are_off(
    client: WireClient, name: bytes, spelled: object
) -> None:
    """Also beside a delay that could be met."""
    assert callable(spelled)
    client.harness.create_topic("off", 1, {"delay.headers": "off"})
    for others in ([], [(b"x-delay", b"1s"), ONE_ID]):
        part = client.produce("off", 0, make_batch([Raw(), asking(spelled(name), b"x", *others)]))
        assert (part.error_code, part.base_offset) == (ErrorCode.invalid_record, -1)
        assert [error.batch_index for error in part.record_errors] == [1]
        assert f"{name.decode()} has no effect in a topic with delay.headers=off" in (
            part.error_message
        )
    assert records(client, "off") == []


USERS_OWN = [
    *(b"x-delivery-count", b"x-delays", b"x-dela", b"xx-delay", b"x-", b"x", b"y-delay", b""),
    *(
        b"x-deliver",
        b"x-delay_ms",
        b"x-crons",
        b"x-retry",
        b"x-retry-attempt",
        b"x-origin",
        b"x_cron",
    ),
    *(b"x-trace-id", b"delay", b"x\rdelay", b"x-due", b"x_delay_ms", b"x-delay\0"),
]


def test_all_other_names_are_the_users_own(client: WireClient) -> None:
    """The list of near misses is closed; nothing else is read, or removed from what is delayed."""
    own = [(name, b"soon") for name in USERS_OWN]
    assert send(client, Raw(b"now", headers=own)) == (0, 0)
    assert send(client, Raw(b"later", headers=[*own, (b"x-delay", b"1s")])) == (0, -1)
    client.harness.tick(1000)
    shown = tuple((name.decode(), b"soon") for name in USERS_OWN)
    now, later = records(client)
    assert now.headers == shown
    assert later.headers[: len(own)] == shown
    assert client.session.produce.delays.notices == []


def test_headers_of_all_kinds_pass_where_they_are_off_and_invalid_ones_pass(
    client: WireClient,
) -> None:
    """Byte by byte; nothing is counted, because nothing is read."""
    settings = {"delay.headers": "off", "delay.invalid": "pass"}
    client.harness.create_topic("off", 1, settings)
    headers = [(name, b"soon") for name in (*REQUESTS, *CRON, *NEAR_MISSES, *STAMPS)]
    for codec in CODECS:
        assert send(client, Raw(headers=headers), topic="off", codec=codec)[0] == 0
    assert client.session.produce.delays.notices == []
    assert not any(client.session.produce.delays.passed.values())


def test_near_misses_pass_where_headers_are_off(client: WireClient) -> None:
    client.harness.create_topic("off", 1, {"delay.headers": "off"})
    headers = [(name, b"soon") for name in NEAR_MISSES]
    assert send(client, Raw(headers=headers), topic="off") == (0, 0)
    (found,) = records(client, "off")
    assert [name.encode() for name, _ in found.headers] == list(NEAR_MISSES)


def test_the_names_are_those_of_the_documents() -> None:
    kinds = {
        **{name.decode(): "request" for name in (*REQUESTS, RETRY, REPLY, *CRON)},
        **{name.decode(): "retry" for name in RETRY_NOTES},
        **{name.decode(): "stamp" for name in STAMPS},
        **{name.decode(): right.decode() for name, right in NEAR_MISSES.items()},
    }
    assert names() == kinds
    text = (ROOT / "docs" / "DELAY.md").read_text()
    assert set(re.findall(r"`(x[-_][a-z-]+[a-z])`", text)) == {*kinds, "x-delivery-count"}
    rows = re.findall(r"^\| `(x-deli?[a-z-]+)` \| (`x-delay-.*) \|$", text, re.MULTILINE)
    assert [right for right, _ in rows] == list(dict.fromkeys(map(bytes.decode, RIGHT)))
    for right, listed in rows:
        assert re.findall(r"`([^`]+)`", listed) == [each for each in kinds if kinds[each] == right]
    assert tuple(re.findall(r"^\| `([a-z_]+)` \| ", text, re.MULTILINE)) == (
        *REASONS,
        *QUOTA_REASONS,
    )


# The base of delays


@pytest.mark.parametrize("after_ns", [1, 500_000, 999_999])
@pytest.mark.parametrize(
    ("name", "value"),
    [(b"x-delay", b"1s"), (b"x-delay", b"1000"), (b"x-delay", b"PT1S"), (b"x-delay-level", b"1")],
)
def test_a_delay_is_never_shorter_than_asked(
    client: WireClient, name: bytes, value: bytes, after_ns: int
) -> None:
    """It counts from the next millisecond: a second after 0.6 ms is due at 1001, not at 1000."""
    client.harness.clock.advance_ns(after_ns)
    assert send(client, asking(name, value)) == (0, -1)
    assert client.harness.broker.next_wake_ms() == START_MS + 1001
    client.harness.clock.advance_ns(1_000_000_000 - 1)
    assert client.harness.deliver_all() == 0
    assert client.harness.tick(1) == 1
    (found,) = records(client)
    assert found.header("x-accepted-at") == b"%d" % START_MS
    assert found.header("x-due-at") == b"%d" % (START_MS + 1001)


def test_a_delay_from_a_whole_millisecond_is_exact(client: WireClient) -> None:
    assert send(client, asking(b"x-delay", b"1s")) == (0, -1)
    assert client.harness.broker.next_wake_ms() == START_MS + 1000


def test_what_is_due_now_is_not_held_for_the_rest_of_the_millisecond(client: WireClient) -> None:
    """Neither a delay of 0 nor the instant of the millisecond that runs."""
    client.harness.clock.advance_ns(600_000)
    now = b"%d" % START_MS
    for index, header in enumerate([(b"x-delay", b"0"), (b"x-deliver-at", now)]):
        assert send(client, asking(*header)) == (0, index)
        assert records(client)[index].header("x-due-at") == now
    assert send(client, asking(b"x-deliver-at", b"%d" % (START_MS + 1))) == (0, -1)
    assert client.harness.broker.next_wake_ms() == START_MS + 1


def test_the_longest_delay_is_that_of_the_request(client: WireClient) -> None:
    """Exactly delay.max.ms is accepted in any part of a millisecond."""
    client.harness.create_topic("s", 1, {"delay.max.ms": "1000"})
    client.harness.clock.advance_ns(600_000)
    for name, value, code in (
        (b"x-delay", b"1000", 0),
        (b"x-delay-level", b"1", 0),
        (b"x-deliver-at", b"%d" % (START_MS + 1000), 0),
        (b"x-delay", b"1001", ErrorCode.invalid_record),
        (b"x-deliver-at", b"%d" % (START_MS + 1001), ErrorCode.invalid_record),
    ):
        assert send(client, asking(name, value), topic="s") == (code, -1)


def test_a_request_that_waits_counts_from_the_turn_that_handles_it(client: WireClient) -> None:
    """Behind a fetch that is parked, for instance."""
    client.send(fetch_request([("t", [fetch_part(0, 0)])], wait_ms=60_000), 11)
    client.send(produce_request([("t", [(0, make_batch([asking(b"x-delay", b"1s")]))])]), 8)
    assert client.harness.broker.pending_timers == 0
    client.harness.clock.advance_ns(2_600_000)
    client.end_waits()
    client.resume()
    assert client.harness.broker.next_wake_ms() == START_MS + 1003


# Why it was refused

REFUSED: list[tuple[RawHeaders, str]] = [
    ([(b"x-delay", b"soon")], "value"),
    ([(b"x-delay", b"")], "value"),
    ([(b"x-deliver-at", None)], "value"),
    ([(b"x-deliver-at", b"%d" % EPOCH_S)], "unit"),
    ([(b"x-deliver-at", b"%d" % (START_MS * 1000))], "unit"),
    ([(b"x-deliver-at", b"%d" % (START_MS * 1_000_000))], "unit"),
    ([(b"x-deliver-at", b"9999-01-01T00:00Z")], "too_far"),
    ([(b"x-delay", b"11000d")], "too_far"),
    ([(b"x-delay", b"9" * 30)], "too_far"),
    ([(b"x-delay", b"1"), (b"x-delay-level", b"1")], "contradiction"),
    ([(b"x-deliver-cancel", b"a"), (b"x-delay", b"1")], "contradiction"),
    ([(b"x-deliver-id", b"")], "id"),
    ([(b"x-deliver-cancel", None)], "id"),
    ([(b"X-Delay-Ms", b"1000")], "near_miss"),
    ([(b"x-cron", b"0 9 * * *")], "cron"),
    ([(b"x-retry-group", b"a/b")], "retry"),
    ([(b"x-deliver-reply", b"r")], "reply"),
]


def test_every_reason_has_an_example() -> None:
    """`missing` is that of a topic which insists."""
    assert {reason for _, reason in REFUSED} == set(REASONS) - {"missing"}


@pytest.mark.parametrize(("headers", "reason"), REFUSED)
def test_a_refusal_is_noted_and_counted_by_its_reason(
    client: WireClient, headers: RawHeaders, reason: str
) -> None:
    """With what the operator needs to find the producer, and no value of another header."""
    bad = Raw(b"body", b"key", [(b"authorization", b"secret"), *headers])
    part = client.produce("t", 0, make_batch([Raw(), bad, bad]))
    assert part.error_code == ErrorCode.invalid_record
    (notice,) = client.session.produce.delays.take()
    assert (notice.topic, notice.partition, notice.record) == ("t", 0, 1)
    assert (notice.offset, notice.count, notice.reason) == (-1, 0, reason)
    assert notice.message == part.error_message
    assert notice.client_id == b"the-oracle"
    assert not re.search("secret|body|key", notice.message)
    counts = client.session.produce.delays.refused
    assert counts == dict.fromkeys((*REASONS, *QUOTA_REASONS), 0) | {reason: 1}
    assert client.harness.broker.collect_metrics().delay_refused == counts
    assert client.session.produce.delays.notices == []


def test_other_refusals_are_no_matter_of_delays(client: WireClient) -> None:
    part = client.produce(
        "t", 0, make_batch([Raw(headers=[(b"x-delay", b"1")]), Raw(offset_delta=7)])
    )
    assert part.error_code == ErrorCode.invalid_record
    assert client.session.produce.delays.notices == []
    assert not any(client.session.produce.delays.refused.values())


def test_no_more_notices_are_kept_than_somebody_may_take(client: WireClient) -> None:
    for _ in range(NOTICES_MAX + 3):
        send(client, asking(b"x-delay", b"soon"))
    assert len(client.session.produce.delays.take()) == NOTICES_MAX
    assert client.session.produce.delays.refused["value"] == NOTICES_MAX + 3


def test_a_client_without_a_name_is_noted_as_such(client: WireClient) -> None:
    harness = client.harness
    frame = framed(produce_request([("t", [(0, make_batch([asking(b"x-delay", b"")]))])]), 8, 1)
    name_size = int.from_bytes(frame[12:14], "big")
    body = frame[4:12] + b"\xff\xff" + frame[14 + name_size :]
    client.send_bytes(len(body).to_bytes(4, "big") + body)
    harness.flush()
    assert client.answers(ProduceResponse, 8)
    (notice,) = client.session.produce.delays.take()
    assert notice.client_id is None


# delay.invalid=pass


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("headers", "reason"), [each for each in REFUSED if each[1] not in {"retry", "reply"}]
)
def test_what_cannot_be_met_is_delivered_at_once_and_unchanged(
    client: WireClient, headers: RawHeaders, reason: str, codec: int
) -> None:
    """In its place, counted and noted with its offset; the others of the batch are as asked."""
    client = passing(client)
    assert send(client, Raw(b"first"), topic="p") == (0, 0)
    bad = Raw(b"bad", b"key", [(b"h", b"1"), *headers], 3)
    batch = [Raw(b"a"), asking(b"x-delay", b"5"), bad, Raw(b"b"), replace(bad, timestamp_delta=4)]
    part = client.produce("p", 0, make_batch(batch, codec=codec))
    assert (part.error_code, part.base_offset, part.record_errors) == (0, -1, [])
    found = records(client, "p")
    assert [record.value for record in found] == [b"first", b"a", b"bad", b"b", b"bad"]
    shown = tuple((name.decode(), value or b"") for name, value in bad.headers)
    assert found[2] == Fetched(2, CREATED_MS + 3, b"key", b"bad", shown)
    assert found[4] == Fetched(4, CREATED_MS + 4, b"key", b"bad", shown)
    (notice,) = client.session.produce.delays.take()
    assert (notice.topic, notice.partition, notice.reason) == ("p", 0, reason)
    assert (notice.record, notice.offset, notice.count) == (2, 2, 2)
    assert client.harness.broker.collect_metrics().delay_passed[reason] == 2
    assert not any(client.session.produce.delays.refused.values())
    assert client.harness.tick(5) == 1
    assert client.harness.restart().values("p") == [b"first", b"a", b"bad", b"b", b"bad", b"value"]


def test_an_id_in_a_request_that_passes_names_nothing(client: WireClient) -> None:
    """What is pending under it stays."""
    client = passing(client)
    assert send(client, asking(b"x-delay", b"5s", ONE_ID), topic="p") == (0, -1)
    assert send(client, asking(b"x-delay", b"soon", ONE_ID), topic="p") == (0, 0)
    assert client.harness.timer_state("p", b"id") == ("pending", START_MS + 5000, 0)


def test_malformed_records_never_pass(client: WireClient) -> None:
    client = passing(client)
    assert send(client, Raw(offset_delta=7), topic="p") == (ErrorCode.invalid_record, -1)


def test_due_timestamps_do_not_touch_what_passes(client: WireClient) -> None:
    client.harness.create_topic("d", 1, {"delay.invalid": "pass", "delay.timestamp": "due"})
    assert send(client, asking(b"x-delay", b"soon"), topic="d") == (0, 0)
    assert records(client, "d")[0].timestamp_ms == CREATED_MS + 3


def test_delay_invalid_changes_at_once(client: WireClient) -> None:
    assert send(client, asking(b"x-delay", b"soon")) == (ErrorCode.invalid_record, -1)
    assert change_settings(client, "t", ("delay.invalid", SET, "pass")) == 0
    assert send(client, asking(b"x-delay", b"soon")) == (0, 0)
    assert change_settings(client, "t", ("delay.invalid", SET, "refuse")) == 0
    assert send(client, asking(b"x-delay", b"soon")) == (ErrorCode.invalid_record, -1)
    assert change_settings(client, "t", ("delay.invalid", SET, "pass")) == 0
    assert change_settings(client, "t", ("delay.invalid", DELETE, None)) == 0
    assert send(client, asking(b"x-delay", b"soon")) == (ErrorCode.invalid_record, -1)


@pytest.mark.parametrize("mode", ["clean", "kept", "dropped"])
def test_delay_invalid_survives(mode: Stop) -> None:
    client = WireClient(with_topic(1))
    assert change_settings(client, "t", ("delay.invalid", SET, "pass")) == 0
    client = WireClient(client.harness.reborn(mode))
    assert settings_of(client, "t") == {"delay.invalid": "pass"}
    assert send(client, asking(b"x-delay", b"soon")) == (0, 0)


def test_a_notice_has_no_more_than_its_facts() -> None:
    facts = {name for name in dir(DelayNotice) if not name.startswith("_")}
    assert facts == {
        *("client_id", "topic", "partition", "record", "offset", "count", "reason", "message")
    }
