"""Produce: every version is understood, a batch is stored as it came or refused with Kafka's code.

Requests come from kafka-python, batches are built by hand; every byte of an answer is checked.
"""

import random

import pytest

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.produce_client import (
    LAST,
    PAIR,
    TWO,
    VERSIONS,
    WITH_ERRORS,
    WITH_START_OFFSET,
    next_offset,
)
from tests.support.clients.wire_client import WireClient, framed, split_answers
from tests.support.harness.broker_harness import with_topic
from tests.support.harness.configs import small_config
from tests.support.oracles.kafka_oracle import ProduceResponse, decode_response
from tests.support.simulator.virtual_clock import FIRST_EPOCH, START_MS
from tests.support.values.kafka_records import read_batches
from tests.support.values.raw_batch import (
    CODECS,
    GZIP,
    HEADER_SIZE,
    NONE,
    ZSTD,
    Raw,
    make_batch,
    split_batches,
)
from tests.support.values.record_requests import produce_request

# Versions and answers


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_answered_with_the_offset(client: WireClient, version: int) -> None:
    """All that a version has is in its answer, and offsets go on from batch to batch."""
    for base_offset in (0, 2):
        part = client.produce("t", 1, PAIR, version=version)
        assert part.error_code == 0
        assert part.base_offset == base_offset
        assert part.log_append_time_ms == -1
        if version >= WITH_START_OFFSET:
            assert part.log_start_offset == 0
        if version >= WITH_ERRORS:
            assert part.record_errors == []
            assert part.error_message is None
    assert client.harness.values(partition=1) == [b"a", b"b", b"a", b"b"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_says_why_a_record_is_refused(client: WireClient, version: int) -> None:
    """From version 8 on with the record's index and a sentence, before with the code."""
    wrong = make_batch([Raw(), Raw(), Raw(headers=[(b"x-delay", b"soon")])])
    part = client.produce("t", 0, wrong, version=version)
    assert part.error_code == ErrorCode.invalid_record
    assert part.base_offset == -1
    if version >= WITH_ERRORS:
        (error,) = part.record_errors
        assert error.batch_index == 2
        assert "x-delay" in error.batch_index_error_message
        assert part.error_message == error.batch_index_error_message
    assert next_offset(client) == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_parts_of_a_request_are_accepted_each_by_itself(client: WireClient, version: int) -> None:
    """One bad batch, what is unknown, and what is named twice: the others are stored."""
    client.harness.create_topic("u", 3)
    request = produce_request(
        [
            ("t", [(0, PAIR), (1, make_batch(TWO, crc=1)), (2, PAIR), (-1, PAIR)]),
            ("no-such-topic", [(0, PAIR), (0, PAIR)]),
            ("u", [(2, PAIR), (2, PAIR), (0, PAIR), (1, PAIR)]),
            ("u", [(1, None)]),
        ]
    )
    answer = client.ask(request, version, ProduceResponse)
    assert answer.throttle_time_ms == 0
    twice = (ErrorCode.invalid_request, -1)
    assert [
        (topic.name, [(p.index, p.error_code, p.base_offset) for p in topic.partition_responses])
        for topic in answer.responses
    ] == [
        (
            "t",
            [
                (0, 0, 0),
                (1, ErrorCode.corrupt_message, -1),
                (2, ErrorCode.unknown_topic_or_partition, -1),
                (-1, ErrorCode.unknown_topic_or_partition, -1),
            ],
        ),
        ("no-such-topic", [(0, ErrorCode.unknown_topic_or_partition, -1)] * 2),
        ("u", [(2, *twice), (2, *twice), (0, 0, 0), (1, *twice)]),
        ("u", [(1, *twice)]),
    ]
    if version >= WITH_ERRORS:
        said = answer.responses[3].partition_responses[0].error_message
        assert said == "partition 1 is named more than once: use one batch for each"
    stored = [next_offset(client, topic, index) for topic in "tu" for index in range(2)]
    assert [*stored, next_offset(client, "u", 2)] == [2, 0, 2, 0, 0]
    assert client.produce("u", 1, PAIR, version=version).error_code == 0


# Acknowledgements


@pytest.mark.parametrize("acks", [1, -1])
def test_sync_flush_acknowledges_after_the_flush(client: WireClient, acks: int) -> None:
    client.send(produce_request([("t", [(0, PAIR)])], acks=acks), LAST)
    assert client.take() == b""
    client.harness.flush()
    assert client.take() != b""


@pytest.mark.parametrize("acks", [1, -1])
def test_async_flush_acknowledges_what_is_written(acks: int) -> None:
    client = WireClient(with_topic(config=small_config(flush="async")))
    client.send(produce_request([("t", [(0, PAIR)])], acks=acks), LAST)
    assert client.take() != b""


@pytest.mark.parametrize("version", VERSIONS)
def test_acks_0_is_stored_and_not_answered(client: WireClient, version: int) -> None:
    """The next request gets the next answer."""
    silent = framed(produce_request([("t", [(0, PAIR)])], acks=0), version, 1)
    spoken = framed(produce_request([("t", [(0, PAIR)])], acks=1), version, 2)
    client.send_bytes(silent + spoken + silent)
    client.harness.flush()
    (payload,) = split_answers(client.take())
    answer = decode_response(ProduceResponse, version, payload)
    assert answer.header.correlation_id == 2
    assert answer.responses[0].partition_responses[0].base_offset == 2
    assert client.session.close_reason is None
    assert next_offset(client) == 6


def test_refusal_with_acks_0_closes_the_connection(client: WireClient) -> None:
    """What was asked before is still answered, what follows is not looked at."""
    good = framed(produce_request([("t", [(0, PAIR)])], acks=-1), LAST, 1)
    bad = framed(produce_request([("t", [(0, make_batch(TWO, crc=1))])], acks=0), LAST, 2)
    client.send_bytes(good + bad + good)
    assert client.session.close_reason == "a batch sent with acks=0 was refused"
    client.harness.flush()
    assert len(list(split_answers(client.take()))) == 1
    assert next_offset(client) == 2


@pytest.mark.parametrize("acks", [2, -2, 32767, -32768])
def test_other_acks_are_refused(client: WireClient, acks: int) -> None:
    part = client.produce("t", 0, PAIR, acks=acks)
    assert part.error_code == ErrorCode.invalid_required_acks
    assert part.error_message == f"acks must be 0, 1 or all, not {acks}"
    assert next_offset(client) == 0


# Transactions


@pytest.mark.parametrize("version", VERSIONS)
def test_transactional_id_is_refused(client: WireClient, version: int) -> None:
    part = client.produce("t", 0, PAIR, version=version, transactional_id="tx")
    assert part.error_code == ErrorCode.transactional_id_authorization_failed
    assert next_offset(client) == 0
    empty = client.produce("t", 0, PAIR, version=version, transactional_id="")
    assert empty.error_code == ErrorCode.transactional_id_authorization_failed


# Stored as it came


def without_place(batch: bytes) -> bytes:
    """All of a batch but its base offset and leader epoch."""
    return batch[8:12] + batch[16:]


PLAIN: list[Raw] = [
    Raw(b"value", b"key", [(b"h", b"1"), (b"h", None), (b"", b""), (b"x-due-at", b"5")], 7),
    Raw(None, None, timestamp_delta=-3),
    Raw(b"", b"", [("ü".encode(), bytes(range(256)))]),
]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("is_big", [False, True])
def test_batch_is_stored_as_it_came(client: WireClient, codec: int, is_big: bool) -> None:
    """Base offset and leader epoch are set, no other byte changes; also across a restart."""
    noise = random.Random(codec).randbytes(7000)
    records = [*PLAIN, Raw(noise)] if is_big else PLAIN
    batch = make_batch(records, codec=codec, leader_epoch=77, base_offset=99)
    for base_offset in (0, len(records)):
        assert client.produce("t", 0, batch).base_offset == base_offset
    for _ in range(2):
        found = split_batches(client.fetch_records("t", 0))
        assert [header.base_offset for header, _ in found] == [0, len(records)]
        assert {header.leader_epoch for header, _ in found} == {FIRST_EPOCH}
        assert [without_place(data) for _, data in found] == [without_place(batch)] * 2
        assert len(read_batches(found[1][1])) == len(records)
        client = WireClient(client.harness.restart())


def test_batches_after_an_unclean_stop_carry_the_next_epoch(client: WireClient) -> None:
    client.produce("t", 0, PAIR)
    client = WireClient(client.harness.crash("dropped", random.Random(0)))
    client.produce("t", 0, PAIR)
    found = split_batches(client.fetch_records("t", 0))
    assert [(header.base_offset, header.leader_epoch) for header, _ in found] == [
        (0, FIRST_EPOCH),
        (2, FIRST_EPOCH + 1),
    ]


@pytest.mark.parametrize("codec", [NONE, GZIP, ZSTD])
def test_append_time_replaces_the_producers(client: WireClient, codec: int) -> None:
    """On a LogAppendTime topic the answer and the batch carry the time of receipt."""
    client.harness.create_topic("a", 1, {"message.timestamp.type": "LogAppendTime"})
    batch = make_batch(PLAIN, codec=codec)
    part = client.produce("a", 0, batch)
    assert (part.base_offset, part.log_append_time_ms) == (0, START_MS)
    ((header, data),) = split_batches(client.fetch_records("a", 0))
    assert header.attributes == codec | 8
    assert header.max_timestamp == START_MS
    assert data[HEADER_SIZE:] == batch[HEADER_SIZE:]
    assert {record.timestamp_ms for record in client.harness.fetch("a", 0)} == {START_MS}


def test_topic_made_again_under_its_name_gets_the_records(client: WireClient) -> None:
    """Also those of a connection that named the deleted one in the request before."""
    harness = client.harness
    harness.create_topic("again")
    batch = make_batch([Raw(b"a")])
    assert client.produce("again", 0, batch, version=8).base_offset == 0
    harness.delete_topic("again")
    answer = client.produce("again", 0, batch, version=8)
    assert answer.error_code == ErrorCode.unknown_topic_or_partition
    harness.create_topic("again", 2)
    assert client.produce("again", 1, batch, version=8).base_offset == 0
    assert client.produce("again", 0, batch, version=8).base_offset == 0


def test_delayed_batch_is_answered_with_its_append_time(client: WireClient) -> None:
    client.harness.create_topic("a", 1, {"message.timestamp.type": "LogAppendTime"})
    part = client.produce("a", 0, make_batch([Raw(), Raw(headers=[(b"x-delay", b"5")])]))
    assert (part.base_offset, part.log_append_time_ms) == (-1, START_MS)
