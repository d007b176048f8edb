"""A consumer group as people want to see it. Layer 3; does no I/O."""

from collections.abc import Iterator
from typing import Final

from appliance.errors import RemoteProtocolError
from appliance.model import AssignedPartition, GroupStatus, MemberStatus
from appliance.store.group_frames import (
    STATE_ASSIGNING,
    STATE_COMPLETING_REBALANCE,
    STATE_EMPTY,
    STATE_PREPARING_REBALANCE,
    STATE_RECONCILING,
    STATE_STABLE,
    GroupFrame,
    GroupMember,
)
from compat.kafka.wire import Reader

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
"""Of groups of consumers, whose assignments have a form that is known."""

STATE_NAMES: Final = {
    STATE_EMPTY: "Empty",
    STATE_PREPARING_REBALANCE: "PreparingRebalance",
    STATE_COMPLETING_REBALANCE: "CompletingRebalance",
    STATE_STABLE: "Stable",
    STATE_ASSIGNING: "Assigning",
    STATE_RECONCILING: "Reconciling",
}


def describe_group(name: str, frame: GroupFrame | None) -> GroupStatus:
    """Tell of a group all but its offsets.

    Args:
        name: of the group.
        frame: what the group is; None if nothing but offsets is known of it.
    """
    if frame is None:
        return GroupStatus(name, STATE_NAMES[STATE_EMPTY], "", "", -1, (), ())
    protocol_type = frame.protocol_type or ""
    return GroupStatus(
        name=name,
        state=STATE_NAMES[frame.state],
        protocol_type=protocol_type,
        protocol=frame.protocol or "",
        generation=frame.generation,
        members=tuple(_describe_member(each, protocol_type) for each in frame.members),
        offsets=(),
    )


def _describe_member(member: GroupMember, protocol_type: str) -> MemberStatus:
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
        data: as the leader of the group made it; b"" for nothing.

    Returns:
        The partitions, None if it is something else: clients make them and nobody checks them.
    """
    if not data:
        return ()
    try:
        return tuple(_assigned(Reader(data)))
    except RemoteProtocolError:
        return None


def _assigned(reader: Reader) -> Iterator[AssignedPartition]:
    reader.int16()  # the version; all of them begin alike
    for _ in range(reader.array_count(is_compact=False, is_nullable=False) or 0):
        topic = reader.string(is_compact=False, is_nullable=False) or ""
        for _ in range(reader.array_count(is_compact=False, is_nullable=False) or 0):
            yield AssignedPartition(topic, reader.int32())
