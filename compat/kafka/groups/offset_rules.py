"""What the handlers of committed offsets have in common. Layer 3; does no I/O."""

from typing import Final

from appliance.errors import RequestError
from compat.kafka.error_codes import ErrorCode
from compat.kafka.groups.coordinator import GroupCoordinator
from compat.kafka.groups.group import GroupState

CONSUMERS: Final = "consumer"
"""The protocol type of consumers: only of these it is known which topics they read."""

_TOLD: Final = {
    # To a client of Java that commits, this one would be the end.
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}


def code_of(refusal: RequestError) -> int:
    """Return how a consumer is told that its offsets are not stored."""
    return _TOLD.get(ErrorCode(refusal.code), refusal.code)


def check_delete(groups: GroupCoordinator, group_id: str) -> ErrorCode:
    """Tell whether offsets of a group may be deleted, as far as its topics do not matter."""
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID
    group = groups.find(group_id)
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMERS:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE
