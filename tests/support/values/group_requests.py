"""The requests of consumer groups, encoded and decoded by kafka-python."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tests.support.oracles.kafka_oracle import messages_of

DeleteGroupsRequest, DeleteGroupsResponse = messages_of("admin", "DeleteGroups")
DescribeGroupsRequest, DescribeGroupsResponse = messages_of("admin", "DescribeGroups")
ListGroupsRequest, ListGroupsResponse = messages_of("admin", "ListGroups")
HeartbeatRequest, HeartbeatResponse = messages_of("consumer", "Heartbeat")
JoinGroupRequest, JoinGroupResponse = messages_of("consumer", "JoinGroup")
LeaveGroupRequest, LeaveGroupResponse = messages_of("consumer", "LeaveGroup")
SyncGroupRequest, SyncGroupResponse = messages_of("consumer", "SyncGroup")

SESSION_TIMEOUT_MS: Final = 10_000
REBALANCE_TIMEOUT_MS: Final = 30_000


def join_request(
    group: str,
    member_id: str = "",
    *,
    instance_id: str | None = None,
    protocols: Mapping[str, bytes] | None = None,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
    rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS,
    protocol_type: str = "consumer",
) -> Any:
    """A JoinGroup request; one protocol `range` with metadata `m` unless others are given."""
    kind = JoinGroupRequest.JoinGroupRequestProtocol
    given = {"range": b"m"} if protocols is None else protocols
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type=protocol_type,
        protocols=[kind(name=name, metadata=metadata) for name, metadata in given.items()],
        reason="a test",
    )


def sync_request(
    group: str,
    member_id: str,
    generation: int,
    assignments: Mapping[str, bytes] | None = None,
    *,
    instance_id: str | None = None,
    protocol: str | None = None,
) -> Any:
    """A SyncGroup request; the leader's has assignments."""
    kind = SyncGroupRequest.SyncGroupRequestAssignment
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type=None if protocol is None else "consumer",
        protocol_name=protocol,
        assignments=[
            kind(member_id=each, assignment=assignment)
            for each, assignment in (assignments or {}).items()
        ],
    )


def heartbeat_request(
    group: str, member_id: str, generation: int, instance_id: str | None = None
) -> Any:
    """A Heartbeat request."""
    return HeartbeatRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance_id,
    )


def leave_request(group: str, members: Iterable[tuple[str, str | None]]) -> Any:
    """A LeaveGroup request for members, by member and instance id; before version 3 the first."""
    kind = LeaveGroupRequest.MemberIdentity
    members = list(members)
    return LeaveGroupRequest(
        group_id=group,
        member_id=members[0][0],
        members=[
            kind(member_id=member_id, group_instance_id=instance_id, reason="a test")
            for member_id, instance_id in members
        ],
    )


def describe_request(*groups: str) -> Any:
    """A DescribeGroups request."""
    return DescribeGroupsRequest(groups=list(groups), include_authorized_operations=True)


def list_request(states: Iterable[str] = (), types: Iterable[str] = ()) -> Any:
    """A ListGroups request."""
    return ListGroupsRequest(states_filter=list(states), types_filter=list(types))
