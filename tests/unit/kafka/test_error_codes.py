"""Kafka's error codes: compiled code has Kafka's numbers, and every refusal has a code."""

import pytest

from appliance import errors
from appliance.errors import RequestError
from compat.kafka.protocol.error_codes import CODES, CodedError, ErrorCode, code_of
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
