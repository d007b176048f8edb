"""Rules that the handlers of committed offsets share. Layer 3; does no I/O."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias, TypeVar

from appliance.errors import DiskFullError, RequestError, TooLargeError
from appliance.units import KIB, MIB
from compat.kafka.groups.coordinator import GroupCoordinator
from compat.kafka.groups.group import CONSUMER_PROTOCOL_TYPE, GroupState
from compat.kafka.protocol.error_codes import CODES, ErrorCode
from compat.kafka.protocol.pieces import ITEM_WORK
from compat.kafka.protocol.slices import Items, free_in_steps

OFFSETS_AT_ONCE: Final = 300
OFFSETS_AT_ONCE_BYTES: Final = 64 * KIB
"""Offsets that are committed or deleted in one step, all or none; and of their group names and
metadata. About as many share a frame, which holds after a crash all or none."""

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


def in_steps(
    items: Iterable[Item], size_of: Callable[[Item], int]
) -> Iterator[tuple[list[Item], int]]:
    """Yield the partitions of a request in lists, each of which is one step, and its price.

    Args:
        items: the partitions.
        size_of: returns the length of the group name and the metadata of one.
    """
    chunk: list[Item] = []
    size = 0
    for item in items:
        size += size_of(item)
        chunk.append(item)
        if len(chunk) >= OFFSETS_AT_ONCE or size >= OFFSETS_AT_ONCE_BYTES:
            yield chunk, len(chunk) * ITEM_WORK + size
            chunk, size = [], 0
    if chunk:
        yield chunk, len(chunk) * ITEM_WORK + size


def answer_partitions(by_name: dict[str, dict[int, Any]], answers: Answers) -> Items:
    """Yield the topics of an answer, with an error code for each partition."""
    for name, indexes in by_name.items():
        partitions: Items = (
            {"partition_index": index, "error_code": answers.get((name, index), ErrorCode.none)}
            for index in indexes
        )
        yield {"name": name, "partitions": partitions}
    yield from free_in_steps(by_name)
    yield from free_in_steps(answers)
