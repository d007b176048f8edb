"""Idempotent producers: a batch sent again is stored once and gets its first answer.

The rule is Kafka's: the last five batches of a producer and partition are known, the next one
follows the last, a newer epoch begins at 0, and a producer that is not known begins anywhere.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.units import MS_PER_DAY, MS_PER_HOUR
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import Stop, with_topic
from tests.support.simulator.virtual_clock import START_MS
from tests.support.values.raw_batch import NONE, ZSTD, Raw, RawHeaders, make_batch, split_batches
from tests.support.values.record_requests import produce_request

REMEMBERED = 5
SEQUENCE_MAX = 2**31 - 1
ID = 4711


def batch_of(
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    producer_id: int = ID,
    headers: RawHeaders = (),
    codec: int = NONE,
    **fields: Any,
) -> bytes:
    records = [Raw(b"%d" % (sequence + index), headers=headers) for index in range(count)]
    return make_batch(
        records,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        **fields,
    )


def send(
    client: WireClient, sequence: int, count: int = 1, *, partition: int = 0, **how: Any
) -> tuple[int, int]:
    """Error code and base offset."""
    part = client.produce("t", partition, batch_of(sequence, count, **how))
    return part.error_code, part.base_offset


def stored(client: WireClient, partition: int = 0) -> list[int]:
    return [int(record.value) for record in client.harness.fetch("t", partition)]


def test_gap_is_out_of_order_and_named(client: WireClient) -> None:
    send(client, 0)
    part = client.produce("t", 0, batch_of(2))
    assert part.error_code == ErrorCode.out_of_order_sequence_number
    assert part.error_message == f"sequence 2 of producer {ID} is out of order"
    assert part.record_errors == []
    assert send(client, 1) == (0, 1)


def test_producers_and_partitions_count_by_themselves(client: WireClient) -> None:
    assert send(client, 0) == (0, 0)
    assert send(client, 0, partition=1) == (0, 0)
    assert send(client, 0, producer_id=ID + 1) == (0, 1)
    assert send(client, 1, producer_id=ID + 1) == (0, 2)
    assert send(client, 1) == (0, 3)
    assert send(client, 1, partition=1) == (0, 1)


def test_older_epoch_is_refused(client: WireClient) -> None:
    send(client, 0, epoch=5)
    part = client.produce("t", 0, batch_of(1, epoch=4))
    assert part.error_code == ErrorCode.invalid_producer_epoch
    assert part.error_message == f"producer {ID} has a newer epoch than 4"
    assert send(client, 0, epoch=4) == (ErrorCode.invalid_producer_epoch, -1)
    assert stored(client) == [0]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_sequence_wraps(client: WireClient, count: int) -> None:
    """After 2^31 - 1 comes 0, also within a batch."""
    first = SEQUENCE_MAX - 1
    assert send(client, first, count) == (0, 0)
    following = (first + count) % 2**31
    assert send(client, (following + 1) % 2**31) == (ErrorCode.out_of_order_sequence_number, -1)
    assert send(client, following, 2) == (0, count)
    assert send(client, first, count) == (0, 0)
    again = WireClient(client.harness.restart())
    assert send(again, following, 2) == (0, count)
    assert send(again, first, count) == (0, 0)
    assert send(again, (following + 2) % 2**31) == (0, count + 2)


@pytest.mark.parametrize(
    "fields", [{"base_sequence": -1}, {"producer_epoch": -1}, {"base_sequence": -(2**31)}]
)
def test_producer_id_needs_epoch_and_sequence(client: WireClient, fields: dict[str, int]) -> None:
    numbers = {"producer_id": ID, "producer_epoch": 0, "base_sequence": 0} | fields
    part = client.produce("t", 0, make_batch([Raw()], **numbers))
    assert part.error_code == ErrorCode.invalid_record
    assert part.error_message == (
        "an idempotent batch needs a producer epoch and a sequence number"
    )


def test_refused_batch_uses_up_no_sequence(client: WireClient) -> None:
    """Whatever was wrong with it: the corrected batch has the same sequence."""
    send(client, 0)
    wrong = [
        batch_of(1, crc=1),
        batch_of(1, count=2, headers=[(b"x-delay", b"soon")]),
        batch_of(1, headers=[(b"x-delay", b"1"), (b"x-delay-level", b"1")]),
        batch_of(1, last_delta=3),
        batch_of(1) + b"\x00",
    ]
    for batch in wrong:
        assert client.produce("t", 0, batch).error_code != 0
        assert send(client, 2) == (ErrorCode.out_of_order_sequence_number, -1)
    assert send(client, 1) == (0, 1)
    assert stored(client) == [0, 1]


@pytest.mark.parametrize("codec", [NONE, ZSTD])
def test_delayed_batch_sent_again_is_held_once(client: WireClient, codec: int) -> None:
    """All delayed or mixed: the answer is -1 again, and the records come once."""
    send(client, 0)
    later = batch_of(1, 3, headers=[(b"x-delay", b"1000")], codec=codec)
    mixed = make_batch(
        [Raw(b"4"), Raw(b"5", headers=[(b"x-delay", b"500")])],
        codec=codec,
        producer_id=ID,
        producer_epoch=0,
        base_sequence=4,
    )
    for batch in (later, later, mixed, later, mixed):
        part = client.produce("t", 0, batch)
        assert (part.error_code, part.base_offset) == (0, -1)
    client = WireClient(client.harness.restart())
    for batch in (later, mixed):
        part = client.produce("t", 0, batch)
        assert (part.error_code, part.base_offset) == (0, -1)
    assert send(client, 6) == (0, 2)
    assert client.harness.tick(1000) == 4
    assert stored(client) == [0, 4, 6, 5, 1, 2, 3]


@pytest.mark.parametrize("stop", ["clean", "kept", "dropped"])
def test_sequences_survive_a_stop(client: WireClient, stop: Stop) -> None:
    for sequence in range(REMEMBERED + 2):
        send(client, sequence, epoch=3)
    client = WireClient(client.harness.reborn(stop))
    assert send(client, 1, epoch=3) == (ErrorCode.out_of_order_sequence_number, -1)
    for sequence in range(2, REMEMBERED + 2):
        assert send(client, sequence, epoch=3) == (0, sequence)
    assert send(client, 8, epoch=3) == (ErrorCode.out_of_order_sequence_number, -1)
    assert send(client, 7, epoch=2) == (ErrorCode.invalid_producer_epoch, -1)
    assert send(client, 7, epoch=3) == (0, 7)
    assert stored(client) == list(range(8))


def test_answer_to_a_batch_sent_again_waits_for_its_flush(client: WireClient) -> None:
    """The first one is not durable yet, so the second must not say so."""
    other = WireClient(client.harness)
    for each in (client, other):
        each.send(produce_request([("t", [(0, batch_of(0))])]), 8)
        assert each.take() == b""
    client.harness.flush()
    assert client.take() != b""
    assert other.take() != b""


def test_batch_sent_again_gets_its_first_append_time(client: WireClient) -> None:
    client.harness.create_topic("a", 1, {"message.timestamp.type": "LogAppendTime"})
    for _ in range(2):
        part = client.produce("a", 0, batch_of(0))
        assert (part.base_offset, part.log_append_time_ms) == (0, START_MS)
        client.harness.clock.advance_ms(1000)
    client = WireClient(client.harness.restart())
    part = client.produce("a", 0, batch_of(0))
    assert (part.base_offset, part.log_append_time_ms) == (0, START_MS)


def test_silent_producer_is_forgotten(client: WireClient) -> None:
    """After `producers.id_expiry_ms` it may begin anywhere, like one that was never seen."""
    send(client, 0)
    config = client.harness.config
    client.harness.age(config.producer_id_expiry_ms - 1)
    assert send(client, 77)[0] == ErrorCode.out_of_order_sequence_number
    client.harness.age(2 * config.retention_check_interval_ms)
    assert send(client, 77) == (0, 1)


@pytest.mark.parametrize("jump_ms", [-1_000 * MS_PER_DAY, 1_000 * MS_PER_DAY])
def test_a_wrong_clock_forgets_no_producer(client: WireClient, jump_ms: int) -> None:
    send(client, 0)
    client.harness.age(MS_PER_HOUR // 2)
    client.harness.clock.step_ms(jump_ms)
    client.harness.age(MS_PER_HOUR // 2)
    assert send(client, 77)[0] == ErrorCode.out_of_order_sequence_number
    client.harness.clock.step_ms(-jump_ms)
    client.harness.age(client.harness.config.producer_id_expiry_ms)
    assert send(client, 77) == (0, 1)


def test_a_silent_producer_is_forgotten_over_restarts(client: WireClient) -> None:
    send(client, 0)
    for _ in range(3):
        assert send(client, 77)[0] == ErrorCode.out_of_order_sequence_number
        client.harness.age(client.harness.config.producer_id_expiry_ms // 3)
        client = WireClient(client.harness.restart())
    client.harness.age(4 * client.harness.config.retention_check_interval_ms)
    assert send(client, 77) == (0, 1)


def test_stored_batch_keeps_producer_and_sequence(client: WireClient) -> None:
    send(client, 7, 2, epoch=3)
    ((header, _),) = split_batches(client.fetch_records("t", 0))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (ID, 3, 7)


class Oracle:
    """Kafka's rule for one producer on one partition."""

    def __init__(self) -> None:
        self.epoch = -1
        self.known: list[tuple[int, int, int]] = []
        self.offset = 0

    def send(self, epoch: int, first: int, count: int) -> tuple[int, int]:
        if epoch < self.epoch:
            return ErrorCode.invalid_producer_epoch, -1
        last = (first + count - 1) % 2**31
        if epoch == self.epoch:
            for known_first, known_last, answer in self.known:
                if (known_first, known_last) == (first, last):
                    return 0, answer
            if first != (self.known[-1][1] + 1) % 2**31:
                return ErrorCode.out_of_order_sequence_number, -1
        elif self.epoch >= 0 and first != 0:
            return ErrorCode.out_of_order_sequence_number, -1
        else:
            self.known = []
        self.epoch = epoch
        self.known = [*self.known, (first, last, self.offset)][-REMEMBERED:]
        self.offset += count
        return 0, self.known[-1][2]


@settings(max_examples=25)
@given(
    start=st.sampled_from([0, SEQUENCE_MAX - 3]),
    steps=st.lists(
        st.tuples(st.integers(-7, 2), st.integers(1, 3), st.sampled_from([0, 0, 0, 0, 1, -1])),
        max_size=30,
    ),
)
def test_any_order_of_batches_is_answered_by_the_rule(
    start: int, steps: list[tuple[int, int, int]]
) -> None:
    """Batches before, at and after the next sequence, of older and newer epochs."""
    harness = with_topic()
    client, oracle = WireClient(harness), Oracle()
    epoch, following = 1, start
    for shift, count, epoch_shift in steps:
        asked = max(epoch + epoch_shift, 0)
        first = 0 if epoch_shift > 0 and shift >= 0 else (following + min(shift, 1)) % 2**31
        expected = oracle.send(asked, first, count)
        assert send(client, first, count, epoch=asked) == expected
        if oracle.known:
            epoch, following = oracle.epoch, (oracle.known[-1][1] + 1) % 2**31
