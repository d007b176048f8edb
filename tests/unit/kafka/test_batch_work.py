"""A batch that unpacks to much is worked on by a thread, and everybody else is served meanwhile."""

from typing import Any

import pytest

from _core.bytes.batch import batch_header
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.produce_client import next_offset
from tests.support.clients.wire_client import WireClient, framed, run_work, split_answers
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.configs import small_config
from tests.support.oracles.kafka_oracle import ProduceResponse, decode_response
from tests.support.values.raw_batch import (
    CODECS,
    ZSTD,
    Raw,
    compress,
    make_batch,
    records_of,
)
from tests.support.values.record_requests import produce_request

MIB = 1 << 20
LIMIT = 4 * MIB
PLAIN = make_batch([Raw(b"a")])


@pytest.fixture
def harness() -> BrokerHarness:
    return with_topic(3, config=large_config())


def large_config(**settings: Any) -> Any:
    return small_config(
        **{
            "batch_size_max_bytes": MIB,
            "decompressed_size_max_bytes": LIMIT,
            "request_decompressed_size_max_bytes": 2 * LIMIT,
            "record_size_max_bytes": LIMIT,
            "request_size_max_bytes": 16 * MIB,
            "segment_size_bytes": 64 * MIB,
        }
        | settings
    )


def packed(records: list[Raw], codec: int = ZSTD, **fields: Any) -> bytes:
    body = compress(codec, records_of(records))
    return make_batch(body, count=len(records), attributes=codec, **fields)


def large(*headers: tuple[bytes, bytes], size: int = 2 * MIB) -> list[Raw]:
    """Records that unpack to more than a turn has time for."""
    return [Raw(b"first", headers=headers), Raw(bytes(size), headers=headers)]


def send(client: WireClient, *batches: bytes, version: int = 8) -> None:
    """Let the broker receive a request with a batch for each partition, for one turn."""
    data = framed(produce_request([("t", list(enumerate(batches)))]), version, 1)
    client.feed(data, client.end_turn)


def resume(client: WireClient) -> None:
    client.session.resume(now_ns=client.harness.clock.wall_ns())
    client.end_turn()


def finish(client: WireClient) -> list[tuple[int, int]]:
    """Take all turns that are left; return error and base offset of each partition."""
    while client.session.yielded:
        run_work(client.session)
        resume(client)
    client.harness.flush()
    return outcomes(client)


def outcomes(client: WireClient) -> list[tuple[int, int]]:
    (answer,) = split_answers(client.take())
    (topic,) = decode_response(ProduceResponse, 8, answer).responses
    return [(part.error_code, part.base_offset) for part in topic.partition_responses]


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_large_batch_waits_for_a_thread_and_others_do_not(
    harness: BrokerHarness, codec: int
) -> None:
    client, other = WireClient(harness), WireClient(harness)
    send(client, PLAIN, packed(large(), codec), PLAIN)
    work = client.session.work
    assert work is not None
    assert work.is_packed
    assert not work.is_made
    assert [next_offset(client, "t", index) for index in range(3)] == [1, 0, 0]
    assert other.produce("t", 1, PLAIN).error_code == 0
    resume(client)
    assert client.session.work is work
    assert work.is_made
    assert other.produce("t", 1, PLAIN).error_code == 0
    assert [next_offset(client, "t", index) for index in range(3)] == [1, 2, 0]
    assert finish(client) == [(0, 0), (0, 2), (0, 0)]
    assert client.session.work is None
    assert [len(value) for value in harness.values("t", 1)] == [1, 1, 5, 2 * MIB]


def test_what_arrives_meanwhile_waits(harness: BrokerHarness) -> None:
    client = WireClient(harness)
    send(client, packed(large()))
    more = framed(produce_request([("t", [(1, PLAIN)])]), 8, 2)
    client.session.get_buffer()[: len(more)] = more
    client.session.received(len(more), now_ns=harness.clock.wall_ns())
    client.end_turn()
    assert client.session.work is not None
    assert not client.session.work.is_made
    assert client.session.yielded
    while client.session.yielded:
        run_work(client.session)
        resume(client)
    harness.flush()
    numbers = [int.from_bytes(each[:4], "big") for each in split_answers(client.take())]
    assert numbers == [1, 2]


def test_a_reply_says_what_holds_when_the_batch_is_appended(harness: BrokerHarness) -> None:
    """Not when a thread split it: another client cancels, and schedules, in between."""
    client, other = WireClient(harness), WireClient(harness)
    harness.create_topic("r", 1)
    cancels = [
        Raw(headers=[(b"x-deliver-cancel", name), (b"x-deliver-reply", b"r")])
        for name in (b"a", b"b")
    ]
    send(client, packed([*large(), *cancels]))
    resume(client)
    assert client.session.work is not None
    run_work(client.session)
    later = Raw(headers=[(b"x-delay", b"1h"), (b"x-deliver-id", b"b")])
    assert other.produce("t", 1, make_batch([later])).error_code == 0
    resume(client)
    harness.flush()
    assert outcomes(client) == [(0, -1)]
    harness.deliver_all()
    said = [(each.key, each.value) for each in harness.fetch("r", 0)]
    assert said == [
        (b"a", b'{"outcome":"unknown","topic":"t"}'),
        (b"b", b'{"outcome":"cancelled","topic":"t"}'),
    ]


def test_a_record_that_recurs_is_split_on_the_thread(harness: BrokerHarness) -> None:
    client = WireClient(harness)
    names = [b"a", b"b"]
    recurring = [
        Raw(b"tick", headers=[(b"x-cron", b"* * * * *"), (b"x-deliver-id", name)]) for name in names
    ]
    send(client, packed([*large(), *recurring]))
    resume(client)
    assert client.session.work is not None
    run_work(client.session)
    resume(client)
    harness.flush()
    assert outcomes(client) == [(0, -1)]
    for _ in range(2):
        assert harness.tick(60_000) == len(names)


def test_delayed_records_are_split_on_the_thread(harness: BrokerHarness) -> None:
    """Their places in a level follow from those that came in between."""
    client, other = WireClient(harness), WireClient(harness)
    begin_ms = harness.clock.wall_ms()
    send(client, packed(large((b"x-delay-level", b"1"))))
    level = make_batch([Raw(b"other", headers=[(b"x-delay-level", b"1")])])
    assert other.produce("t", 0, level).error_code == 0
    harness.clock.advance_ms(7)
    resume(client)
    assert other.produce("t", 0, level).error_code == 0
    assert finish(client) == [(0, -1)]
    assert harness.values() == []
    harness.tick(harness.config.delay_levels[0] + 10)
    harness.deliver_all()
    found = harness.fetch("t", 0)
    assert [record.value[:5] for record in found] == [b"other", b"first", bytes(5), b"other"]
    for record in found[1:3]:
        headers = dict(record.headers)
        assert int(headers["x-accepted-at"]) == begin_ms
        assert int(headers["x-due-at"]) == begin_ms + harness.config.delay_levels[0]
    assert harness.reborn("dropped").fetch("t", 0)[3].value == b"other"


def test_a_retry_on_another_connection_gets_the_first_answer(harness: BrokerHarness) -> None:
    batch = packed(large(), producer_id=7, producer_epoch=0, base_sequence=0)
    clients = [WireClient(harness), WireClient(harness)]
    for client in clients:
        send(client, batch)
        resume(client)
    assert [finish(client) for client in clients] == [[(0, 0)], [(0, 0)]]
    assert next_offset(clients[0]) == 2


def test_a_topic_that_is_deleted_meanwhile_is_unknown(harness: BrokerHarness) -> None:
    for is_made in (False, True):
        client = WireClient(harness)
        send(client, packed(large()))
        if is_made:
            resume(client)
        harness.delete_topic("t")
        assert finish(client) == [(ErrorCode.unknown_topic_or_partition, -1)]
        assert client.session.work is None
        harness.create_topic("t", 3)
        assert client.produce("t", 0, PLAIN).error_code == 0


def spoiled(batch: bytes) -> bytes:
    """The records of a batch with a damaged end, and the right CRC."""
    return make_batch(batch[61:-9] + bytes(9), count=2, attributes=ZSTD)


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (spoiled(packed(large())), ErrorCode.invalid_record),
        (packed([Raw(bytes(2 * MIB)), Raw(offset_delta=5)]), ErrorCode.invalid_record),
        (packed(large((b"x-delay", b"soon"))), ErrorCode.invalid_record),
        (packed(large(size=LIMIT)), ErrorCode.message_too_large),
    ],
    ids=["damaged", "offset delta", "delay", "too large"],
)
def test_what_the_thread_finds_wrong_is_refused(
    harness: BrokerHarness, batch: bytes, error: int
) -> None:
    client = WireClient(harness)
    send(client, batch, PLAIN)
    assert finish(client) == [(error, -1), (0, 0)]
    assert next_offset(client) == 0
    assert harness.broker.collect_metrics().request_errors == {error: 1}


@pytest.mark.parametrize("size", [10, 2 * MIB], ids=["small", "large"])
def test_more_delayed_records_than_a_turn_has_time_for_are_too_large(size: int) -> None:
    """Java's producer sends such a batch again in parts."""
    harness = with_topic(config=large_config(delayed_count_max=4))
    asks = [(b"x-delay", b"5000")], [(b"x-deliver-cancel", b"a")], [(b"x-deliver-id", b"b")]
    delayed = [Raw(headers=ask) for ask in (*asks, asks[0])]
    client = WireClient(harness)
    send(client, packed([*delayed, Raw(bytes(size))]))
    assert finish(client) == [(0, -1)]
    send(client, packed([*delayed, Raw(bytes(size)), delayed[0]]))
    while client.session.yielded:
        run_work(client.session)
        resume(client)
    harness.flush()
    (answer,) = client.answers(ProduceResponse, 8)
    part = answer.responses[0].partition_responses[0]
    assert part.error_code == ErrorCode.message_too_large
    assert "limits.delayed_count_max = 4 " in part.error_message
    assert part.record_errors == []
    assert next_offset(client) == 2


def test_the_limit_of_a_request_counts_what_threads_unpack(harness: BrokerHarness) -> None:
    client = WireClient(harness)
    batch = packed(large(size=3 * MIB))
    send(client, batch, batch, batch)
    assert finish(client) == [(0, 0), (0, 0), (ErrorCode.kafka_storage_error, -1)]


def test_a_closed_connection_drops_its_work(harness: BrokerHarness) -> None:
    client = WireClient(harness)
    send(client, packed(large()))
    resume(client)
    work = client.session.work
    assert work is not None
    client.session.close()
    assert client.session.work is None
    work.run()  # the thread has it still
    assert next_offset(WireClient(harness)) == 0


def test_a_new_producer_is_admitted_once(harness: BrokerHarness) -> None:
    client = WireClient(harness)
    producers = harness.broker.producers
    send(client, packed(large(), producer_id=7, producer_epoch=0, base_sequence=0))
    assert finish(client) == [(0, 0)]
    assert producers._allowance._used[""][0] == 1
    assert producers.count == 1


def test_the_append_time_is_that_of_the_append() -> None:
    harness = with_topic(1, {"message.timestamp.type": "LogAppendTime"}, config=large_config())
    client = WireClient(harness)
    send(client, packed(large((b"x-delay", b"0"))))
    resume(client)
    harness.clock.advance_ms(5_000)
    assert finish(client) == [(0, 0)]
    header = batch_header(client.fetch_records("t", 0))
    assert header["max_timestamp"] == harness.clock.wall_ms()


def test_a_large_held_batch_is_written_from_where_the_thread_made_it(
    harness: BrokerHarness,
) -> None:
    """To copy it would take longer than all the rest that the loop does."""
    client = WireClient(harness)
    send(client, packed(large((b"x-delay", b"5000"))))
    resume(client)
    run_work(client.session)
    client.session.resume(now_ns=harness.clock.wall_ns())
    parts = [len(part) for part in harness.broker.log.tail.take()]
    assert [size > 2 * MIB for size in parts] == [False, True, False][: len(parts)]
    assert sum(parts) - max(parts) < 1_000
    client.end_turn()
    harness.flush()
    harness.tick(5_010)
    harness.deliver_all()
    assert [len(value) for value in harness.values("t", 0)] == [5, 2 * MIB]


def test_what_unpacks_to_much_and_is_delayed_is_too_large() -> None:
    """It is stored unpacked; Java's producer sends such a batch again in parts."""
    harness = with_topic(config=large_config(delayed_size_max_bytes=3 * MIB))
    client = WireClient(harness)
    delay = (b"x-delay", b"5000")
    for size, error in ((2 * MIB, 0), (3 * MIB, ErrorCode.message_too_large)):
        send(client, packed(large(delay, size=size)))
        assert finish(client) == [(error, -1)]
        send(client, packed([Raw(bytes(size)), Raw(headers=[delay])]))
        assert finish(client)[0][0] == error
        send(client, packed(large(size=size)))
        assert finish(client)[0][0] == 0


def test_a_batch_has_a_limited_number_of_records() -> None:
    harness = with_topic(config=large_config(record_count_max=3))
    client = WireClient(harness)
    send(client, make_batch([Raw()] * 3))
    assert finish(client) == [(0, 0)]
    send(client, make_batch([Raw()] * 4))
    harness.flush()
    (answer,) = client.answers(ProduceResponse, 8)
    part = answer.responses[0].partition_responses[0]
    assert part.error_code == ErrorCode.message_too_large
    assert "4 records; limits.record_count_max is 3" in part.error_message


def test_each_batch_counts_as_work() -> None:
    """Thousands of small ones of new producers take several turns."""
    harness = with_topic(
        1_000, config=large_config(partition_count_max_per_topic=1_000, partition_total_max=2_000)
    )
    client = WireClient(harness)
    batches = [
        make_batch([Raw(b"a")], producer_id=index, producer_epoch=0, base_sequence=0)
        for index in range(1_000)
    ]
    send(client, *batches)
    turns = 1
    while client.session.yielded:
        resume(client)
        turns += 1
    assert turns == 4
    harness.flush()
    assert {error for error, _ in outcomes(client)} == {0}
