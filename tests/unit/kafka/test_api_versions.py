"""ApiVersions: the one request that must be understood before anything is agreed."""

import pytest

from appliance.errors import RemoteProtocolError
from compat.kafka import dispatch
from compat.kafka.protocol.error_codes import ErrorCode
from tests.support.harness.memory_broker import MemoryBroker, memory_node
from tests.support.oracles.kafka_oracle import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    answer_now,
    ask,
    decode_response,
    encode_request,
)

NODE = memory_node(MemoryBroker())
TABLE = [(api.key, *api.versions) for api in dispatch.REGISTRY.apis]


def request(name: str = "kafka-python", software_version: str = "3.0.12") -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name=name, client_software_version=software_version)


def table(response: ApiVersionsResponse) -> list[tuple[int, int, int]]:
    return [(api.api_key, api.min_version, api.max_version) for api in response.api_keys]


@pytest.mark.parametrize("version", range(5))
def test_answers_the_whole_registry(version: int) -> None:
    response = ask(NODE, request(), version, ApiVersionsResponse)
    assert response.error_code == 0
    assert table(response) == TABLE


@pytest.mark.parametrize("version", [3, 4])
def test_has_no_tagged_field_that_old_librdkafka_would_stumble_over(version: int) -> None:
    payload = answer_now(NODE, encode_request(request(), version))
    correlation_id, error_code, count = payload[:4], payload[4:6], payload[6]
    entry_size = 2 + 2 + 2 + 1
    assert (correlation_id, error_code, count) == (b"\0\0\0\x07", b"\0\0", len(TABLE) + 1)
    assert payload[7 + len(TABLE) * entry_size :] == b"\0\0\0\0" + b"\0"  # throttle time, no tags


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_unknown_version_is_answered_in_v0_without_reading_the_body(version: int) -> None:
    frame = b"\x00\x12" + version.to_bytes(2, signed=True) + b"\x00\x00\x00\x2a" + b"\xff" * 50
    payload = answer_now(NODE, frame)
    response = decode_response(ApiVersionsResponse, 0, payload)
    assert response.header.correlation_id == 42
    assert response.error_code == ErrorCode.unsupported_version
    assert table(response) == TABLE


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(
    ("name", "software_version"),
    [("", "1"), ("a", ""), ("-a", "1"), ("a", "1-"), ("a b", "1"), ("ä", "1"), ("a", "1\n")],
)
def test_software_with_a_malformed_name_is_refused(
    version: int, name: str, software_version: str
) -> None:
    payload = answer_now(NODE, encode_request(request(name, software_version), version))
    assert payload[4:6] == ErrorCode.invalid_request.to_bytes(2)


@pytest.mark.parametrize("name", ["a", "A9", "apache-kafka-java", "librdkafka", "x.y-z.0"])
def test_software_with_a_proper_name_is_answered(name: str) -> None:
    assert ask(NODE, request(name, name), 4, ApiVersionsResponse).error_code == 0


def test_the_body_of_a_known_version_is_read() -> None:
    frame = encode_request(request(), 3)
    with pytest.raises(RemoteProtocolError):
        answer_now(NODE, frame[:-3])
