"""Ours, kio and kafka-python read and write the same bytes, for every API and version we serve.

Messages are drawn from the schemas, so an API that is added is covered by being registered.
"""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from kio.index import load_request_schema, load_response_schema

from compat.kafka import dispatch
from compat.kafka.protocol import messages
from tests.support.oracles.response_oracle import message_classes
from tests.support.values.kio_values import kio_decode, kio_encode, values_of
from tests.system.fuzz.schema_requests import RequestMaker, uvarint

EXAMPLES = 12

SERVED = [
    pytest.param(api.key, version, id=f"{api.name} {version}")
    for api in dispatch.REGISTRY.apis
    if api.handler is not None
    for version in range(api.served_from, api.versions[1] + 1)
]


def known_class(kind: str, key: int, version: int) -> Any:
    """kafka-python's class, None if it does not know this version."""
    found = message_classes(kind).get(key)
    return found if found is not None and version <= found.max_version else None


def decode_plainly(message_class: Any, version: int, body: bytes) -> Any:
    """kafka-python's message of a body; by its number alone, whatever its error is."""
    return super(message_class, message_class).decode.__func__(message_class, body, version=version)


def encoded_again(message: Any) -> bytes:
    """What kafka-python makes of what it has read."""
    message._header = None
    return bytes(message.encode())


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_requests_are_read_as_others_write_them(key: int, version: int) -> None:
    schema = load_request_schema(key, version)
    other = known_class("request", key, version)

    @given(values=values_of(schema))
    @settings(max_examples=EXAMPLES)
    def check(values: dict[str, Any]) -> None:
        body = kio_encode(schema, values)
        assert messages.decode_request(key, version, body) == values
        if other is not None:
            assert encoded_again(other.decode(body, version=version)) == body

    check()


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_responses_are_read_by_others_as_they_were_meant(key: int, version: int) -> None:
    schema = load_response_schema(key, version)
    other = known_class("response", key, version)

    @given(values=values_of(schema))
    @settings(max_examples=EXAMPLES)
    def check(values: dict[str, Any]) -> None:
        body = messages.encode_response(key, version, values)
        assert kio_decode(schema, body) == values
        assert kio_encode(schema, values) == body
        if other is not None:
            assert encoded_again(decode_plainly(other, version, body)) == body

    check()


FLEXIBLE = [param for param in SERVED if load_request_schema(*param.values).__flexible__]


@pytest.mark.parametrize(("key", "version"), FLEXIBLE)
def test_tagged_fields_are_skipped_in_every_structure(key: int, version: int) -> None:
    """Known ones and unknown ones: we need none of them."""
    for seed in range(EXAMPLES):
        rng = random.Random(seed)
        parts = RequestMaker(rng, lambda: None, counts=(0, 1, 2)).make(key, version, 7)
        tags = uvarint(2) + uvarint(600) + uvarint(0) + uvarint(1 << 30) + uvarint(200) + bytes(200)
        bodies = [
            b"".join(empty if part.kind == "tags" else part.data for part in parts)
            for empty in (b"\0", tags)
        ]
        bodies.append(b"".join(part.data for part in parts))
        decoded = []
        for frame in bodies:
            header, start = dispatch.read_header(frame)
            decoded.append((header, messages.decode_request(key, version, frame[start:])))
        assert decoded[0] == decoded[1] == decoded[2]
