"""kafka-python as the other end of the wire: it encodes requests and decodes responses.

Its codec is generated from Kafka's own message definitions and shares no code with ours.
"""

import warnings
from typing import Any, Final

from compat.kafka import dispatch
from compat.kafka.node import Node

with warnings.catch_warnings():
    # It reads its definitions with a deprecated function.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.admin import (  # type: ignore[import-untyped]
        AlterConfigsRequest,
        AlterConfigsResponse,
        CreatePartitionsRequest,
        CreatePartitionsResponse,
        CreateTopicsRequest,
        CreateTopicsResponse,
        DeleteRecordsRequest,
        DeleteRecordsResponse,
        DeleteTopicsRequest,
        DeleteTopicsResponse,
        DescribeClusterRequest,
        DescribeClusterResponse,
        DescribeConfigsRequest,
        DescribeConfigsResponse,
        DescribeLogDirsRequest,
        DescribeLogDirsResponse,
        DescribeProducersRequest,
        DescribeProducersResponse,
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
    )
    from kafka.protocol.consumer import (  # type: ignore[import-untyped]
        FetchRequest,
        FetchResponse,
        ListOffsetsRequest,
        ListOffsetsResponse,
        OffsetCommitRequest,
        OffsetCommitResponse,
        OffsetDeleteRequest,
        OffsetDeleteResponse,
        OffsetFetchRequest,
        OffsetFetchResponse,
        OffsetForLeaderEpochRequest,
        OffsetForLeaderEpochResponse,
    )
    from kafka.protocol.metadata import (  # type: ignore[import-untyped]
        ApiVersionsRequest,
        ApiVersionsResponse,
        FindCoordinatorRequest,
        FindCoordinatorResponse,
        MetadataRequest,
        MetadataResponse,
    )
    from kafka.protocol.producer import (  # type: ignore[import-untyped]
        InitProducerIdRequest,
        InitProducerIdResponse,
        ProduceRequest,
        ProduceResponse,
    )
    from kafka.protocol.sasl import (  # type: ignore[import-untyped]
        SaslHandshakeRequest,
        SaslHandshakeResponse,
    )

__all__ = [
    "AlterConfigsRequest",
    "AlterConfigsResponse",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "CreatePartitionsRequest",
    "CreatePartitionsResponse",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
    "DescribeClusterRequest",
    "DescribeClusterResponse",
    "DescribeConfigsRequest",
    "DescribeConfigsResponse",
    "DescribeLogDirsRequest",
    "DescribeLogDirsResponse",
    "DescribeProducersRequest",
    "DescribeProducersResponse",
    "FetchRequest",
    "FetchResponse",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "MetadataRequest",
    "MetadataResponse",
    "OffsetCommitRequest",
    "OffsetCommitResponse",
    "OffsetDeleteRequest",
    "OffsetDeleteResponse",
    "OffsetFetchRequest",
    "OffsetFetchResponse",
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
    "ProduceRequest",
    "ProduceResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "ask",
    "decode_response",
    "encode_request",
]

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
    if isinstance(answer, bytes):
        return answer
    payloads: list[bytes] = []
    answer.when_complete(payloads.append)
    (payload,) = payloads
    return payload


def ask(node: Node, request: Any, version: int, response_class: Any) -> Any:
    """Send a request through the control plane and return kafka-python's view of the response."""
    payload = answer_now(node, encode_request(request, version, correlation_id=12345))
    response = decode_response(response_class, version, payload)
    assert response.header.correlation_id == 12345
    return response
