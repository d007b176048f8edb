"""The door to the control plane: one request in, one response out.

All APIs are listed here, also the two that compiled code answers, so that what is advertised and
what is served come from one table. Layer 4; does no I/O.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from appliance.errors import RemoteProtocolError
from compat.kafka import api_18_api_versions, messages
from compat.kafka.api_02_list_offsets import list_offsets
from compat.kafka.api_03_metadata import metadata
from compat.kafka.api_08_offset_commit import offset_commit
from compat.kafka.api_09_offset_fetch import offset_fetch
from compat.kafka.api_10_find_coordinator import find_coordinator
from compat.kafka.api_11_join_group import join_group
from compat.kafka.api_12_heartbeat import heartbeat
from compat.kafka.api_13_leave_group import leave_group
from compat.kafka.api_14_sync_group import sync_group
from compat.kafka.api_15_describe_groups import describe_groups
from compat.kafka.api_16_list_groups import list_groups
from compat.kafka.api_17_sasl_handshake import sasl_handshake
from compat.kafka.api_19_create_topics import create_topics
from compat.kafka.api_20_delete_topics import delete_topics
from compat.kafka.api_21_delete_records import delete_records
from compat.kafka.api_22_init_producer_id import init_producer_id
from compat.kafka.api_23_offset_for_leader_epoch import offset_for_leader_epoch
from compat.kafka.api_32_describe_configs import describe_configs
from compat.kafka.api_33_alter_configs import alter_configs
from compat.kafka.api_35_describe_log_dirs import describe_log_dirs
from compat.kafka.api_37_create_partitions import create_partitions
from compat.kafka.api_42_delete_groups import delete_groups
from compat.kafka.api_44_incremental_alter_configs import incremental_alter_configs
from compat.kafka.api_47_offset_delete import offset_delete
from compat.kafka.api_60_describe_cluster import describe_cluster
from compat.kafka.api_61_describe_producers import describe_producers
from compat.kafka.node import Node
from compat.kafka.registry import FETCH, PRODUCE, Api, Fields, Later, Registry
from compat.kafka.wire import (
    API_VERSIONS_KEY,
    RequestHeader,
    read_key_and_version,
    read_request_header,
    response_header,
)

Buffer: TypeAlias = bytes | bytearray | memoryview

_OTHERS: Final = (
    PRODUCE,
    FETCH,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    find_coordinator,
    join_group,
    heartbeat,
    leave_group,
    sync_group,
    describe_groups,
    list_groups,
    sasl_handshake,
    create_topics,
    delete_topics,
    delete_records,
    init_producer_id,
    offset_for_leader_epoch,
    describe_configs,
    alter_configs,
    describe_log_dirs,
    create_partitions,
    incremental_alter_configs,
    delete_groups,
    offset_delete,
    describe_cluster,
    describe_producers,
)

REGISTRY: Final = Registry((*_OTHERS, api_18_api_versions.make_api(_OTHERS)))
"""Every API of this broker."""


@dataclass(frozen=True, slots=True)
class LaterAnswer:
    """A response that is not known yet, and how it will be encoded."""

    later: Later
    _api: Api
    _header: RequestHeader

    def when_complete(self, answered: Callable[[bytes], None]) -> None:
        """Have a function called with the encoded response, at once if it is there already."""
        self.later.when_complete(
            lambda response: answered(_encode(self._api, self._header, response))
        )


def answer(node: Node, frame: Buffer) -> bytes | LaterAnswer:
    """Answer one request of the control plane.

    Requests that change something (CreateTopics, DeleteTopics, Metadata that makes a topic,
    InitProducerId) have changed it when this returns; the response must be held back until the
    log is flushed up to where it is then written.

    Args:
        node: the broker, where clients reach it, and from where this one does.
        frame: the request without the int32 size in front of it.

    Returns:
        The response without the int32 size in front of it. Requests of the control plane always
        have one, though some only later.

    Raises:
        RemoteProtocolError: the request is malformed, or of an API or version that is not served
            here; the connection must be closed, as Kafka does.
        StorageError: of a change that could not be written.
    """
    key, version, correlation_id = read_key_and_version(frame)
    api = REGISTRY.find(key, version)
    if api is None and key == API_VERSIONS_KEY:
        # The one version that a client may get wrong: it asks in order to find out.
        return response_header(
            key, correlation_id, is_flexible=False
        ) + api_18_api_versions.encode_unsupported(REGISTRY.apis)
    header, body_pos = read_header(frame)
    assert api is not None  # read_header refuses what is not served
    return _answer_body(node, api, header, memoryview(frame)[body_pos:])


def read_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """Read the header of a request of any API that is served.

    Args:
        frame: the request without the int32 size in front of it.

    Returns:
        The header, and the position of the body in the frame.

    Raises:
        RemoteProtocolError: no header, or an API or version that is not served.
    """
    key, version, _ = read_key_and_version(frame)
    api = REGISTRY.find(key, version)
    if api is None:
        known = REGISTRY.find_key(key)
        name = f"API key {key}" if known is None else known.name
        raise RemoteProtocolError(f"{name} version {version} is not served here")
    return read_request_header(frame, is_flexible=api.is_flexible(version))


def _answer_body(node: Node, api: Api, header: RequestHeader, body: Buffer) -> bytes | LaterAnswer:
    version = header.api_version
    if api.handler is None:
        raise RemoteProtocolError(f"{api.name} does not belong to the control plane")
    request = messages.decode_request(api.key, version, body)
    node = replace(node, client=replace(node.client, client_id=header.client_id or ""))
    response = api.handler(node, version, request)
    if isinstance(response, Later):
        return LaterAnswer(response, api, header)
    return _encode(api, header, response)


def _encode(api: Api, header: RequestHeader, response: Fields | bytes) -> bytes:
    version = header.api_version
    if not isinstance(response, bytes):
        response = messages.encode_response(api.key, version, response)
    return (
        response_header(api.key, header.correlation_id, is_flexible=api.is_flexible(version))
        + response
    )
