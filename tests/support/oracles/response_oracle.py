"""Decodes any response of any API with kafka-python, or with kio in versions that it lacks.

Neither shares code with compat.kafka.protocol.messages.
"""

import functools
import io
from typing import Any

from kio.index import load_response_schema
from kio.serial import entity_reader, entity_writer

from compat.kafka.protocol.wire import API_VERSIONS_KEY
from tests.support.oracles.kafka_oracle import decode_response, protocol_module

_MODULES = [protocol_module(name) for name in ("admin", "consumer", "metadata", "producer", "sasl")]


@functools.cache
def message_classes(kind: str) -> dict[int, Any]:
    """kafka-python's classes by API key; kind is "request" or "response"."""
    found = {}
    for module in _MODULES:
        for value in vars(module).values():
            if getattr(value, "_json", None) is not None and value.type == kind:
                found[value.API_KEY] = value
    return found


def decode_any_response(key: int, version: int, payload: bytes) -> Any:
    """Decode a response with its header, and check that every byte was decoded."""
    response_class = message_classes("response").get(key)
    if key == API_VERSIONS_KEY:
        if version not in range(5):
            version = 0  # so that a newer client learns the versions
        elif payload[4:6] != b"\0\0":
            response_class = None  # It decodes every refusal as version 0, unlike Kafka.
    if response_class is not None and version <= response_class.max_version:
        return decode_response(response_class, version, payload)
    schema = load_response_schema(key, version)
    start = 5 if schema.__flexible__ and key != API_VERSIONS_KEY else 4
    response, size = entity_reader(schema)(payload, start)
    assert start + size == len(payload), "the response has bytes that the oracle does not know"
    again = io.BytesIO()
    entity_writer(schema)(again, response)
    assert again.getvalue() == payload[start:]
    return response
