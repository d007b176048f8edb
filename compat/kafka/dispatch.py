"""The entry point of the control plane: one request in, one response out.

One table determines what is advertised and what is served. It has the APIs of `compat.kafka.apis`,
including the two that compiled code answers. Layer 4; does no I/O.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Final, TypeAlias

from appliance.errors import RemoteProtocolError
from appliance.units import KIB, MIB
from compat.kafka import apis
from compat.kafka.apis import api_18_api_versions
from compat.kafka.node import Node
from compat.kafka.protocol import messages
from compat.kafka.protocol.deferred import DeferredResponse
from compat.kafka.protocol.pieces import PieceWriter
from compat.kafka.protocol.registry import Api, Fields, Registry, Response
from compat.kafka.protocol.slices import (
    InPieces,
    SlicedAnswer,
    Steps,
    answer_in_slices,
    await_response,
)
from compat.kafka.protocol.wire import (
    API_VERSIONS_KEY,
    RequestHeader,
    read_key_and_version,
    read_request_header,
    response_header,
)

Buffer: TypeAlias = bytes | bytearray | memoryview


def discover() -> Registry:
    """Import every file of `compat.kafka.apis`; each has one API, and its name begins with the key.

    ApiVersions answers with the whole table, so it is added last.
    """
    found = {}
    for name in sorted(each.name for each in pkgutil.iter_modules(apis.__path__)):
        if name == api_18_api_versions.__name__.rpartition(".")[2]:
            continue
        module = importlib.import_module(f"{apis.__name__}.{name}")
        (api,) = (each for each in vars(module).values() if isinstance(each, Api))
        assert name.startswith(f"api_{api.key:02}_"), f"{name} has the API of key {api.key}"
        found[api.key] = api
    return Registry((*found.values(), api_18_api_versions.make_api(found.values())))


REGISTRY: Final = discover()
"""Every API of this broker."""


REQUEST_MAX_BYTES: Final = 4 * MIB
"""Of a control-plane request: every partition of the default `topics.partition_total_max`, named in
one request with offset and metadata, fits. Requests of groups may have `groups.size_max_bytes`."""

GROUP_KEYS: Final = frozenset({11, 14})
"""JoinGroup and SyncGroup, which bring the subscriptions and assignments of a group."""

DECODED_AT_ONCE_MAX_BYTES: Final = 16 * KIB
"""A longer request is decoded in steps."""

USED_FIRST: Final = frozenset({API_VERSIONS_KEY, 3})
"""ApiVersions and Metadata, with which every client begins."""


def name_of_api(key: int) -> str:
    """Return Kafka's name of an API; its key if this broker does not serve it."""
    api = REGISTRY.find_key(key)
    return str(key) if api is None else api.name


def prepare() -> Iterator[None]:
    """Compile the codecs of all that is served, one each time the iterator is advanced.

    Until then, the first request of each API and version compiles its own and keeps the event loop
    from everything else. The newest version of each API comes first: most clients use it.
    """
    served = [
        (api.versions[1] - version, api.key not in USED_FIRST, api.key, version)
        for api in REGISTRY.apis
        if api.handler is not None
        for version in range(api.served_from, api.versions[1] + 1)
    ]
    for _, _, key, version in sorted(served):
        messages.request_schema(key, version)
        yield
        messages.response_schema(key, version)
        yield


def answer(node: Node, frame: Buffer) -> bytes | SlicedAnswer:
    """Answer one request of the control plane.

    Requests that change something (CreateTopics, DeleteTopics, Metadata that creates a topic,
    InitProducerId) have changed it when the response is complete. The caller must hold the response
    back until the log is flushed up to its end at that moment.

    Args:
        node: the broker, its advertised address, and the client.
        frame: the request without the int32 size in front of it.

    Returns:
        The response without the int32 size in front of it. Every control-plane request has one.
        One that takes more than a slice, or waits, completes later with its pieces.

    Raises:
        RemoteProtocolError: the request is malformed, or its API or version is not served; the
            connection must be closed, as Kafka does.
        StorageError: a change could not be written.
    """
    key, version, correlation_id = read_key_and_version(frame)
    api = REGISTRY.find(key, version)
    if api is None and key == API_VERSIONS_KEY:
        # A client that does not know the broker's versions yet may send any version of this one.
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
        RemoteProtocolError: the header is malformed, or the API or version is not served.
    """
    key, version, _ = read_key_and_version(frame)
    api = REGISTRY.find(key, version)
    if api is None:
        known = REGISTRY.find_key(key)
        name = f"API key {key}" if known is None else known.name
        allowed = "" if known is None else f": use {known.served_from} to {known.versions[1]}"
        raise RemoteProtocolError(f"{name} version {version} is not served{allowed}")
    return read_request_header(frame, is_flexible=api.is_flexible(version))


def _answer_body(node: Node, api: Api, header: RequestHeader, body: Buffer) -> bytes | SlicedAnswer:
    if api.handler is None:
        raise RemoteProtocolError(f"{api.name} is not a control-plane request")
    node = node.for_client_id(header.client_id or "")
    if len(body) > DECODED_AT_ONCE_MAX_BYTES:
        _check_size(node, api, len(body))
        writer = PieceWriter()
        steps = _answer_in_steps(node, api, header, body, writer)
    else:
        request = messages.decode_request(api.key, header.api_version, body)
        response = api.handler(node, header.api_version, request)
        if isinstance(response, (dict, bytes)):
            return _encode(api, header, response)
        writer = PieceWriter()
        if isinstance(response, InPieces):
            steps = _encode_pieces(api, header, response, writer)
        else:
            steps = _encode_in_steps(api, header, response, writer)
    return answer_in_slices(steps, writer, node.broker.clock.monotonic_ns, node.later)


def _check_size(node: Node, api: Api, size: int) -> None:
    size_max, hint = REQUEST_MAX_BYTES, "name fewer items in a request"
    if api.key in GROUP_KEYS and node.broker.config.group_size_max_bytes > size_max:
        size_max = node.broker.config.group_size_max_bytes
        hint = "raise groups.size_max_bytes, or shorten subscriptions and assignments"
    if size > size_max:
        raise RemoteProtocolError(
            f"{api.name} of {size} bytes: at most {size_max} are allowed; {hint}"
        )


def _answer_in_steps(
    node: Node, api: Api, header: RequestHeader, body: Buffer, writer: PieceWriter
) -> Steps[None]:
    assert api.handler is not None
    version = header.api_version
    request = yield from messages.decode_in_steps(api.key, version, body)
    yield from _encode_in_steps(api, header, api.handler(node, version, request), writer)


def _encode_in_steps(
    api: Api, header: RequestHeader, response: Response | Steps[Response], writer: PieceWriter
) -> Steps[None]:
    """Write a response to `writer`, once it is there."""
    while not isinstance(response, dict | bytes | InPieces):
        if isinstance(response, DeferredResponse):
            response = yield from await_response(response)
        else:
            response = yield from response
    if not isinstance(response, InPieces):
        writer.raw(_encode(api, header, response))
        return
    yield from _encode_pieces(api, header, response, writer)


def _encode_pieces(
    api: Api, header: RequestHeader, response: InPieces, writer: PieceWriter
) -> Steps[None]:
    writer.raw(_encode_header(api, header))
    schema = messages.response_schema(api.key, header.api_version)
    return schema.write_in_steps(writer, response.fields)


def _encode(api: Api, header: RequestHeader, response: Fields | bytes) -> bytes:
    if not isinstance(response, bytes):
        response = messages.encode_response(api.key, header.api_version, response)
    return _encode_header(api, header) + response


def _encode_header(api: Api, header: RequestHeader) -> bytes:
    is_flexible = api.is_flexible(header.api_version)
    return response_header(api.key, header.correlation_id, is_flexible=is_flexible)
