"""A trace reports each request of its session once, and its answer once when it leaves."""

import logging
import re

import pytest

from _core.paths.answer import Reply, ResponseSlot
from _core.paths.traced import TRACE_ANSWERED, TRACE_PARKED, TRACE_SILENT
from compat.kafka.network.request_trace import RequestTrace
from tests.support.clients.wire_client import WireClient, split_answers
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.oracles.kafka_oracle import CLIENT_ID
from tests.support.simulator.virtual_clock import VirtualClock
from tests.support.values.raw_batch import Raw, make_batch
from tests.unit.kafka.test_session import api_versions, fetch, metadata, produce

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
BATCH = make_batch([Raw(b"a")])
CLUSTER_ID = rb"[0-9a-f]{8}-[0-9a-f-]{27}"


class Recorder:
    """Keeps what a session reports."""

    def __init__(self) -> None:
        self.reported: list[tuple[int, int, int]] = []
        self.client_ids: list[bytes | None] = []
        self.left_count = 0
        self._is_handling = False

    def begin(self) -> None:
        assert not self._is_handling
        self._is_handling = True

    def end(self, header: tuple[int, int, int, bytes | None], size: int, outcome: int) -> None:
        assert self._is_handling
        assert size >= 8
        self._is_handling = False
        self.reported.append((header[0], header[2], outcome))
        self.client_ids.append(header[3])

    def leave(self, count: int) -> None:
        self.left_count += count


def traced(client: WireClient) -> Recorder:
    recorder = Recorder()
    client.session.trace = recorder
    return recorder


MIXED = (
    produce(1, BATCH)
    + produce(2, BATCH, version=11)
    + metadata(3)
    + produce(4, BATCH, acks=0)
    + fetch(5, 0, wait_ms=1000)
    + produce(6, BATCH)
    + api_versions(7)
    + produce(8, BATCH)
    + produce(9, BATCH)
)


def test_requests_are_reported_in_their_order(client: WireClient) -> None:
    recorder = traced(client)
    client.send_bytes(MIXED)
    client.harness.flush()
    client.take()
    # The fetch sees nothing yet; what came after it waits for it.
    assert recorder.reported == [
        (PRODUCE, 1, TRACE_ANSWERED),
        (PRODUCE, 2, TRACE_ANSWERED),
        (METADATA, 3, TRACE_ANSWERED),
        (PRODUCE, 4, TRACE_SILENT),
        (FETCH, 5, TRACE_PARKED),
    ]
    assert recorder.left_count == 3
    client.end_waits()
    client.resume()
    client.harness.flush()
    client.take()
    assert recorder.reported[5:] == [
        (PRODUCE, 6, TRACE_ANSWERED),
        (API_VERSIONS, 7, TRACE_ANSWERED),
        (PRODUCE, 8, TRACE_ANSWERED),
        (PRODUCE, 9, TRACE_ANSWERED),
    ]
    assert recorder.left_count == 8
    assert set(recorder.client_ids) == {CLIENT_ID.encode()}


def test_an_answer_is_reported_when_all_of_it_has_left(client: WireClient) -> None:
    recorder = traced(client)
    client.send_bytes(produce(1, BATCH) + produce(2, BATCH) + api_versions(3))
    assert client.take() == b""
    assert recorder.left_count == 0
    client.harness.flush()
    durable_pos = client.harness.durable_pos
    pieces = client.session.output(durable_pos, 1)
    assert len(list(split_answers(b"".join(pieces)))) == recorder.left_count == 2
    client.session.output(durable_pos)
    assert recorder.left_count == 3


def test_a_trace_changes_no_answer() -> None:
    answers = []
    for is_traced in (False, True):
        harness = with_topic()
        client = WireClient(harness)
        if is_traced:
            traced(client)
        client.send_bytes(MIXED)
        client.end_waits()
        client.resume()
        harness.flush()
        answers.append(client.take())
    assert len(list(split_answers(answers[0]))) == 8
    one, other = (re.sub(CLUSTER_ID, b"", answer) for answer in answers)
    assert one == other


def test_answer_that_comes_later_is_parked(client: WireClient) -> None:
    slot = ResponseSlot()
    session = client.harness.broker.open_session(lambda _: slot)
    recorder = session.trace = Recorder()
    data = api_versions(1)
    session.get_buffer()[: len(data)] = data
    session.received(len(data), now_ns=0)
    assert recorder.reported == [(API_VERSIONS, 1, TRACE_PARKED)]
    slot.complete(Reply(b"\0\0\0\1"))
    assert session.output(0)
    assert recorder.left_count == 1


@pytest.mark.parametrize(
    ("header", "client_id"),
    [
        (b"\0\x03\0\x05\0\0\0\x07\xff\xff", None),
        (b"\0\x03\0\x05\0\0\0\x07\0\0", b""),
        (b"\0\x00\0\x08\0\0\0\x07\0\2\n\xff", b"\n\xff"),
        (b"\0\x00\0\x08\0\0\0\x07\x7f\xffab", None),  # more than there is
        (b"\0\x01\0\x0b\0\0\0\x07\x80\x00ab", None),  # no size
        (b"\0\x4d\0\x05\0\0\0\x07", None),  # no such API, and no client id
    ],
)
def test_request_that_ends_the_connection_is_reported(
    client: WireClient, header: bytes, client_id: bytes | None
) -> None:
    recorder = traced(client)
    client.send_bytes(len(header).to_bytes(4, "big") + header)
    assert client.session.close_reason is not None
    assert recorder.reported == [(header[1], 7, TRACE_SILENT)]
    assert recorder.client_ids == [client_id]


# As lines


def test_request_and_answer_are_lines_of_the_same_facts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    clock = VirtualClock()
    trace = RequestTrace.make_if_wanted(clock, "127.0.0.1:5000")
    assert trace is not None
    trace.begin()
    clock.advance_ms(2)
    trace.end((PRODUCE, 9, 17, b"a"), 100, TRACE_ANSWERED)
    trace.begin()
    trace.end((FETCH, 13, 18, None), 50, TRACE_PARKED)
    trace.begin()
    trace.end((77, 0, 19, b"a"), 50, TRACE_SILENT)
    assert trace.unanswered_count == 2
    clock.advance_ms(3)
    trace.leave(2)
    assert trace.unanswered_count == 0
    one = 'api=Produce version=9 client_id="a" correlation_id=17 peer=127.0.0.1:5000'
    two = "api=Fetch version=13 client_id=none correlation_id=18 peer=127.0.0.1:5000"
    three = 'api=77 version=0 client_id="a" correlation_id=19 peer=127.0.0.1:5000'
    assert [record.getMessage() for record in caplog.records] == [
        f"request {one} bytes=100 took_us=2000 answer=ready",
        f"request {two} bytes=50 took_us=0 answer=parked",
        f"request {three} bytes=50 took_us=0 answer=none",
        f"answer {one} waited_us=3000 parked=no",
        f"answer {two} waited_us=3000 parked=yes",
    ]


def test_client_id_forges_no_line_and_no_fact(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    trace = RequestTrace(VirtualClock(), "127.0.0.1:5000")
    trace.begin()
    forged = b'a" peer=10.0.0.1:1\n2026-01-01 ERROR latermq: \x1b[31mgone \xff' + b"x" * 30_000
    trace.end((PRODUCE, 9, 17, forged), 100, TRACE_SILENT)
    (said,) = (record.getMessage() for record in caplog.records)
    shown = 'client_id="a\\" peer=10.0.0.1:1\\n2026-01-01 ERROR latermq: \\x1b[31mgone \\udcffxxx'
    assert f" {shown}" in said
    assert "\n" not in said
    assert len(said) < 300
    assert said.endswith(
        '"... correlation_id=17 peer=127.0.0.1:5000 bytes=100 took_us=0 answer=none'
    )


def test_no_trace_is_made_at_level_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert RequestTrace.make_if_wanted(VirtualClock(), "127.0.0.1:5000") is None
    assert WireClient(BrokerHarness()).session.trace is None
