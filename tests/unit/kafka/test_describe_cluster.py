"""DescribeCluster and SaslHandshake: what there is one of, and what there is none of."""

import pytest

from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.clients.wire_client import WireClient
from tests.support.harness.memory_broker import MemoryBroker, memory_node
from tests.support.oracles.kafka_oracle import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
    ask,
)

BROKERS, CONTROLLERS = 1, 2


@pytest.mark.parametrize("version", range(3))
def test_the_one_broker_is_reported(version: int) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    node = memory_node(MemoryBroker())
    answer = ask(node, request, version, DescribeClusterResponse)
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, "memory-cluster", 1)
    (broker,) = answer.brokers
    assert (broker.broker_id, broker.host, broker.port, broker.rack) == (1, "127.0.0.1", 9092, None)
    assert answer.authorized_operations is None  # not known
    if version >= 1:
        assert answer.endpoint_type == BROKERS
    if version >= 2:
        assert not broker.is_fenced


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("endpoint_type", "error_code", "words"),
    [
        (CONTROLLERS, ErrorCode.mismatched_endpoint_type, "not a controller"),
        (0, ErrorCode.unsupported_endpoint_type, "type 0"),
        (-1, ErrorCode.unsupported_endpoint_type, "type -1"),
    ],
)
def test_other_kinds_of_endpoints_are_refused(
    version: int, endpoint_type: int, error_code: ErrorCode, words: str
) -> None:
    request = DescribeClusterRequest(
        include_cluster_authorized_operations=False, endpoint_type=endpoint_type
    )
    answer = ask(memory_node(MemoryBroker()), request, version, DescribeClusterResponse)
    assert (answer.error_code, answer.brokers) == (error_code, [])
    assert words in answer.error_message


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", ""])
def test_no_way_to_authenticate_is_offered_and_the_connection_goes_on(
    client: WireClient, version: int, mechanism: str
) -> None:
    request = SaslHandshakeRequest(mechanism=mechanism)
    for _ in range(2):
        answer = client.ask(request, version, SaslHandshakeResponse)
        assert answer.error_code == ErrorCode.unsupported_sasl_mechanism
        assert answer.mechanisms == []
    assert client.fetch("t", 0).error_code == 0
