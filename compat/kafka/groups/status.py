"""The status of consumer groups for the admin API. Layer 3; does no I/O."""

import struct
from collections.abc import Generator, Iterator
from typing import Final

from appliance.errors import RemoteProtocolError
from appliance.model import AssignedPartition, GroupStatus, GroupSummary, MemberStatus
from compat.kafka.configs.topic_names import TOPIC_NAME_SIZE_MAX
from compat.kafka.groups.coordinator import GroupCoordinator
from compat.kafka.groups.group import CONSUMER_PROTOCOL_TYPE, Group
from compat.kafka.protocol.wire import Reader

_INT32: Final = struct.Struct(">i")


class GroupsStatus:
    """A read-only view of the groups of one coordinator."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def __len__(self) -> int:
        """The number of groups."""
        return sum(1 for _ in self._coordinator.groups())

    def summaries(self) -> Iterator[GroupSummary]:
        """Yield all groups; groups may be added or deleted during the iteration."""
        for group in list(self._coordinator.groups()):
            yield GroupSummary(
                group.group_id, group.state.value, group.protocol_type or "", len(group.members)
            )

    def find(self, name: str) -> GroupStatus | None:
        """Return a group without its offsets; None if there is no such group."""
        group = self._coordinator.find(name)
        return None if group is None else _describe(group)


def _describe(group: Group) -> GroupStatus:
    protocol_type = group.protocol_type or ""
    return GroupStatus(
        name=group.group_id,
        state=group.state.value,
        protocol_type=protocol_type,
        protocol=group.protocol or "",
        generation=group.generation,
        members=_members(group, protocol_type),
        offsets=(),
    )


def _members(group: Group, protocol_type: str) -> Iterator[MemberStatus | None]:
    # By their ids: members who leave meanwhile are not held for a client that reads slowly.
    for member_id in list(group.members):
        member = group.members.get(member_id)
        if member is None:
            yield None
            continue
        data, is_known = member.assignment, False
        if protocol_type == CONSUMER_PROTOCOL_TYPE:
            is_known = yield from check_assignment(data)
        yield MemberStatus(
            member_id=member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            host=member.client_host,
            assignment=walk_assignment(data) if is_known else None,
        )


def check_assignment(data: bytes) -> Generator[None, None, bool]:
    """Check the format of an assignment: clients encode it and the broker stores it unchecked.

    Yields None after each topic.

    Args:
        data: as sent by the leader of the group; b"" for an empty assignment.

    Returns:
        Whether it is Kafka's ConsumerProtocolAssignment, and its topics have names as long as
        Kafka allows: each partition is shown with its topic, so a name of 32 KB with 4,000
        partitions would become 130 MB.
    """
    try:
        for _ in _assigned_topics(data):
            yield
    except RemoteProtocolError:
        return False
    return True


def walk_assignment(data: bytes) -> Iterator[AssignedPartition | None]:
    """Yield the partitions of an assignment in its order, and None before those of each topic.

    Args:
        data: what `check_assignment` returns True for.
    """
    for topic, indexes in _assigned_topics(data):
        yield None
        for (index,) in _INT32.iter_unpack(indexes):
            yield AssignedPartition(topic, index)


def _assigned_topics(data: bytes) -> Iterator[tuple[str, memoryview]]:
    """Yield each topic with its encoded partitions; raise RemoteProtocolError for other data."""
    if not data:
        return
    reader = Reader(data)
    reader.int16()  # the version; all versions begin with the same fields
    for _ in range(reader.array_count(is_compact=False, is_nullable=False) or 0):
        topic = reader.string(is_compact=False, is_nullable=False) or ""
        if len(topic.encode()) > TOPIC_NAME_SIZE_MAX:
            raise RemoteProtocolError(f"a topic has a name of {len(topic.encode())} bytes")
        count = reader.array_count(is_compact=False, is_nullable=False) or 0
        yield topic, reader.take(count * _INT32.size)
