"""Which of Kafka's error codes answers a refused request.

The codes are kio's, made from Kafka's own definitions. Compiled code has those that it answers in
`_core/bytes/kafka_errors.pxd`. Layer 3; does no I/O.
"""

from typing import Final

from appliance.errors import (
    DiskFullError,
    InvalidPartitionsError,
    InvalidRequestError,
    InvalidSettingError,
    InvalidTopicError,
    OffsetsTooLargeError,
    PolicyError,
    ProducerQuotaError,
    RequestError,
    TooLargeError,
    TopicExistsError,
    UnknownTopicError,
)
from appliance.system.process import without_modules

with without_modules("hypothesis"):  # see compat.kafka.protocol.messages
    from kio.schema.errors import ErrorCode

__all__ = ["CODES", "CodedError", "ErrorCode", "code_of", "name_of_code"]

CODES: Final[dict[type[RequestError], ErrorCode]] = {
    DiskFullError: ErrorCode.kafka_storage_error,  # clients retry
    InvalidPartitionsError: ErrorCode.invalid_partitions,
    InvalidRequestError: ErrorCode.invalid_request,
    InvalidSettingError: ErrorCode.invalid_config,
    InvalidTopicError: ErrorCode.invalid_topic_exception,
    OffsetsTooLargeError: ErrorCode.invalid_commit_offset_size,
    PolicyError: ErrorCode.policy_violation,
    # All clients ask again after it, without looking for another coordinator.
    ProducerQuotaError: ErrorCode.coordinator_load_in_progress,
    TooLargeError: ErrorCode.message_too_large,
    TopicExistsError: ErrorCode.topic_already_exists,
    UnknownTopicError: ErrorCode.unknown_topic_or_partition,
}


class CodedError(RequestError):
    """A request is refused with an error code that only Kafka's protocol distinguishes."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def code_of(error: RequestError) -> ErrorCode:
    """Return the error code that answers a refused request."""
    return error.code if isinstance(error, CodedError) else CODES[type(error)]


def name_of_code(code: int) -> str:
    """Return Kafka's name of an error code; its number if it has none."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return str(code)
