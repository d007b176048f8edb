"""What each API answers on a slave: as the table says, for each item, and nothing changes."""

import dataclasses
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from _core.paths.answer import Reply
from appliance.errors import RemoteProtocolError
from appliance.model import Endpoint
from appliance.routes import Member, Routes
from compat.kafka import dispatch
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.registry import Api
from compat.kafka.protocol.wire import read_key_and_version
from tests.support.harness.configs import small_config
from tests.support.harness.memory_broker import MemoryBroker, memory_node
from tests.support.oracles.kafka_oracle import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MetadataRequest,
    MetadataResponse,
    ask,
)
from tests.support.oracles.response_oracle import decode_any_response
from tests.unit.kafka.test_control_fuzz import CONTROL_APIS, SAMPLE_COUNT, samples

CODES = {each.name.upper(): each.value for each in ErrorCode}
REFUSED = [api for api in CONTROL_APIS if api.on_slave.says in CODES]
MASTER = Member(1, Endpoint("10.0.0.1", 9092, "a"))
SLAVE = Member(2, Endpoint("10.0.0.2", 9093))


def slave_routes(*, is_open: bool = True) -> Routes:
    return Routes(SLAVE, leads=False, peer=MASTER, is_peer_in_sync=True, is_open=is_open)


def some_broker() -> MemoryBroker:
    broker = MemoryBroker(small_config())
    broker.topics.create("t", 2, {}).partitions[0].append(1, 2, 3)
    broker.change_count = 0
    return broker


def error_codes(value: Any) -> Iterator[int]:
    """Every error code in a response."""
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, dict):
        for name, item in value.items():
            if name == "error_code":
                yield int(item)
            else:
                yield from error_codes(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from error_codes(item)


def test_every_api_that_writes_or_coordinates_is_refused() -> None:
    served = {api.name for api in CONTROL_APIS} - {api.name for api in REFUSED}
    assert served == {
        "InitProducerId",  # closes the connection
        "AlterReplicaLogDirs",  # there is one directory: it changes nothing
        "ApiVersions",
        "DescribeCluster",
        "DescribeConfigs",
        "DescribeLogDirs",
        "FindCoordinator",
        "ListGroups",
        "Metadata",
        "SaslHandshake",
    }


@pytest.mark.parametrize("api", REFUSED, ids=lambda api: api.name)
def test_each_item_has_the_error_of_the_table(api: Api) -> None:
    for frame in samples(api, SAMPLE_COUNT):
        _, version, _ = read_key_and_version(frame)
        broker = some_broker()
        replies: list[Reply] = []
        answer = dispatch.answer(memory_node(broker, slave_routes()), frame)
        if isinstance(answer, Reply):
            replies.append(answer)
        else:
            answer.when_complete(replies.append)
        (reply,) = replies
        payload = reply.payload
        data = payload if isinstance(payload, bytes) else b"".join(payload)
        found = set(error_codes(decode_any_response(api.key, version, data)))
        assert found == {CODES[api.on_slave.says]}, f"version {version}"
        assert broker.change_count == 0


@pytest.mark.parametrize("api", CONTROL_APIS, ids=lambda api: api.name)
def test_no_request_changes_anything(api: Api) -> None:
    for frame in samples(api, SAMPLE_COUNT):
        broker = some_broker()
        with suppress(RemoteProtocolError):
            answer = dispatch.answer(memory_node(broker, slave_routes()), frame)
            if not isinstance(answer, Reply):
                answer.when_complete(lambda _: None)
        assert broker.change_count == 0
        assert [each.name for each in broker.topics.all()] == ["t"]
        assert broker.groups.groups == {}


def test_connection_is_closed_that_asks_for_a_producer_id() -> None:
    """After an error librdkafka would ask the same broker without end."""
    node = memory_node(some_broker(), slave_routes())
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    with pytest.raises(RemoteProtocolError, match="ask the master"):
        ask(node, request, 1, InitProducerIdResponse)


def test_metadata_names_both_nodes_and_the_master_as_leader() -> None:
    node = memory_node(some_broker(), slave_routes())
    answer = ask(node, MetadataRequest(topics=None), 5, MetadataResponse)
    brokers = {each.node_id: (each.host, each.port, each.rack) for each in answer.brokers}
    assert brokers == {1: ("10.0.0.1", 9092, "a"), 2: ("10.0.0.2", 9093, None)}
    assert answer.controller_id == 1
    for topic in answer.topics:
        for each in topic.partitions:
            assert (each.error_code, each.leader_id) == (0, 1)
            assert (each.replica_nodes, each.isr_nodes) == ([1, 2], [1, 2])


def test_metadata_without_a_master_says_that_there_is_no_leader_and_keeps_its_address() -> None:
    node = memory_node(some_broker(), slave_routes(is_open=False))
    answer = ask(node, MetadataRequest(topics=None), 5, MetadataResponse)
    assert {each.node_id for each in answer.brokers} == {1, 2}
    assert answer.controller_id == -1
    for topic in answer.topics:
        for each in topic.partitions:
            assert each.error_code == ErrorCode.leader_not_available
            assert each.leader_id == -1


def test_master_that_may_not_accept_names_no_leader() -> None:
    node = memory_node(some_broker(), Routes(MASTER, may_lead=lambda: False))
    answer = ask(node, MetadataRequest(topics=None), 5, MetadataResponse)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.leader_not_available


@pytest.mark.parametrize("leads", [True, False])
def test_two_nodes_of_one_address_are_one_broker(leads: bool) -> None:
    master, slave = (Member(node_id, Endpoint("queue.example", 9092)) for node_id in (1, 2))
    routes = Routes(master, peer=slave) if leads else Routes(slave, leads=False, peer=master)
    answer = ask(
        memory_node(some_broker(), routes), MetadataRequest(topics=[]), 5, MetadataResponse
    )
    assert [each.node_id for each in answer.brokers] == [1]
    assert answer.controller_id == 1


def test_topic_that_a_master_would_create_is_not_created() -> None:
    broker = some_broker()
    topic = MetadataRequest.MetadataRequestTopic(name="new")
    node = memory_node(broker, slave_routes())
    request = MetadataRequest(topics=[topic], allow_auto_topic_creation=False)
    answer = ask(node, request, 5, MetadataResponse)
    assert answer.topics[0].error_code == ErrorCode.unknown_topic_or_partition
    request = MetadataRequest(topics=[topic], allow_auto_topic_creation=True)
    with pytest.raises(RemoteProtocolError, match="ask the master"):
        ask(node, request, 5, MetadataResponse)
    assert broker.change_count == 0


@pytest.mark.parametrize("is_open", [True, False])
def test_master_is_the_coordinator_and_the_controller_if_it_is_heard(is_open: bool) -> None:
    node = memory_node(some_broker(), slave_routes(is_open=is_open))
    answer = ask(node, FindCoordinatorRequest(key="g", key_type=0), 1, FindCoordinatorResponse)
    found = answer.error_code, answer.node_id, answer.host, answer.port
    wanted = (0, 1, "10.0.0.1", 9092)
    assert found == (wanted if is_open else (ErrorCode.coordinator_not_available, -1, "", -1))
    cluster = ask(node, DescribeClusterRequest(), 0, DescribeClusterResponse)
    assert cluster.controller_id == (1 if is_open else -1)
    assert {each.broker_id for each in cluster.brokers} == {1, 2}


def test_slave_coordinates_no_group() -> None:
    broker = some_broker()
    node = memory_node(broker, slave_routes())
    answer = ask(node, ListGroupsRequest(), 0, ListGroupsResponse)
    assert (answer.error_code, answer.groups) == (0, [])
