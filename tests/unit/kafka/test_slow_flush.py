"""A flush that takes too long: Produce is answered REQUEST_TIMED_OUT, and the records stay."""

import pytest

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.produce_client import LAST, PAIR, VERSIONS, WITH_START_OFFSET
from tests.support.clients.wire_client import WireClient, split_answers
from tests.support.harness.broker_harness import with_topic
from tests.support.harness.configs import small_config
from tests.support.oracles.kafka_oracle import ProduceResponse
from tests.support.values.raw_batch import Raw, make_batch
from tests.support.values.record_requests import fetch_part, fetch_request, produce_request

BOUND_MS = 5_000
PATIENT_MS = 60_000


@pytest.fixture
def client() -> WireClient:
    return WireClient(with_topic(3))


def send(
    client: WireClient, *batches: bytes | None, version: int = 8, timeout_ms: int = PATIENT_MS
) -> int:
    """One request with a batch for each partition; nothing is flushed."""
    parts = list(enumerate(batches))
    return client.send(produce_request([("t", parts)], timeout_ms=timeout_ms), version)


def wait(client: WireClient, duration_ms: int) -> int:
    """Let time pass as the server does while the disk is slow; batches that were given up on."""
    client.harness.clock.advance_ms(duration_ms)
    now_ms = client.harness.clock.monotonic_ns() // 1_000_000
    count: int = client.session.time_out(now_ms, BOUND_MS, client.harness.durable_pos)
    return count


def answers(client: WireClient, version: int = 8) -> list[list[tuple[int, int]]]:
    """(error code, base offset) of each partition of each answer that leaves now."""
    found = []
    for answer in client.answers(ProduceResponse, version):
        parts = [part for topic in answer.responses for part in topic.partition_responses]
        found.append([(part.error_code, part.base_offset) for part in parts])
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_batch_that_waits_too_long_is_answered_and_stays(client: WireClient, version: int) -> None:
    send(client, PAIR, version=version)
    assert wait(client, 0) == 0
    assert wait(client, BOUND_MS - 1) == 0
    assert client.take() == b""
    assert wait(client, 1) == 1
    ((topic,),) = (answer.responses for answer in client.answers(ProduceResponse, version))
    (part,) = topic.partition_responses
    assert (part.index, part.error_code, part.base_offset) == (0, ErrorCode.request_timed_out, -1)
    assert part.log_append_time_ms == -1
    if version >= WITH_START_OFFSET:
        assert part.log_start_offset == 0
    assert not client.session.is_waiting
    client.harness.flush()
    assert client.take() == b"", "it was answered already"
    assert len(client.harness.values()) == 2


def test_append_time_is_not_reported_either() -> None:
    client = WireClient(with_topic(1, {"message.timestamp.type": "LogAppendTime"}))
    send(client, PAIR)
    wait(client, 0)
    wait(client, BOUND_MS)
    ((topic,),) = (answer.responses for answer in client.answers(ProduceResponse, 8))
    assert topic.partition_responses[0].log_append_time_ms == -1


def test_request_that_is_less_patient_than_the_broker_waits_no_longer(client: WireClient) -> None:
    send(client, PAIR, timeout_ms=300)
    wait(client, 0)
    assert wait(client, 299) == 0
    assert wait(client, 1) == 1


def test_time_counts_for_each_answer_from_when_it_was_first_seen(client: WireClient) -> None:
    send(client, PAIR)
    wait(client, 0)
    wait(client, BOUND_MS // 2)
    send(client, PAIR)
    wait(client, 0)
    assert wait(client, BOUND_MS // 2) == 1
    assert answers(client) == [[(ErrorCode.request_timed_out, -1)]]
    client.harness.flush()
    assert answers(client) == [[(0, 2)]]


def test_only_what_is_not_durable_is_given_up_on(client: WireClient) -> None:
    """Batches that were refused keep their error, and those on the disk their offset."""
    broker = client.harness.broker
    first = make_batch([Raw(b"1")], producer_id=1, producer_epoch=0, base_sequence=0)
    send(client, first)
    client.harness.flush()
    assert answers(client) == [[(0, 0)]]
    # The first batch again: its answer is certain, and waits for that of the others.
    send(client, first, b"garbage", PAIR)
    assert answers(client) == []
    wait(client, 0)
    assert wait(client, BOUND_MS) == 1
    ((again, refused, given_up),) = answers(client)
    assert again == (0, 0)
    assert refused[0] not in (0, ErrorCode.request_timed_out)
    assert given_up == (ErrorCode.request_timed_out, -1)
    assert broker.collect_metrics().request_errors[ErrorCode.request_timed_out] == 1


def test_idempotent_retry_gets_the_first_answer_once_that_is_durable(client: WireClient) -> None:
    batch = make_batch(
        [Raw(b"now"), Raw(b"later", headers=((b"x-delay", b"60000"),))],
        producer_id=4711,
        producer_epoch=0,
        base_sequence=0,
    )
    other = make_batch([Raw(b"next")], producer_id=4711, producer_epoch=0, base_sequence=2)
    for _ in range(3):
        send(client, batch)
        send(client, other)
        assert client.take() == b""
        wait(client, 0)
        assert wait(client, BOUND_MS) == 2
        assert answers(client) == [
            [(ErrorCode.request_timed_out, -1)],
            [(ErrorCode.request_timed_out, -1)],
        ]
    send(client, batch)
    send(client, other)
    client.harness.flush()
    assert answers(client) == [[(0, -1)], [(0, 1)]]
    assert client.harness.values() == [b"now", b"next"]
    assert client.harness.broker.pending_timers == 1


def test_answers_keep_their_order(client: WireClient) -> None:
    """A fetch in between, pipelined requests of several versions, and those after them."""
    first = send(client, PAIR)
    fetched = client.send(fetch_request([("t", [fetch_part(1, 0)])], wait_ms=0), 11)
    last = send(client, PAIR, version=LAST)
    wait(client, 0)
    assert client.take() == b""
    assert wait(client, BOUND_MS) == 2
    client.end_waits()
    output = client.take()
    client.resume()
    wait(client, 0)
    wait(client, BOUND_MS)
    output += client.take()
    numbers = [int.from_bytes(payload[:4], "big") for payload in split_answers(output)]
    assert numbers == [first, fetched, last]


def test_async_flush_times_out_only_what_waits(client: WireClient) -> None:
    client = WireClient(with_topic(config=small_config(flush="async")))
    send(client, PAIR)
    assert answers(client) == [[(0, 0)]]
    assert wait(client, 0) == wait(client, BOUND_MS) == 0


def test_what_timed_out_is_still_owed_to_the_disk(client: WireClient) -> None:
    """So a client that sends on is held back like one that wants no answers."""
    send(client, PAIR)
    end = client.harness.broker.wrote_pos
    assert client.session.silent_pos < end
    wait(client, 0)
    wait(client, BOUND_MS)
    assert client.session.silent_pos == end
