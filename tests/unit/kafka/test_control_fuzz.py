"""Whatever bytes arrive: an answer with the right correlation id, or RemoteProtocolError."""

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import RemoteProtocolError
from compat.kafka import dispatch
from compat.kafka.protocol.registry import Api
from tests.support.clients.offsets_client import (
    Commit,
    commit_request,
    delete_request,
    fetch_request,
)
from tests.support.harness.configs import small_config
from tests.support.harness.memory_broker import MemoryBroker, memory_node
from tests.support.oracles.kafka_oracle import (
    AlterConfigsRequest,
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    SaslHandshakeRequest,
    encode_request,
)
from tests.support.values.group_requests import (
    DeleteGroupsRequest,
    describe_request,
    heartbeat_request,
    join_request,
    leave_request,
    list_request,
    sync_request,
)

CONTROL_APIS = [api for api in dispatch.REGISTRY.apis if api.handler is not None]
MUTATION_COUNT = 150
LONG_MS = 1 << 40
OFFSETS = {("t", 0): Commit(1, "m"), ("t", 1): Commit(2, None), ("u", 0): Commit(3)}

NewTopic = CreateTopicsRequest.CreatableTopic
OffsetTopic = ListOffsetsRequest.ListOffsetsTopic
AddedPartitions = CreatePartitionsRequest.CreatePartitionsTopic
ChangedConfig = AlterConfigsRequest.AlterConfigsResource.AlterableConfig
StepConfig = IncrementalAlterConfigsRequest.AlterConfigsResource.AlterableConfig
SAMPLES: dict[int, Callable[[], object]] = {
    2: lambda: ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        topics=[
            OffsetTopic(
                name="t",
                partitions=[OffsetTopic.ListOffsetsPartition(partition_index=0, timestamp=-1)],
            )
        ],
    ),
    3: lambda: MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in ("t", "u")],
        allow_auto_topic_creation=True,
    ),
    8: lambda: commit_request("g", OFFSETS, member_id="m", instance_id="i", generation=1),
    9: lambda: OffsetFetchRequest(
        group_id="g",
        topics=fetch_request(7, {"g": OFFSETS}).topics,
        groups=fetch_request(9, {"g": OFFSETS, "h": None}).groups,
        require_stable=True,
    ),
    10: lambda: FindCoordinatorRequest(key="k", key_type=0, coordinator_keys=["k", "l"]),
    11: lambda: join_request("g", protocols={"range": b"m", "sticky": b"n"}),
    12: lambda: heartbeat_request("g", "m", 1, "i"),
    13: lambda: leave_request("g", [("m", None), ("n", "i")]),
    14: lambda: sync_request("g", "m", 1, {"m": b"a", "n": b""}, protocol="range"),
    15: lambda: describe_request("g", "h"),
    16: lambda: list_request(["Stable", "Empty"], ["classic"]),
    17: lambda: SaslHandshakeRequest(mechanism="PLAIN"),
    18: lambda: ApiVersionsRequest(client_software_name="a", client_software_version="1"),
    19: lambda: CreateTopicsRequest(
        topics=[
            NewTopic(
                name="n",
                num_partitions=2,
                replication_factor=1,
                configs=[NewTopic.CreatableTopicConfig(name="delay.headers", value="off")],
            ),
            NewTopic(
                name="m",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[
                    NewTopic.CreatableReplicaAssignment(partition_index=0, broker_ids=[1])
                ],
            ),
        ],
        timeout_ms=1,
        validate_only=False,
    ),
    20: lambda: DeleteTopicsRequest(
        topic_names=["t", "u"],
        topics=[DeleteTopicsRequest.DeleteTopicState(name="t", topic_id=None)],
        timeout_ms=1,
    ),
    21: lambda: DeleteRecordsRequest(
        topics=[
            DeleteRecordsRequest.DeleteRecordsTopic(
                name="t",
                partitions=[
                    DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition(
                        partition_index=0, offset=2
                    )
                ],
            )
        ],
        timeout_ms=1,
    ),
    22: lambda: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1),
    23: lambda: OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                topic="t",
                partitions=[
                    OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition(
                        partition=0, current_leader_epoch=-1, leader_epoch=0
                    )
                ],
            )
        ],
    ),
    32: lambda: DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=keys
            )
            for kind, name, keys in ((2, "t", None), (4, "1", ["log.dirs"]), (2, "u", []))
        ],
        include_synonyms=True,
        include_documentation=True,
    ),
    42: lambda: DeleteGroupsRequest(groups_names=["g", "h"]),
    47: lambda: delete_request("g", OFFSETS),
    33: lambda: AlterConfigsRequest(
        resources=[
            AlterConfigsRequest.AlterConfigsResource(
                resource_type=2,
                resource_name="t",
                configs=[ChangedConfig(name="delay.headers", value="off")],
            )
        ],
        validate_only=False,
    ),
    35: lambda: DescribeLogDirsRequest(
        topics=[DescribeLogDirsRequest.DescribableLogDirTopic(topic="t", partitions=[0, 1])]
    ),
    37: lambda: CreatePartitionsRequest(
        topics=[
            AddedPartitions(
                name="t",
                count=3,
                assignments=[AddedPartitions.CreatePartitionsAssignment(broker_ids=[1])],
            )
        ],
        timeout_ms=1,
        validate_only=False,
    ),
    44: lambda: IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=2,
                resource_name="t",
                configs=[
                    StepConfig(name="delay.headers", config_operation=0, value="off"),
                    StepConfig(name="cleanup.policy", config_operation=2, value="delete"),
                ],
            )
        ],
        validate_only=False,
    ),
    60: lambda: DescribeClusterRequest(include_cluster_authorized_operations=False),
    61: lambda: DescribeProducersRequest(
        topics=[DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0, 7])]
    ),
}


def try_frame(frame: bytes) -> bool:
    """Send a frame to a small broker; return whether it was answered."""
    broker = MemoryBroker(small_config(topic_count_max=5))
    broker.topics.create("t", 2, {}).partitions[0].append(1, 2, 3)
    node = memory_node(broker)
    payloads: list[bytes] = []
    try:
        answer = dispatch.answer(node, frame)
    except RemoteProtocolError:
        return False
    if isinstance(answer, bytes):
        payloads.append(answer)
    else:
        answer.when_complete(payloads.append)
        # What still waits is answered when its time is over.
        node.groups.expire(node.now_ms() + LONG_MS)
    (payload,) = payloads
    assert payload[:4] == frame[4:8]
    return True


def samples(api: Api) -> Iterator[bytes]:
    """Yield one good request for every version."""
    for version in range(api.versions[0], api.versions[1] + 1):
        yield encode_request(SAMPLES[api.key](), version)


@pytest.mark.parametrize("api", CONTROL_APIS, ids=lambda api: api.name)
def test_every_truncated_request_is_refused(api: Api) -> None:
    for frame in samples(api):
        assert try_frame(frame)
        for size in range(len(frame)):
            assert not try_frame(frame[:size]), f"answered {frame[:size]!r} of {frame!r}"


@pytest.mark.parametrize("api", CONTROL_APIS, ids=lambda api: api.name)
def test_damaged_requests_do_no_harm(api: Api) -> None:
    seed = 18_000 + api.key
    chance = random.Random(seed)
    for frame in samples(api):
        for _ in range(MUTATION_COUNT):
            damaged = bytearray(frame)
            for _ in range(chance.randrange(1, 4)):
                pos = chance.randrange(4, len(damaged))
                match chance.randrange(3):
                    case 0:
                        damaged[pos] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
                    case 1:
                        damaged[pos] ^= 1 << chance.randrange(8)
                    case _:
                        damaged[pos:pos] = chance.randbytes(chance.randrange(1, 6))
            try:
                try_frame(bytes(damaged))
            except Exception as error:
                raise AssertionError(f"seed {seed}, frame {bytes(damaged).hex()}") from error


@given(
    api=st.sampled_from(CONTROL_APIS),
    version=st.integers(0, 12),
    client_id=st.binary(max_size=3),
    body=st.binary(max_size=80),
)
def test_random_bodies_do_no_harm(api: Api, version: int, client_id: bytes, body: bytes) -> None:
    header = api.key.to_bytes(2) + version.to_bytes(2) + b"\x00\x00\x00\x05"
    try_frame(header + len(client_id).to_bytes(2) + client_id + body)


@given(frame=st.binary(max_size=60))
def test_random_frames_do_no_harm(frame: bytes) -> None:
    try_frame(frame)
