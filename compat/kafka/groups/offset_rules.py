"""Rules that the handlers of committed offsets share. Layer 3; does no I/O."""

from typing import Final

from appliance.errors import RequestError
from compat.kafka.groups.coordinator import GroupCoordinator
from compat.kafka.groups.group import GroupState
from compat.kafka.protocol.error_codes import ErrorCode

CONSUMERS: Final = "consumer"
"""The protocol type of consumers; only their metadata names the topics that they read."""

_TOLD: Final = {
    # KAFKA_STORAGE_ERROR in response to a commit would stop a Java client.
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}


def code_of(refusal: RequestError) -> int:
    """Return the error code for a consumer whose offsets are not stored."""
    return _TOLD.get(ErrorCode(refusal.code), refusal.code)


def check_delete(groups: GroupCoordinator, group_id: str) -> ErrorCode:
    """Return whether offsets of a group may be deleted, regardless of its subscriptions."""
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID
    group = groups.find(group_id)
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMERS:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE
