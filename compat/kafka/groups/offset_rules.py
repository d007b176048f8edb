"""Rules that the handlers of committed offsets share. Layer 3; does no I/O."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

from appliance.errors import DiskFullError, RequestError, TooLargeError
from appliance.units import KIB, MIB
from compat.kafka.groups.coordinator import GroupCoordinator
from compat.kafka.groups.group import CONSUMER_PROTOCOL_TYPE, GroupState
from compat.kafka.protocol.error_codes import CODES, ErrorCode
from compat.kafka.protocol.slices import Items

OFFSETS_AT_ONCE: Final = 600
OFFSETS_AT_ONCE_BYTES: Final = 256 * KIB
"""Offsets that are committed or deleted in one step, all or none; each has the group's name. Both
are more than share a frame, which hold after a crash all or none."""

Answers: TypeAlias = dict[tuple[str, int], int]
"""Error codes by topic and partition; what is missing has none."""

Item = TypeVar("Item")

_COMMIT_CODES: Final = CODES | {
    # Clients retry for ever. KAFKA_STORAGE_ERROR in response to a commit would stop a Java client.
    DiskFullError: ErrorCode.coordinator_not_available,
    TooLargeError: ErrorCode.invalid_commit_offset_size,
}

NAMES_MAX_BYTES: Final = MIB
"""Each offset is stored with the name of its group. More bytes than this are not taken for the
names of one commit: a request of a few KiB could otherwise cause hundreds of MiB. Kafka limits the
whole of a commit to as much."""


def check_names(group_id: str, count: int) -> ErrorCode:
    """Return whether so many offsets of a group may be committed at once."""
    if len(group_id.encode()) * count > NAMES_MAX_BYTES:
        return ErrorCode.invalid_commit_offset_size
    return ErrorCode.none


def commit_code_of(refusal: RequestError) -> ErrorCode:
    """Return the error code for a consumer whose offsets are not stored."""
    return _COMMIT_CODES[type(refusal)]


def check_delete(groups: GroupCoordinator, group_id: str) -> ErrorCode:
    """Return whether offsets of a group may be deleted, regardless of its subscriptions."""
    if not group_id:
        return ErrorCode.invalid_group_id
    group = groups.find(group_id)
    if group is None:
        return ErrorCode.group_id_not_found
    if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return ErrorCode.non_empty_group
    return ErrorCode.none


def in_steps(items: Iterable[Item], group_id: str) -> Iterator[list[Item]]:
    """Yield the partitions of a request in lists, each of which is committed in one step."""
    rest = iter(items)
    size = max(1, min(OFFSETS_AT_ONCE, OFFSETS_AT_ONCE_BYTES // max(1, len(group_id))))
    while chunk := list(islice(rest, size)):
        yield chunk


def answer_partitions(by_name: dict[str, dict[int, Any]], answers: Answers) -> Items:
    """Yield the topics of an answer, with an error code for each partition."""
    for name, indexes in by_name.items():
        partitions: Items = (
            {"partition_index": index, "error_code": answers.get((name, index), ErrorCode.none)}
            for index in indexes
        )
        yield {"name": name, "partitions": partitions}
