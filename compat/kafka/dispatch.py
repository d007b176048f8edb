"""The entry point of the control plane: one request in, one response out.

One table determines what is advertised and what is served. It has the APIs of `compat.kafka.apis`,
including the two that compiled code answers. Layer 4; does no I/O.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from functools import partial
from typing import Final, TypeAlias

from _core.paths.answer import Reply
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
    VALUE_WORK,
    InPieces,
    SlicedAnswer,
    Steps,
    answer_in_slices,
    await_response,
    free_in_steps,
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

_LONG_MS: Final = 1 << 31

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


def answer(node: Node, frame: Buffer) -> Reply | SlicedAnswer:
    """Answer one request of the control plane.

    Requests that change something (CreateTopics, DeleteTopics, Metadata that creates a topic,
    InitProducerId) have changed it when the response is complete. The caller must hold the response
    back until the log is durable up to the position that it names.

    Args:
        node: the broker, its advertised address, and the client.
        frame: the request without the int32 size in front of it; it may change after the call.

    Returns:
        The response. Every control-plane request has one. One that takes more than a slice, or
        waits, completes later.

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


class _Request:
    """A request while it is answered.

    Attributes:
        node, api, header: what it is about.
        fields: its body, once that is decoded.
        body: the same encoded, if it is short: only such a request is answered when it is late.
        held_bytes: memory of `fields`, if they were decoded at once.
        end_pos: the log position that the response to a long request needs.
        is_refused: the broker may not answer it: it gets the answer of one that waited too long.
        writer: takes a response that is produced in steps.
    """

    __slots__ = (
        "api",
        "body",
        "end_pos",
        "fields",
        "header",
        "held_bytes",
        "is_refused",
        "node",
        "writer",
    )

    def __init__(self, node: Node, api: Api, header: RequestHeader) -> None:
        self.node = node
        self.api = api
        self.header = header
        self.fields: Fields = {}
        self.body: bytes | None = None
        self.held_bytes = 0
        self.end_pos = 0
        # What this node knows may be old, and what it changes may be lost.
        self.is_refused = api.needs is not None and not node.broker.has_lease
        self.writer = PieceWriter()

    def decode(self, body: Buffer) -> Steps[None]:
        return messages.decode_in_steps(self.api.key, self.header.api_version, body, self.fields)

    def handle(self) -> Response | Steps[Response]:
        assert self.api.handler is not None
        answer = self.api.on_slave.answer
        if answer is not None and not self.node.routes.leads:
            return answer(self.node, self.header.api_version, self.fields)
        if self.is_refused and self.api.needs is not None:
            return self.api.needs.late(self.node, self.header.api_version, self.fields)
        return self.api.handler(self.node, self.header.api_version, self.fields)

    def write(self, response: Response | Steps[Response]) -> Steps[None]:
        """Write a response to `writer`, once it is there."""
        while not isinstance(response, dict | bytes | InPieces):
            if isinstance(response, DeferredResponse):
                response = yield from await_response(response)
            else:
                response = yield from response
        if not isinstance(response, InPieces):
            self.writer.raw(self.encode(response))
            return
        yield from self.write_pieces(response)

    def write_pieces(self, response: InPieces) -> Steps[None]:
        self.writer.raw(self._encode_header())
        schema = messages.response_schema(self.api.key, self.header.api_version)
        return schema.write_in_steps(self.writer, response.fields)

    def encode(self, response: Fields | bytes) -> bytes:
        if not isinstance(response, bytes):
            response = messages.encode_response(self.api.key, self.header.api_version, response)
        return self._encode_header() + response

    def _encode_header(self) -> bytes:
        is_flexible = self.api.is_flexible(self.header.api_version)
        return response_header(self.api.key, self.header.correlation_id, is_flexible=is_flexible)

    def reply(self, payload: bytes | list[bytes]) -> Reply:
        """Return the encoded response with what it needs, now that the request is handled."""
        if self.is_refused:
            return Reply(payload)
        if self.body is None:
            return Reply(payload, self.end_pos)
        needs = self.api.needs
        end_pos = 0 if needs is None else max(needs.find(self.node, self.fields), default=0)
        if not end_pos:
            return Reply(payload)
        # Encoded, it takes a small part of the memory that its fields take.
        late = partial(_encode_late, self.node, self.api, self.header, self.body)
        return Reply(
            payload, end_pos, wait_ms=self._wait_ms(), late=late, kept_bytes=len(self.body)
        )

    def finish(self) -> Steps[None]:
        """Find what the answer to a long request needs, and free what was decoded of it."""
        if self.api.needs is not None:
            for pos in self.api.needs.find(self.node, self.fields):
                self.end_pos = max(self.end_pos, pos)
                yield VALUE_WORK
        yield from free_in_steps(self.fields)

    def _wait_ms(self) -> int:
        """Return how long the client waits for what it asks; without a time-out as long as we."""
        timeout_ms: int = self.fields.get("timeout", 0)
        return timeout_ms if timeout_ms > 0 else _LONG_MS


def _encode_late(node: Node, api: Api, header: RequestHeader, body: bytes) -> bytes:
    """Return the answer to a request that waited too long for the disk."""
    assert api.needs is not None
    request = _Request(node, api, header)
    fields = messages.decode_request(api.key, header.api_version, body)
    for step in request.write(api.needs.late(node, header.api_version, fields)):
        assert isinstance(step, int), "a late answer waits for nothing"
    return request.writer.finish()


def _answer_body(node: Node, api: Api, header: RequestHeader, body: Buffer) -> Reply | SlicedAnswer:
    if api.handler is None:
        raise RemoteProtocolError(f"{api.name} is not a control-plane request")
    request = _Request(node.for_client_id(header.client_id or ""), api, header)
    if len(body) > DECODED_AT_ONCE_MAX_BYTES:
        _check_size(node, api, len(body))
        steps = _answer_in_steps(request, bytes(body))
    else:
        request.body = bytes(body)
        request.fields, request.held_bytes = messages.decode_counted(
            api.key, header.api_version, request.body
        )
        response = request.handle()
        if isinstance(response, (dict, bytes)):
            return request.reply(request.encode(response))
        if isinstance(response, InPieces):
            steps = request.write_pieces(response)
        else:
            steps = request.write(response)
    return answer_in_slices(
        steps,
        request.writer,
        request.reply,
        node.broker.clock.monotonic_ns,
        node.later,
        held_bytes=request.held_bytes,
        left=request.fields if request.body is None else None,
    )


def _answer_in_steps(request: _Request, body: Buffer) -> Steps[None]:
    yield from request.decode(body)
    yield from request.write(request.handle())
    yield from request.finish()


def _check_size(node: Node, api: Api, size: int) -> None:
    size_max, hint = REQUEST_MAX_BYTES, "name fewer items in a request"
    if api.key in GROUP_KEYS and node.broker.config.group_size_max_bytes > size_max:
        size_max = node.broker.config.group_size_max_bytes
        hint = "raise groups.size_max_bytes, or shorten subscriptions and assignments"
    if size > size_max:
        raise RemoteProtocolError(
            f"{api.name} of {size} bytes: at most {size_max} are allowed; {hint}"
        )
