"""The entry point of the control plane: one request in, one response out.

One table determines what is advertised and what is served. It has the APIs of `compat.kafka.apis`,
including the two that compiled code answers. Layer 4; does no I/O.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

from _core.paths.answer import Reply
from appliance.errors import RemoteProtocolError
from compat.kafka import apis
from compat.kafka.apis import api_18_api_versions
from compat.kafka.node import Node
from compat.kafka.protocol import messages
from compat.kafka.protocol.deferred import DeferredResponse
from compat.kafka.protocol.registry import Api, Fields, Registry
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


_LONG_MS: Final = 1 << 31

REGISTRY: Final = discover()
"""Every API of this broker."""


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


def answer(node: Node, frame: Buffer) -> Reply | DeferredResponse[Any]:
    """Answer one request of the control plane.

    Requests that change something (CreateTopics, DeleteTopics, Metadata that creates a topic,
    InitProducerId) have changed it when this returns. The caller must hold the response back until
    the log is durable up to the position that the response names.

    Args:
        node: the broker, its advertised address, and the client.
        frame: the request without the int32 size in front of it.

    Returns:
        The response. Every control-plane request has one. A deferred response completes with it.

    Raises:
        RemoteProtocolError: the request is malformed, or its API or version is not served; the
            connection must be closed, as Kafka does.
        StorageError: a change could not be written.
    """
    key, version, correlation_id = read_key_and_version(frame)
    api = REGISTRY.find(key, version)
    if api is None and key == API_VERSIONS_KEY:
        # A client that does not know the broker's versions yet may send any version of this one.
        head = response_header(key, correlation_id, is_flexible=False)
        return Reply(head + api_18_api_versions.encode_unsupported(REGISTRY.apis))
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


def _answer_body(
    node: Node, api: Api, header: RequestHeader, body: Buffer
) -> Reply | DeferredResponse[Any]:
    version = header.api_version
    if api.handler is None:
        raise RemoteProtocolError(f"{api.name} is not a control-plane request")
    request = messages.decode_request(api.key, version, body)
    node = replace(node, client=replace(node.client, client_id=header.client_id or ""))
    response = api.handler(node, version, request)
    if isinstance(response, DeferredResponse):
        response.encode_with(partial(_reply, node, api, header, request))
        return response
    return _reply(node, api, header, request, response)


def _reply(
    node: Node, api: Api, header: RequestHeader, request: Fields, response: Fields | bytes
) -> Reply:
    payload = _encode(api, header, response)
    end_pos = 0 if api.needs is None else api.needs.find(node, request)
    if api.needs is None or not end_pos or isinstance(response, bytes):
        return Reply(payload, end_pos)
    make_late = partial(api.needs.late, node, header.api_version, request, response)
    return Reply(
        payload,
        end_pos,
        wait_ms=_wait_ms(request),
        late=lambda: _encode(api, header, make_late()),
    )


def _wait_ms(request: Fields) -> int:
    """Return how long the client waits for what it asks; without a time-out as long as we do."""
    timeout_ms: int = request.get("timeout", 0)
    return timeout_ms if timeout_ms > 0 else _LONG_MS


def _encode(api: Api, header: RequestHeader, response: Fields | bytes) -> bytes:
    version = header.api_version
    if not isinstance(response, bytes):
        response = messages.encode_response(api.key, version, response)
    return (
        response_header(api.key, header.correlation_id, is_flexible=api.is_flexible(version))
        + response
    )
