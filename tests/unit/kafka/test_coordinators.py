"""FindCoordinator and InitProducerId: groups are here, what does not exist is refused."""

from typing import Any

import pytest

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.memory_broker import MemoryBroker, memory_node
from tests.support.oracles.kafka_oracle import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ask,
)

GROUP, TRANSACTION, SHARE_GROUP = 0, 1, 2
REFUSALS = {
    TRANSACTION: (
        ErrorCode.transactional_id_authorization_failed,
        "transactions are not supported yet",
    ),
    SHARE_GROUP: (ErrorCode.invalid_request, "key type 2"),
}


@pytest.mark.parametrize("version", range(7))
def test_this_broker_coordinates_every_group(version: int) -> None:
    request = FindCoordinatorRequest(key="k", key_type=GROUP, coordinator_keys=["k", ""])
    response = ask(memory_node(MemoryBroker()), request, version, FindCoordinatorResponse)
    answers = response.coordinators if version >= 4 else [response]
    if version >= 4:
        assert [answer.key for answer in answers] == ["k", ""]
    for answer in answers:
        assert answer.error_code == ErrorCode.none
        assert (answer.node_id, answer.host, answer.port) == (1, "127.0.0.1", 9092)
        if version >= 1:
            assert answer.error_message is None


@pytest.mark.parametrize("key_type", REFUSALS)
@pytest.mark.parametrize("version", range(1, 7))
def test_there_is_no_coordinator_of_anything_else(version: int, key_type: int) -> None:
    request = FindCoordinatorRequest(key="k", key_type=key_type, coordinator_keys=["k", "l"])
    response = ask(memory_node(MemoryBroker()), request, version, FindCoordinatorResponse)
    answers = response.coordinators if version >= 4 else [response]
    if version >= 4:
        assert [answer.key for answer in answers] == ["k", "l"]
    error_code, message = REFUSALS[key_type]
    for answer in answers:
        assert answer.error_code == error_code
        assert (answer.node_id, answer.host, answer.port) == (-1, "", -1)
        assert message in answer.error_message


def init(broker: MemoryBroker, version: int, **fields: Any) -> Any:
    request = InitProducerIdRequest(transaction_timeout_ms=1000, **fields)
    return ask(memory_node(broker), request, version, InitProducerIdResponse)


@pytest.mark.parametrize("version", range(6))
def test_producer_ids_are_never_given_twice(version: int) -> None:
    broker = MemoryBroker()
    answers = [init(broker, version, transactional_id=None) for _ in range(3)]
    assert [(answer.error_code, answer.producer_epoch) for answer in answers] == [(0, 0)] * 3
    assert len({answer.producer_id for answer in answers}) == 3


@pytest.mark.parametrize("version", range(3, 6))
def test_an_id_that_the_client_has_already_is_replaced(version: int) -> None:
    broker = MemoryBroker()
    first = init(broker, version, transactional_id=None).producer_id
    again = init(broker, version, transactional_id=None, producer_id=first, producer_epoch=3)
    assert (again.error_code, again.producer_epoch) == (0, 0)
    assert again.producer_id != first


def test_a_broker_that_cannot_store_the_next_id_says_so() -> None:
    broker = MemoryBroker()
    broker.is_full = True
    answer = init(broker, 5, transactional_id=None)
    assert (answer.error_code, answer.producer_id) == (ErrorCode.kafka_storage_error, -1)


@pytest.mark.parametrize("transactional_id", ["", "t"])
@pytest.mark.parametrize("version", range(6))
def test_a_transactional_id_is_refused(version: int, transactional_id: str) -> None:
    answer = init(MemoryBroker(), version, transactional_id=transactional_id)
    assert answer.error_code == ErrorCode.transactional_id_authorization_failed
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
