"""OffsetForLeaderEpoch: where the records of an epoch end, so that a consumer notices a loss."""

import random
from typing import Any

import pytest

from appliance.store.queue import consume_queue, unit_reader
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.oracles.kafka_oracle import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from tests.support.simulator.virtual_clock import FIRST_EPOCH
from tests.support.values.raw_batch import Raw, make_batch
from tests.support.values.topic_requests import delete_records

VERSIONS = range(2, 5)
NOTHING = (0, -1, -1)
E0, E1, E2, E3, E4 = range(FIRST_EPOCH, FIRST_EPOCH + 5)
"""The epochs of one start after another."""


def ask_ends(
    client: WireClient,
    topic: str,
    parts: list[tuple[int, int]],
    *,
    version: int = 4,
    client_epoch: int = -1,
) -> list[tuple[int, int, int]]:
    """Error code, epoch and end offset for each partition and epoch."""
    kind = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    request = OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            kind(
                topic=topic,
                partitions=[
                    kind.OffsetForLeaderPartition(
                        partition=index, current_leader_epoch=client_epoch, leader_epoch=epoch
                    )
                    for index, epoch in parts
                ],
            )
        ],
    )
    (answer,) = client.ask(request, version, OffsetForLeaderEpochResponse).topics
    assert answer.topic == topic
    assert [part.partition for part in answer.partitions] == [index for index, _ in parts]
    return [(part.error_code, part.leader_epoch, part.end_offset) for part in answer.partitions]


def end_of(client: WireClient, epoch: int, partition: int = 0, **how: Any) -> tuple[int, int, int]:
    (answer,) = ask_ends(client, "t", [(partition, epoch)], **how)
    return answer


def fill(client: WireClient, count: int, partition: int = 0) -> None:
    batch = make_batch([Raw(b"x") for _ in range(count)])
    assert client.produce("t", partition, batch).error_code == 0


def crash(client: WireClient) -> WireClient:
    """The next epoch begins."""
    epoch = client.harness.broker.epoch
    harness = client.harness.crash("kept", random.Random(1))
    assert harness.broker.epoch == epoch + 1
    return WireClient(harness)


@pytest.fixture
def epochs(client: WireClient) -> WireClient:
    """Epochs E0 to E3: partition 0 got 3, 4, 0 and 5 records in them; partition 1 got 2 in E2."""
    fill(client, 3)
    client = crash(client)
    fill(client, 4)
    client = crash(client)
    fill(client, 2, partition=1)
    client = crash(client)
    fill(client, 5)
    return client


@pytest.mark.parametrize("version", VERSIONS)
def test_an_epoch_ends_where_the_next_one_begins(epochs: WireClient, version: int) -> None:
    parts = [(index, epoch) for index in (0, 1) for epoch in (E0, E1, E2, E3, E4)]
    found = [ask_ends(epochs, "t", [part], version=version)[0] for part in parts]
    assert found == [
        (0, E0, 3),
        (0, E1, 7),
        (0, E2, 7),
        (0, E3, 12),
        NOTHING,
        (0, E0, 0),
        (0, E1, 0),
        (0, E2, 2),
        (0, E3, 2),
        NOTHING,
    ]


def test_a_partition_that_is_named_twice_is_refused(epochs: WireClient) -> None:
    found = ask_ends(epochs, "t", [(0, E0), (1, E0), (0, E1)])
    refused = (ErrorCode.invalid_request, -1, -1)
    assert found == [refused, (0, E0, 0), refused]


def test_a_clean_restart_begins_an_epoch(epochs: WireClient) -> None:
    """A restored copy looks like a clean stop."""
    again = WireClient(epochs.harness.restart())
    assert end_of(again, E1) == (0, E1, 7)
    assert end_of(again, E3) == (0, E3, 12)
    assert end_of(again, E4) == (0, E4, 12)
    fill(again, 1)
    assert end_of(again, E3) == (0, E3, 12)
    assert end_of(again, E4) == (0, E4, 13)
    assert end_of(again, E4 + 1) == NOTHING


def test_an_epoch_that_never_was_ends_where_the_one_before_it_ends(epochs: WireClient) -> None:
    """Epochs that a start passes over, since time went on, belong to the one before."""
    epochs.harness.clock.advance_ms(1_000_000)
    again = WireClient(epochs.harness.restart())
    assert again.harness.broker.epoch == FIRST_EPOCH + 1000
    assert end_of(again, E3 + 10) == (0, E3, 12)
    assert end_of(again, E0 - 1) == (0, E0 - 1, 0)
    assert end_of(again, FIRST_EPOCH + 1000) == (0, FIRST_EPOCH + 1000, 12)
    assert end_of(again, FIRST_EPOCH + 1001) == NOTHING


def test_an_end_is_never_before_the_start(epochs: WireClient) -> None:
    """What was deleted cannot be asked for; epochs that lie before it end at the start."""
    assert delete_records(epochs, "t", (0, 5)) == {0: (0, 5)}
    assert end_of(epochs, E0) == (0, E0, 5)
    assert end_of(epochs, E1) == (0, E1, 7)


def test_ends_lie_between_delivered_and_produced_records(client: WireClient) -> None:
    later = make_batch([Raw(b"x", headers=((b"x-delay", b"1000"),))])
    assert client.produce("t", 0, later).error_code == 0
    fill(client, 1)
    client = crash(client)
    client.harness.tick(1000)  # the delivery belongs to the epoch in which it is written
    assert end_of(client, E0) == (0, E0, 1)
    assert end_of(client, E1) == (0, E1, 2)


def test_many_batches_and_files_of_units_are_searched(
    client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume_queue, "UNITS_PER_FILE", 1000)
    monkeypatch.setattr(unit_reader, "UNITS_PER_FILE", 1000)
    ends = []
    for _ in range(4):
        for _ in range(40):
            fill(client, 30)
        client.harness.housekeep()
        ends.append(client.harness.broker.topics.all()[0].partitions[0].next_offset)
        client = crash(client)
    assert [end_of(client, epoch)[2] for epoch in (E0, E1, E2, E3, E4)] == [*ends, ends[-1]]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_of_another_epoch_gets_an_error(epochs: WireClient, version: int) -> None:
    fenced = (int(ErrorCode.fenced_leader_epoch), -1, -1)
    unknown = (int(ErrorCode.unknown_leader_epoch), -1, -1)
    assert end_of(epochs, E1, version=version, client_epoch=E2) == fenced
    assert end_of(epochs, E1, version=version, client_epoch=E4) == unknown
    assert end_of(epochs, E1, version=version, client_epoch=E3) == (0, E1, 7)


def test_what_does_not_exist_is_refused(epochs: WireClient) -> None:
    unknown = (int(ErrorCode.unknown_topic_or_partition), -1, -1)
    assert ask_ends(epochs, "none", [(0, 0)]) == [unknown]
    assert ask_ends(epochs, "t", [(2, 0), (-1, 0), (0, -1)]) == [unknown, unknown, NOTHING]


def test_a_new_topic_knows_the_epochs_before_it() -> None:
    """A consumer of a topic of that name that was deleted learns that nothing is left."""
    client = WireClient(BrokerHarness())
    client.harness.create_topic("t", 1)
    fill(client, 3)
    client = crash(client)
    client.harness.delete_topic("t")
    client.harness.create_topic("t", 1)
    assert end_of(client, E0) == (0, E0, 0)
