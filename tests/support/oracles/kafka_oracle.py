"""kafka-python as the other end of the wire: it encodes requests and decodes responses.

Its codec is generated from Kafka's own message definitions and shares no code with ours.
"""

import warnings
from importlib import import_module
from typing import Any, Final

from _core.paths.answer import Reply
from compat.kafka import dispatch
from compat.kafka.node import Node


def protocol_module(name: str) -> Any:
    """A module of `kafka.protocol`."""
    with warnings.catch_warnings():
        # kafka-python reads its definitions with a deprecated function.
        warnings.simplefilter("ignore", DeprecationWarning)
        return import_module(f"kafka.protocol.{name}")


def messages_of(module: str, api: str) -> tuple[Any, Any]:
    """The classes of an API's request and response."""
    found = protocol_module(module)
    return getattr(found, f"{api}Request"), getattr(found, f"{api}Response")


AlterConfigsRequest, AlterConfigsResponse = messages_of("admin", "AlterConfigs")
AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse = messages_of(
    "admin", "AlterReplicaLogDirs"
)
CreatePartitionsRequest, CreatePartitionsResponse = messages_of("admin", "CreatePartitions")
CreateTopicsRequest, CreateTopicsResponse = messages_of("admin", "CreateTopics")
DeleteRecordsRequest, DeleteRecordsResponse = messages_of("admin", "DeleteRecords")
DeleteTopicsRequest, DeleteTopicsResponse = messages_of("admin", "DeleteTopics")
DescribeClusterRequest, DescribeClusterResponse = messages_of("admin", "DescribeCluster")
DescribeConfigsRequest, DescribeConfigsResponse = messages_of("admin", "DescribeConfigs")
DescribeLogDirsRequest, DescribeLogDirsResponse = messages_of("admin", "DescribeLogDirs")
DescribeProducersRequest, DescribeProducersResponse = messages_of("admin", "DescribeProducers")
ElectLeadersRequest, ElectLeadersResponse = messages_of("admin", "ElectLeaders")
IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse = messages_of(
    "admin", "IncrementalAlterConfigs"
)
ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse = messages_of(
    "admin", "ListPartitionReassignments"
)
ListGroupsRequest, ListGroupsResponse = messages_of("admin", "ListGroups")
FetchRequest, FetchResponse = messages_of("consumer", "Fetch")
ListOffsetsRequest, ListOffsetsResponse = messages_of("consumer", "ListOffsets")
OffsetCommitRequest, OffsetCommitResponse = messages_of("consumer", "OffsetCommit")
OffsetDeleteRequest, OffsetDeleteResponse = messages_of("consumer", "OffsetDelete")
OffsetFetchRequest, OffsetFetchResponse = messages_of("consumer", "OffsetFetch")
OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse = messages_of(
    "consumer", "OffsetForLeaderEpoch"
)
ApiVersionsRequest, ApiVersionsResponse = messages_of("metadata", "ApiVersions")
FindCoordinatorRequest, FindCoordinatorResponse = messages_of("metadata", "FindCoordinator")
MetadataRequest, MetadataResponse = messages_of("metadata", "Metadata")
InitProducerIdRequest, InitProducerIdResponse = messages_of("producer", "InitProducerId")
ProduceRequest, ProduceResponse = messages_of("producer", "Produce")
SaslHandshakeRequest, SaslHandshakeResponse = messages_of("sasl", "SaslHandshake")

CLIENT_ID: Final = "the-oracle"


def encode_request(request: Any, version: int, correlation_id: int = 7) -> bytes:
    """Return the frame, without its size prefix.

    Args:
        request: an instance of one of kafka-python's request classes.
        version: of the request.
        correlation_id: int32.
    """
    request.API_VERSION = version
    request.with_header(correlation_id=correlation_id, client_id=CLIENT_ID)
    frame: bytes = bytes(request.encode(version=version, header=True))
    return frame


def decode_response(response_class: Any, version: int, payload: bytes) -> Any:
    """Decode a response with its header, and check that every byte was decoded."""
    response = response_class.decode(payload, version=version, header=True)
    is_flexible = response_class.flexible_version_q(version)
    # Decoding bound the class to its version.
    again = response.encode_header(flexible=is_flexible) + response.encode()
    assert bytes(again) == payload, "the response has bytes that the oracle does not know"
    return response


def answer_now(node: Node, frame: bytes) -> bytes:
    """Answer a control-plane request that completes at once."""
    answer = dispatch.answer(node, frame)
    if isinstance(answer, Reply):
        return answer.payload
    replies: list[Reply] = []
    answer.when_complete(replies.append)
    (reply,) = replies
    return reply.payload


def ask(node: Node, request: Any, version: int, response_class: Any) -> Any:
    """Send a request through the control plane and return kafka-python's view of the response."""
    payload = answer_now(node, encode_request(request, version, correlation_id=12345))
    response = decode_response(response_class, version, payload)
    assert response.header.correlation_id == 12345
    return response
