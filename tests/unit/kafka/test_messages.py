"""The message codec: bad bytes, and what tests/unit/kafka/test_codec_properties.py leaves out."""

import tracemalloc

import pytest

from appliance.errors import RemoteProtocolError
from compat.kafka.protocol import messages


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (3, 1, b"\x7f\xff\xff\xff"),
        (3, 12, b"\xff\xff\xff\xff\x0f"),
        (19, 7, b"\xff\xff\xff\xff\x0f" + bytes(100)),
        (19, 2, b"\x00\x00\x00\x01\x00\x01t" + bytes(6) + b"\x7f\xff\xff\xff" + bytes(100)),
        (10, 6, b"\x00\xff\xff\xff\xff\x0f"),
        (3, 12, b"\x00\x00\x00\xff\xff\xff\xff\x0f"),
    ],
)
def test_a_count_of_billions_costs_nothing(key: int, version: int, body: bytes) -> None:
    messages.decode_request(3, 12, b"\x01\x00\x00\x00")  # loads and compiles the schemas
    with pytest.raises(RemoteProtocolError):
        messages.decode_request(key, version, body)
    tracemalloc.start()
    with pytest.raises(RemoteProtocolError):
        messages.decode_request(key, version, body)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_bytes_after_the_last_field_are_ignored() -> None:
    assert messages.decode_request(3, 1, b"\x00\x00\x00\x00" + b"later") == {"topics": []}


def test_a_value_without_default_must_be_given() -> None:
    with pytest.raises(KeyError, match="topics"):
        messages.encode_response(19, 7, {})


def test_an_item_that_is_encoded_already_is_put_in_its_place() -> None:
    item = {"key": "k", "node_id": 1, "host": "h", "port": 2, "error_code": 0}
    item["error_message"] = None
    encoded = messages.encode_response_item(10, 6, "coordinators", item)
    assert messages.encode_response(10, 6, {"coordinators": [encoded]}) == messages.encode_response(
        10, 6, {"coordinators": [item]}
    )
