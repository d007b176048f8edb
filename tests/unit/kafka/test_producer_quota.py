"""How many idempotent producers are remembered, and what happens to one more."""

import random
from typing import Any

import pytest

from appliance.producers import BURST, FORGETTABLE_MS, PER_S, WAIT_MS
from appliance.units import MS_PER_HOUR
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import BrokerHarness, with_topic
from tests.support.harness.checkpoints import take_checkpoint
from tests.support.harness.configs import small_config
from tests.support.oracles.kafka_oracle import InitProducerIdRequest, InitProducerIdResponse, ask
from tests.support.values.raw_batch import Raw, make_batch

MAX = 20
SECTION = "producers.count_max"
FIRST_ID, SECOND_ID = 2**62, 2**62 + 1


def quota_client(**settings: Any) -> WireClient:
    config = small_config(**{"producer_count_max": MAX, **settings})
    return WireClient(with_topic(2, config=config))


def send(
    client: WireClient, producer_id: int, sequence: int = 0, *, partition: int = 0
) -> tuple[int, str | None]:
    """Error code and message."""
    batch = make_batch(
        [Raw(b"")], producer_id=producer_id, producer_epoch=0, base_sequence=sequence
    )
    part = client.produce("t", partition, batch)
    return part.error_code, part.error_message


def remembered(client: WireClient, partition: int = 0) -> list[int]:
    topic = client.harness.broker.topics.find("t")
    assert topic is not None
    return sorted(topic.partitions[partition].producers)


def ask_id(client: WireClient) -> int:
    """Error code of InitProducerId."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
    answer = ask(client.harness._node, request, 0, InitProducerIdResponse)
    return int(answer.error_code)


def age(client: WireClient, duration_ms: int) -> None:
    """Let producers age at least so long."""
    client.harness.age(duration_ms + 2 * client.harness.config.retention_check_interval_ms)


def test_at_the_limit_new_producers_wait_while_none_is_idle() -> None:
    """Also with ids that the broker never gave away. Those that are known go on."""
    client = quota_client()
    for number in range(MAX):
        assert send(client, number)[0] == 0
    code, message = send(client, 1_000)
    assert code == ErrorCode.kafka_storage_error  # after which all clients try again
    assert message is not None
    assert f"{SECTION} = {MAX} is reached" in message
    assert send(client, 0, partition=1)[0] == code
    assert remembered(client) == list(range(MAX))
    assert [send(client, number, 1)[0] for number in range(MAX)] == [0] * MAX
    metrics = client.harness.broker.collect_metrics()
    assert metrics.producers_refused == {"count": 2}
    assert metrics.producers_forgotten == 0


def test_at_the_limit_the_one_that_is_idle_longest_is_forgotten() -> None:
    """On whichever partition it is; it may go on with its next batch all the same."""
    client = quota_client()
    for number in range(MAX):
        send(client, number, partition=number % 2)
    send(client, 0, 1)
    age(client, FORGETTABLE_MS)
    send(client, 1, 1, partition=1)
    assert send(client, 1_000)[0] == 0
    assert send(client, 1_001)[0] == 0
    assert remembered(client) == [0, *range(4, MAX, 2), 1_000, 1_001]
    assert remembered(client, 1) == [1, *range(5, MAX, 2)]
    metrics = client.harness.broker.collect_metrics()
    assert metrics.producers_forgotten == 2
    assert client.harness.broker.gauges(0).producers == MAX


def test_no_producer_that_may_send_again_is_forgotten() -> None:
    """A wrong clock of the machine makes none idle."""
    client = quota_client()
    for number in range(MAX):
        send(client, number)
    age(client, FORGETTABLE_MS // 2)
    assert send(client, 1_000)[0] == ErrorCode.kafka_storage_error
    client.harness.clock.step_ms(1_000 * FORGETTABLE_MS)
    client.harness.housekeep()
    assert send(client, 1_000)[0] == ErrorCode.kafka_storage_error
    assert send(client, 0) == (0, None)  # known, and stored once
    assert len(client.harness.fetch("t", 0)) == MAX


def test_ids_are_not_given_away_while_new_producers_would_wait() -> None:
    client = quota_client()
    broker = client.harness.broker
    for number in range(MAX):
        send(client, number)
    assert ask_id(client) == ErrorCode.coordinator_load_in_progress
    age(client, FORGETTABLE_MS)
    assert ask_id(client) == 0
    assert broker.collect_metrics().producers_refused == {"count": 1}


def test_an_address_has_a_share_of_new_producers() -> None:
    """Others have theirs, and after a while it may go on."""
    client = quota_client(producer_count_max=2 * BURST)
    producers = client.harness.broker.producers
    producers.address = "10.0.0.1"
    assert all(producers.admit(0, number, 0) is None for number in range(BURST))
    code, message = send(client, 1)
    assert code == ErrorCode.kafka_storage_error
    assert message is not None
    assert f"{PER_S} a second" in message
    assert not producers.may_allocate("10.0.0.1")
    assert producers.may_allocate("10.0.0.2")
    producers.address = "10.0.0.2"
    assert send(client, 1)[0] == 0
    producers.address = "10.0.0.1"
    client.harness.pass_ms(1_000)
    admitted = [producers.admit(0, number, 0) is None for number in range(PER_S + 1)]
    assert admitted == [True] * PER_S + [False]
    assert client.harness.broker.collect_metrics().producers_refused == {"address": 3}


def test_a_producer_that_waits_begins_with_its_first_batch() -> None:
    """A later one that is in flight is not taken for it when there is room, or it would be lost.

    If the first one does not come again, its client has given it up.
    """
    client = quota_client(producer_count_max=2 * BURST)
    producers = client.harness.broker.producers
    for number in range(BURST):
        producers.admit(0, number, 0)
    refusal = ErrorCode.kafka_storage_error
    for producer_id in (FIRST_ID, SECOND_ID):
        assert [send(client, producer_id, number)[0] for number in range(3)] == [refusal] * 3
    client.harness.pass_ms(1_000)
    code, message = send(client, FIRST_ID, 1)
    assert (code, message) == (
        refusal,
        f"sequence 0 of producer {FIRST_ID} was refused: send it first",
    )
    assert [send(client, FIRST_ID, number)[0] for number in range(3)] == [0] * 3
    client.harness.pass_ms(WAIT_MS)
    assert send(client, SECOND_ID, 1)[0] == 0


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "kill"])
def test_a_start_keeps_those_that_were_active_last(is_clean: bool) -> None:
    """From a checkpoint or from the log: it remembers no more than the limit either."""
    client = quota_client(producer_count_max=5 * MAX)
    for number in range(2 * MAX):
        send(client, number, partition=number % 2)
    client.harness.flush()
    before = client.harness
    if is_clean:
        before.broker.close()
    disk = before.disk if is_clean else before.disk.crashed("killed", random.Random(1))
    smaller = small_config(producer_count_max=MAX)
    client = WireClient(BrokerHarness(disk, before.clock, smaller))
    assert send(client, 2 * MAX - 1, 1, partition=1)[0] == 0
    age(client, FORGETTABLE_MS)
    assert send(client, 1_000)[0] == 0
    assert client.harness.broker.gauges(0).producers <= MAX
    assert {1_000, 2 * MAX - 2} <= set(remembered(client))
    assert 2 * MAX - 1 in remembered(client, 1)


def test_a_lower_limit_forgets_none_that_may_send_again() -> None:
    """Those that a checkpoint restores stay until they are idle."""
    client = quota_client(producer_count_max=5 * MAX)
    for number in range(MAX):
        send(client, number)
    age(client, 2 * MS_PER_HOUR)  # a store keeps no age before the first hour
    for number in range(MAX, 2 * MAX + 5):
        send(client, number)
    before = client.harness
    before.flush()
    take_checkpoint(before)
    before.broker.close()
    smaller = small_config(producer_count_max=MAX)
    client = WireClient(BrokerHarness(before.disk, before.clock, smaller))
    assert client.harness.broker.gauges(0).producers == 2 * MAX + 5
    age(client, 0)
    assert send(client, 1_000)[0] == ErrorCode.kafka_storage_error
    assert [send(client, number)[0] for number in range(MAX, 2 * MAX + 5)] == [0] * (MAX + 5)
    assert remembered(client) == list(range(MAX, 2 * MAX + 5))


def test_a_lower_limit_forgets_none_for_those_behind_a_checkpoint() -> None:
    client = quota_client(producer_count_max=5 * MAX)
    for number in range(2 * MAX):
        send(client, number)
    before = client.harness
    before.flush()
    take_checkpoint(before)
    send(client, 1_000)
    before.flush()
    disk = before.disk.crashed("killed", random.Random(1))
    smaller = small_config(producer_count_max=MAX)
    client = WireClient(BrokerHarness(disk, before.clock, smaller))
    assert remembered(client) == [*range(2 * MAX), 1_000]
    offset = client.harness.partition().next_offset
    assert send(client, 0)[0] == 0
    assert client.harness.partition().next_offset == offset, "a resend is stored once"


def test_one_address_does_not_make_the_broker_forget_who_waits_elsewhere() -> None:
    client = quota_client()
    client.harness.create_topic("u", 1)
    for number in range(MAX):
        batch = make_batch([Raw(b"")], producer_id=number, producer_epoch=0, base_sequence=0)
        assert client.produce("u", 0, batch).error_code == 0
    producers = client.harness.broker.producers
    producers.address = "10.0.0.1"
    assert send(client, FIRST_ID, 0)[0] == ErrorCode.kafka_storage_error
    producers.address = "10.0.0.2"
    for number in range(1_500):
        send(client, 10_000 + number)
    client.harness.delete_topic("u")  # makes room
    producers.address = "10.0.0.1"
    assert send(client, FIRST_ID, 1)[0] == ErrorCode.kafka_storage_error
    assert [send(client, FIRST_ID, number)[0] for number in range(2)] == [0, 0]


def test_that_producers_are_forgotten_is_said_once_an_hour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At the limit it may be so for ever."""
    client = quota_client()
    for number in range(3 * MAX):
        if number >= MAX:
            age(client, FORGETTABLE_MS // 4)
        send(client, number)
    metrics = client.harness.broker.collect_metrics()
    lines = [each.getMessage() for each in caplog.records if "forgotten" in each.getMessage()]
    assert metrics.producers_forgotten >= MAX
    hours = client.harness.now_ms() // MS_PER_HOUR
    assert 1 <= len(lines) <= hours + 1 < metrics.producers_forgotten


def test_the_producers_of_a_deleted_topic_do_not_count() -> None:
    client = quota_client()
    for number in range(MAX):
        send(client, number)
    client.harness.broker.topics.delete("t")
    client.harness.create_topic("t", 2)
    assert client.harness.broker.gauges(0).producers == 0
    assert send(client, 1_000)[0] == 0


def test_expiry_takes_what_is_expired_and_looks_at_nothing_else() -> None:
    """In slices, whichever partitions they are on."""
    client = quota_client(producer_count_max=100_000)
    for number in range(3 * MAX):
        send(client, number, partition=number % 2)
    table = client.harness.broker._store.state.projections.producers
    age(client, client.harness.config.producer_id_expiry_ms // 2)
    for number in range(MAX):
        send(client, number, 1, partition=number % 2)
    oldest_pos = table.oldest_pos
    assert table.forget_below(oldest_pos - 1, 1_000) == 0
    assert table.forget_below(oldest_pos, 1_000) == 1
    age(client, client.harness.config.producer_id_expiry_ms // 2)
    assert remembered(client) == list(range(0, MAX, 2))
    assert remembered(client, 1) == list(range(1, MAX, 2))
