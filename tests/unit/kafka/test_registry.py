"""The table of APIs: what clients need to find in it, and that nothing contradicts it."""

import pytest
from kio.index import load_request_schema, load_response_schema

from appliance.errors import RemoteProtocolError
from compat.kafka import dispatch
from compat.kafka.protocol.registry import SERVED, Api, Registry, handles
from tests.support.harness.memory_broker import MemoryBroker, memory_node

APIS = dispatch.REGISTRY.apis


def test_advertised_versions_are_these() -> None:
    """A change of the public surface is made on purpose.

    librdkafka before 2.11.1 (kcat in Debian 12 has 2.0.2) knows a feature by single versions, old
    ones among them: Produce 0, 3 and 7, Fetch 4 and 10, ListOffsets 1, OffsetCommit 2, OffsetFetch
    1, and 0 of the APIs of groups, InitProducerId, SaslHandshake and ApiVersions. aiokafka and
    KafkaJS end where @platformatic/kafka begins.
    """
    assert {api.key: (api.name, *api.versions) for api in APIS} == {
        0: ("Produce", 0, 11),
        1: ("Fetch", 4, 17),
        2: ("ListOffsets", 1, 9),
        3: ("Metadata", 0, 12),
        8: ("OffsetCommit", 2, 9),
        9: ("OffsetFetch", 1, 9),
        10: ("FindCoordinator", 0, 6),
        11: ("JoinGroup", 0, 9),
        12: ("Heartbeat", 0, 4),
        13: ("LeaveGroup", 0, 5),
        14: ("SyncGroup", 0, 5),
        15: ("DescribeGroups", 0, 6),
        16: ("ListGroups", 0, 5),
        17: ("SaslHandshake", 0, 1),
        18: ("ApiVersions", 0, 4),
        19: ("CreateTopics", 2, 7),
        20: ("DeleteTopics", 1, 6),
        21: ("DeleteRecords", 0, 2),
        22: ("InitProducerId", 0, 5),
        23: ("OffsetForLeaderEpoch", 2, 4),
        32: ("DescribeConfigs", 1, 4),
        33: ("AlterConfigs", 0, 2),
        34: ("AlterReplicaLogDirs", 1, 2),
        35: ("DescribeLogDirs", 1, 4),
        37: ("CreatePartitions", 0, 3),
        42: ("DeleteGroups", 0, 2),
        43: ("ElectLeaders", 0, 2),
        46: ("ListPartitionReassignments", 0, 0),
        47: ("OffsetDelete", 0, 0),
        44: ("IncrementalAlterConfigs", 0, 1),
        60: ("DescribeCluster", 0, 2),
        61: ("DescribeProducers", 0, 0),
    }


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_flexible_versions_agree_with_kafkas_definitions(api: Api) -> None:
    for version in range(api.served_from, api.versions[1] + 1):
        for schema in (load_request_schema, load_response_schema):
            assert schema(api.key, version).__flexible__ == api.is_flexible(version)


@pytest.mark.parametrize(
    ("key", "version"), [(3, 13), (3, -1), (0, 2), (1, 3), (2, 0), (4, 0), (-1, 0), (32767, 0)]
)
def test_what_is_not_served_closes_the_connection(key: int, version: int) -> None:
    frame = key.to_bytes(2, signed=True) + version.to_bytes(2, signed=True) + bytes(100)
    with pytest.raises(RemoteProtocolError, match="not served"):
        dispatch.answer(memory_node(MemoryBroker()), frame)
    with pytest.raises(RemoteProtocolError, match="not served"):
        dispatch.read_header(frame)


def test_produce_and_fetch_have_headers_here_and_answers_elsewhere() -> None:
    frame = b"\x00\x01\x00\x0c\x00\x00\x00\x09\xff\xff\x00" + bytes(100)
    header, body_pos = dispatch.read_header(frame)
    assert (header.correlation_id, body_pos) == (9, 11)
    with pytest.raises(RemoteProtocolError, match="not a control-plane request"):
        dispatch.answer(memory_node(MemoryBroker()), frame)


def test_a_registry_finds_by_key_and_version_and_lists_by_key() -> None:
    @handles(key=60, name="B", versions=(1, 2), flexible_from=0, needs=None, on_slave=SERVED)
    def second(node: object, version: int, request: object) -> bytes:
        return b""

    @handles(key=42, name="A", versions=(0, 0), flexible_from=0, needs=None, on_slave=SERVED)
    def first(node: object, version: int, request: object) -> bytes:
        return b""

    registry = Registry([second, first])
    assert registry.apis == (first, second)
    assert registry.find(60, 2) is second
    assert registry.find(60, 0) is None
    assert registry.find_key(60) is second
    assert registry.find_key(61) is None
