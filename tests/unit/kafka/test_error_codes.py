"""Kafka's error codes and version ranges: what compiled code and the facade have to agree on."""

import pytest

from appliance import errors
from appliance.errors import RequestError
from compat.kafka.apis.api_00_produce import produce
from compat.kafka.apis.api_01_fetch import fetch
from compat.kafka.protocol.error_codes import CODES, CodedError, ErrorCode, code_of
from compat.kafka.protocol.registry import Api
from tests.support.docs.source_files import enum_numbers


@pytest.mark.parametrize(("name", "code"), enum_numbers("_core/bytes/kafka_errors.pxd").items())
def test_compiled_code_has_kafkas_numbers(name: str, code: int) -> None:
    assert ErrorCode(code).name == name.lower()


def test_every_refusal_of_the_broker_has_a_code() -> None:
    refusals = {
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, RequestError) and each is not RequestError
    }
    assert set(CODES) == refusals
    assert code_of(errors.TooLargeError("why")) == ErrorCode.message_too_large
    assert code_of(CodedError(ErrorCode.unknown_topic_id, "why")) == ErrorCode.unknown_topic_id


@pytest.mark.parametrize(("api", "prefix"), [(produce, "PRODUCE"), (fetch, "FETCH")])
def test_the_session_serves_the_versions_of_the_registry(api: Api, prefix: str) -> None:
    compiled = enum_numbers("_core/paths/session.pyx")
    assert compiled[f"KEY_{prefix}"] == api.key
    assert compiled[f"{prefix}_MIN"] == api.served_from
    assert compiled[f"{prefix}_MAX"] == api.versions[1]
    assert compiled[f"{prefix}_FLEXIBLE"] == api.flexible_from
