"""The status of consumer groups for the admin API. Layer 3; does no I/O."""

from collections.abc import Iterator

from appliance.errors import RemoteProtocolError
from appliance.model import AssignedPartition, GroupStatus, GroupSummary, MemberStatus
from compat.kafka.groups.coordinator import GroupCoordinator
from compat.kafka.groups.group import CONSUMER_PROTOCOL_TYPE, Group
from compat.kafka.groups.member import Member
from compat.kafka.protocol.wire import Reader


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
        members=tuple(_describe_member(each, protocol_type) for each in group.members.values()),
        offsets=(),
    )


def _describe_member(member: Member, protocol_type: str) -> MemberStatus:
    assignment = None
    if protocol_type == CONSUMER_PROTOCOL_TYPE:
        assignment = read_assignment(member.assignment)
    return MemberStatus(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.client_host,
        assignment=assignment,
    )


def read_assignment(data: bytes) -> tuple[AssignedPartition, ...] | None:
    """Read Kafka's ConsumerProtocolAssignment.

    Args:
        data: as sent by the leader of the group; b"" for an empty assignment.

    Returns:
        The partitions; None if the data has another format: clients encode it and the broker does
        not check it.
    """
    if not data:
        return ()
    try:
        return tuple(_assigned(Reader(data)))
    except RemoteProtocolError:
        return None


def _assigned(reader: Reader) -> Iterator[AssignedPartition]:
    reader.int16()  # the version; all versions begin with the same fields
    for _ in range(reader.array_count(is_compact=False, is_nullable=False) or 0):
        topic = reader.string(is_compact=False, is_nullable=False) or ""
        for _ in range(reader.array_count(is_compact=False, is_nullable=False) or 0):
            yield AssignedPartition(topic, reader.int32())
