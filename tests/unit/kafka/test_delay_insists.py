"""Topics that insist: `delay.required` refuses what asks for nothing, `delay.default` delays it."""

import pytest

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import Stop
from tests.support.simulator.virtual_clock import START_MS
from tests.support.values.kafka_records import Fetched
from tests.support.values.raw_batch import CODECS, CREATED_MS, Raw, RawHeaders, make_batch
from tests.support.values.topic_requests import DELETE, SET, change_settings, settings_of
from tests.unit.kafka.test_delay_habits import ONE_ID, asking, records, send

ABSENT: list[RawHeaders] = [
    [],
    [(b"h", b"1")],
    [(b"x-delay", None)],
    [(b"x-delay-level", b"0")],
    [(b"x-delay-level", None)],
    [(b"x-delay-level", b"-3")],
    [ONE_ID],
    [(b"x-due-at", b"5"), (b"x-accepted-at", b"5")],
]
"""Headers that ask for no time."""

NOW: list[RawHeaders] = [
    [(b"x-delay", b"0")],
    [(b"x-delay", b"-1500")],
    [(b"x-delay", b"-PT15M")],
    [(b"x-delay", (-1500).to_bytes(4, "big", signed=True))],
    [(b"x-deliver-at", b"%d" % (START_MS - 1))],
    [(b"x-delay", b"-5"), ONE_ID],
]
"""Headers that ask for delivery at once."""


@pytest.fixture
def insisting(client: WireClient) -> WireClient:
    """With `r`, whose records need a delay, `d`, which gives them 15 minutes, and `b`, both."""
    client.harness.create_topic("r", 1, {"delay.required": "true"})
    client.harness.create_topic("d", 1, {"delay.default": "15m"})
    client.harness.create_topic("b", 1, {"delay.required": "true", "delay.default": "15m"})
    return client


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("headers", ABSENT)
def test_a_record_that_asks_for_nothing_is_refused_with_its_batch(
    insisting: WireClient, headers: RawHeaders, codec: int
) -> None:
    batch = [asking(b"x-delay", b"5s"), Raw(b"value", headers=headers)]
    part = insisting.produce("r", 0, make_batch(batch, codec=codec))
    assert (part.error_code, part.base_offset) == (ErrorCode.invalid_record, -1)
    ((index, message),) = [
        (each.batch_index, each.batch_index_error_message) for each in part.record_errors
    ]
    assert index == 1
    assert "delay.required=true" in message
    assert "x-delay-level" in message
    assert insisting.harness.broker.pending_timers == 0
    (notice,) = insisting.session.produce.delays.take()
    assert (notice.topic, notice.record, notice.reason) == ("r", 1, "missing")
    assert insisting.harness.broker.collect_metrics().delay_refused["missing"] == 1


@pytest.mark.parametrize("topic", ["r", "d", "b"])
@pytest.mark.parametrize("headers", NOW)
def test_a_request_for_now_is_one(insisting: WireClient, topic: str, headers: RawHeaders) -> None:
    assert send(insisting, Raw(b"now", headers=headers), topic=topic) == (0, 0)
    assert [each.value for each in records(insisting, topic)] == [b"now"]


@pytest.mark.parametrize("topic", ["r", "d", "b"])
def test_requests_and_cancels_are_as_everywhere(insisting: WireClient, topic: str) -> None:
    assert send(insisting, asking(b"x-delay", b"5s", ONE_ID), topic=topic) == (0, -1)
    assert send(insisting, asking(b"x-delay-level", b"1"), topic=topic) == (0, -1)
    assert send(insisting, asking(b"x-deliver-cancel", b"id"), topic=topic) == (0, -1)
    assert insisting.harness.tick(5_000) == 1
    assert send(insisting, asking(b"x-delay", b"soon"), topic=topic)[0] == ErrorCode.invalid_record


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("topic", ["d", "b"])
@pytest.mark.parametrize("headers", ABSENT)
def test_a_record_that_asks_for_nothing_gets_the_default(
    insisting: WireClient, topic: str, headers: RawHeaders, codec: int
) -> None:
    batch = [Raw(b"value", b"key", headers, 3), asking(b"x-delay", b"5s")]
    assert send(insisting, *batch, topic=topic, codec=codec) == (0, -1)
    assert insisting.harness.tick(5_000) == 1
    assert insisting.harness.tick(15 * 60_000 - 5_001) == 0
    assert insisting.harness.tick(1) == 1
    found = records(insisting, topic)[1]
    kept = tuple((name.decode(), value or b"") for name, value in headers if name == b"h")
    due = START_MS + 15 * 60_000
    added = (("x-accepted-at", b"%d" % START_MS), ("x-due-at", b"%d" % due))
    named = (("x-due-id", b"id"),) if ONE_ID in headers else ()
    expected = (*kept, *added, *named)
    assert found == Fetched(1, CREATED_MS + 3, b"key", b"value", expected)


def test_the_default_replaces_what_is_pending_under_the_id(insisting: WireClient) -> None:
    assert send(insisting, asking(b"x-delay", b"5s", ONE_ID), topic="d") == (0, -1)
    assert send(insisting, Raw(b"new", headers=[ONE_ID]), topic="d") == (0, -1)
    state = insisting.harness.timer_state("d", b"id")
    assert state == ("pending", START_MS + 15 * 60_000, 0)


def test_no_more_than_the_longest_delay_of_the_topic_is_given(client: WireClient) -> None:
    client.harness.create_topic("s", 1, {"delay.default": "15m", "delay.max.ms": "60000"})
    assert send(client, Raw(b"value"), topic="s") == (0, -1)
    assert client.harness.tick(59_999) == 0
    assert client.harness.tick(1) == 1


def test_what_passes_though_it_is_invalid_is_still_refused_without_a_request(
    client: WireClient,
) -> None:
    client.harness.create_topic("p", 1, {"delay.required": "true", "delay.invalid": "pass"})
    assert send(client, asking(b"x-delay", b"soon"), topic="p") == (0, 0)
    assert send(client, Raw(b"value"), topic="p") == (ErrorCode.invalid_record, -1)


def test_nothing_is_asked_of_a_topic_that_reads_no_delay_headers(client: WireClient) -> None:
    settings = {"delay.required": "true", "delay.default": "15m", "delay.headers": "off"}
    client.harness.create_topic("o", 1, settings)
    assert send(client, Raw(b"value"), topic="o") == (0, 0)


@pytest.mark.parametrize("mode", ["clean", "kept", "dropped"])
def test_both_change_at_once_and_survive(client: WireClient, mode: Stop) -> None:
    assert send(client, Raw(b"0")) == (0, 0)
    assert change_settings(client, "t", ("delay.required", SET, "true")) == 0
    assert send(client, Raw(b"1")) == (ErrorCode.invalid_record, -1)
    assert change_settings(client, "t", ("delay.default", SET, "1h")) == 0
    assert send(client, Raw(b"2")) == (0, -1)
    client = WireClient(client.harness.reborn(mode))
    assert settings_of(client, "t") == {"delay.required": "true", "delay.default": "1h"}
    assert send(client, Raw(b"3")) == (0, -1)
    assert change_settings(client, "t", ("delay.default", DELETE, None)) == 0
    assert send(client, Raw(b"4")) == (ErrorCode.invalid_record, -1)
    assert change_settings(client, "t", ("delay.required", SET, "false")) == 0
    assert send(client, Raw(b"5")) == (0, 1)


@pytest.mark.parametrize("codec", CODECS)
def test_an_idempotent_batch_that_is_sent_again_is_delayed_once(
    insisting: WireClient, codec: int
) -> None:
    numbered = {"producer_id": 4711, "producer_epoch": 0, "base_sequence": 0}
    bare = make_batch([Raw(b"a"), Raw(b"b")], codec=codec, **numbered)
    # The refusal uses up no sequence number, and what was accepted is not judged again.
    assert insisting.produce("r", 0, bare).error_code == ErrorCode.invalid_record
    asked = make_batch([asking(b"x-delay", b"5s")] * 2, codec=codec, **numbered)
    for topic, batch in (("r", asked), ("d", bare), ("d", bare)):
        part = insisting.produce(topic, 0, batch)
        assert (part.error_code, part.base_offset) == (0, -1)
    assert change_settings(insisting, "d", ("delay.default", DELETE, None)) == 0
    assert change_settings(insisting, "d", ("delay.required", SET, "true")) == 0
    assert insisting.produce("d", 0, bare).error_code == 0
    assert insisting.harness.broker.pending_timers == 4
    assert insisting.harness.tick(15 * 60_000) == 4
    assert [each.value for each in records(insisting, "d")] == [b"a", b"b"]
