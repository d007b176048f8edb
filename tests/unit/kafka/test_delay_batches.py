"""Batches that mix records for now and for later, and ids that replace, cancel and name them."""

import random
from collections.abc import Sequence

import pytest

from appliance.units import MS_PER_DAY, MS_PER_HOUR
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import Stop, with_topic
from tests.support.harness.checkpoints import take_checkpoint
from tests.support.oracles.kafka_oracle import ProduceResponse
from tests.support.simulator.virtual_clock import START_MS
from tests.support.values.raw_batch import CODECS, NONE, Raw, RawHeaders, make_batch, split_batches
from tests.support.values.record_requests import produce_request

UNKNOWN = ("unknown", None, None)


@pytest.fixture
def client() -> WireClient:
    """A client of a broker with the topics `t` and `u` of two partitions."""
    harness = with_topic(2)
    harness.create_topic("u", 2)
    return WireClient(harness)


def send(
    client: WireClient, *batch: Raw, topic: str = "t", partition: int = 0, codec: int = NONE
) -> int:
    """Produce a batch that must be accepted; the answered base offset."""
    part = client.produce(topic, partition, make_batch(batch, codec=codec))
    assert part.error_code == 0, part.error_message
    offset: int = part.base_offset
    return offset


def later(value: bytes, delay_ms: int, user_id: bytes | None = None) -> Raw:
    named: RawHeaders = () if user_id is None else [(b"x-deliver-id", user_id)]
    return Raw(value, headers=[(b"x-delay", b"%d" % delay_ms), *named])


def cancel(user_id: bytes) -> Raw:
    return Raw(b"never", headers=[(b"x-deliver-cancel", user_id)])


# Mixed batches


@pytest.mark.parametrize("codec", CODECS)
def test_visible_part_of_a_mixed_batch_has_no_gaps(client: WireClient, codec: int) -> None:
    """Its records are numbered again, and the batch is acknowledged with -1."""
    send(client, Raw(b"0"))
    batch = [
        later(b"c", 30), Raw(b"1", b"k", [(b"h", b"1")], 1), later(b"a", 10), Raw(b"2"),
        later(b"b", 20), Raw(None, timestamp_delta=9), later(b"d", 30),
    ]  # fmt: skip
    assert send(client, *batch, codec=codec) == -1
    assert send(client, Raw(b"4")) == 4
    found = split_batches(client.fetch_records("t", 0))
    assert [(header.base_offset, header.count) for header, _ in found] == [(0, 1), (1, 3), (4, 1)]
    mixed = found[1][0]
    assert (mixed.last_delta, mixed.attributes) == (2, 0)
    assert mixed.max_timestamp == mixed.base_timestamp + 9
    assert client.harness.tick(30) == 4
    assert client.harness.values() == [b"0", b"1", b"2", b"", b"4", b"a", b"b", b"c", b"d"]
    assert [record.offset for record in client.harness.fetch("t", 0)] == list(range(9))


@pytest.mark.parametrize("codec", CODECS)
def test_large_mixed_batches_survive_a_restart_before_they_are_due(
    client: WireClient, codec: int
) -> None:
    rng = random.Random(codec)
    sent = [rng.randbytes(700) for _ in range(8)]
    batch = [Raw(v) if index % 2 else later(v, 100 - index) for index, v in enumerate(sent)]
    for _ in range(12):
        assert send(client, *batch, codec=codec) == -1
    client = WireClient(client.harness.restart())
    assert client.harness.tick(100) == 48
    expected = sent[1::2] * 12
    for value in (sent[6], sent[4], sent[2], sent[0]):
        expected += [value] * 12
    assert client.harness.values() == expected


def test_parts_of_one_request_take_effect_in_their_order(client: WireClient) -> None:
    """A timer of the first part is cancelled by the second, across partitions and topics' ids."""
    parts = [
        (0, make_batch([later(b"a", 10, b"a"), later(b"b", 10, b"b")])),
        (1, make_batch([cancel(b"a"), later(b"B", 20, b"b")])),
    ]
    other = [(0, make_batch([cancel(b"b"), cancel(b"a")]))]
    answer = client.ask(produce_request([("t", parts), ("u", other)]), 9, ProduceResponse)
    errors = [p.error_code for topic in answer.responses for p in topic.partition_responses]
    assert errors == [0, 0, 0]
    assert client.harness.tick(100) == 1
    assert (client.harness.values(), client.harness.values(partition=1)) == ([], [b"B"])


# Order


def test_records_of_one_due_time_come_in_order_of_arrival(client: WireClient) -> None:
    """Levels, durations and instants alike, and those due later after those due sooner."""
    due_ms = START_MS + 5000
    ways: Sequence[RawHeaders] = [
        [(b"x-delay", b"5s")],
        [(b"x-delay-level", b"2")],
        [(b"x-deliver-at", b"%d" % due_ms)],
        [(b"x-delay", b"5000")],
        [(b"x-deliver-at", b"2026-01-01T00:00:05Z")],
        [(b"x-delay-level", b"2")],
    ]
    send(client, later(b"last", 5001))
    for index, headers in enumerate(ways):
        send(client, Raw(b"%d" % index, headers=headers))
    send(client, later(b"first", 4999))
    client.harness.tick(10_000)
    assert client.harness.values() == [b"first", b"0", b"1", b"2", b"3", b"4", b"5", b"last"]


# Ids


@pytest.mark.parametrize("user_id", [b"i", bytes(255), bytes(range(255)), "ü/ %".encode()])
def test_id_may_be_any_bytes_up_to_255(client: WireClient, user_id: bytes) -> None:
    send(client, later(b"a", 100, user_id))
    assert client.harness.timer_state("t", user_id) == ("pending", START_MS + 100, 0)
    assert client.harness.timer_state("t", user_id + b"x") == UNKNOWN
    assert client.harness.timer_state("u", user_id) == UNKNOWN
    client.harness.tick(100)
    (found,) = client.harness.fetch("t", 0)
    assert found.header("x-due-id") == user_id
    assert client.harness.timer_state("t", user_id) == ("delivered", START_MS + 100, 0)


def test_cancel_just_before_the_due_time_wins(client: WireClient) -> None:
    """Nothing has been delivered before the broker's turn to do so."""
    send(client, later(b"a", 10, b"a"))
    client.harness.clock.advance_ms(10)
    send(client, cancel(b"a"))
    assert client.harness.deliver_all() == 0
    assert client.harness.timer_state("t", b"a")[0] == "cancelled"


def test_completed_ids_are_remembered_for_a_day(client: WireClient) -> None:
    send(client, later(b"a", 10, b"a"), later(b"b", 1000, b"b"), cancel(b"b"))
    client.harness.tick(10)
    day_ms = client.harness.config.completed_id_memory_ms
    assert day_ms == 24 * 3_600_000
    client.harness.age(day_ms - 1)
    for user_id, state in ((b"a", "delivered"), (b"b", "cancelled")):
        assert client.harness.timer_state("t", user_id)[0] == state
    client.harness.age(2 * client.harness.config.retention_check_interval_ms)
    for user_id in (b"a", b"b"):
        assert client.harness.timer_state("t", user_id) == UNKNOWN


@pytest.mark.parametrize("jump_ms", [-1_000 * MS_PER_DAY, 1_000 * MS_PER_DAY])
@pytest.mark.parametrize("how", ["clean", "dropped"])
def test_a_wrong_clock_forgets_no_id(client: WireClient, jump_ms: int, how: Stop) -> None:
    send(client, later(b"a", 10, b"a"))
    client.harness.tick(10)
    harness = client.harness
    harness.age(MS_PER_HOUR // 2)
    harness.clock.step_ms(jump_ms)
    harness = harness.reborn(how)
    harness.age(MS_PER_HOUR // 2)
    assert harness.timer_state("t", b"a")[0] == "delivered"
    harness.clock.step_ms(-jump_ms)
    harness.age(harness.config.completed_id_memory_ms)
    assert harness.timer_state("t", b"a") == UNKNOWN


@pytest.mark.parametrize("how", ["clean", "killed"])
def test_an_id_that_was_forgotten_before_a_checkpoint_stays_so(
    client: WireClient, how: Stop
) -> None:
    send(client, later(b"a", 10, b"a"))
    client.harness.tick(10)
    client.harness.age(client.harness.config.completed_id_memory_ms + MS_PER_HOUR)
    assert client.harness.timer_state("t", b"a") == UNKNOWN
    take_checkpoint(client.harness)
    client.harness.clock.step_ms(-MS_PER_DAY)
    assert client.harness.reborn(how).timer_state("t", b"a") == UNKNOWN
