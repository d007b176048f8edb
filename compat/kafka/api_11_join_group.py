"""JoinGroup (key 11): v0-9.

Behaviour: Kafka's, see compat.kafka.groups.rebalance. The answer comes when all members of the
group have joined, or their rebalance time-out is over; `groups.initial_rebalance_delay_ms` after
the first one in a group that was empty.
- A client without a member id is told one (v4+: MEMBER_ID_REQUIRED) and joins with it. The id is
  good for the session time-out.
- A member that joins again with the same protocols and metadata gets the present generation
  back, if the group is not waiting for members just now; the leader of a stable group, and a member
  that has changed, make everybody join again.
- A static member (v5+) that comes without a member id takes its place again under a new id. In a
  stable group nobody else notices; the leader is told to leave the assignment as it is (v9).
- The session time-out must lie within `groups.session_timeout_min_ms` and `_max_ms`:
  INVALID_SESSION_TIMEOUT. No protocol that all members have: INCONSISTENT_GROUP_PROTOCOL.
- Too many members, groups, or bytes: GROUP_MAX_SIZE_REACHED. A member that is refused so leaves.

Deviations:
- The part of a member id in front of the UUID has at most 255 characters.
- A second JoinGroup of a member that waits answers the first with UNKNOWN_MEMBER_ID; Kafka lets it
  hang.
- A new member whose connection is lost while it waits does not get into the generation.
- The reason (v8+) is ignored.

Versions: 0 the session time-out is the rebalance time-out; 1 rebalance time-out; 2 throttle time;
3 as 2; 4 the id comes first; 5 static members; 6 flexible; 7 protocol type in the answer;
8 reason; 9 skip_assignment.
Layer 4; does no I/O.
"""

from typing import Final

from compat.kafka.groups.member import JoinAnswer, JoinRequest
from compat.kafka.node import Node
from compat.kafka.registry import Fields, Later, handles

_FIRST_VERSION_WITH_REBALANCE_TIMEOUT: Final = 1
_FIRST_VERSION_WITH_ID_REQUIRED: Final = 4
_FIRST_VERSION_WITH_NO_PROTOCOL: Final = 7
_FIRST_VERSION_WITH_SKIPPING: Final = 9


@handles(key=11, name="JoinGroup", versions=(0, 9), flexible_from=6)
def join_group(node: Node, version: int, request: Fields) -> Later:
    """Let a client take part in a group, when the others are there as well."""
    later = Later()
    session_timeout_ms: int = request["session_timeout"]
    rebalance_timeout_ms: int = request.get("rebalance_timeout", session_timeout_ms)
    if version < _FIRST_VERSION_WITH_REBALANCE_TIMEOUT or rebalance_timeout_ms < 0:
        rebalance_timeout_ms = session_timeout_ms
    node.groups.join(
        JoinRequest(
            group_id=request["group_id"],
            member_id=request["member_id"],
            instance_id=request.get("group_instance_id"),
            client_id=node.client.client_id,
            client_host=node.client.host,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            protocol_type=request["protocol_type"],
            protocols={each["name"]: each["metadata"] for each in request["protocols"]},
            is_member_id_required=version >= _FIRST_VERSION_WITH_ID_REQUIRED,
            can_skip_assignment=version >= _FIRST_VERSION_WITH_SKIPPING,
        ),
        _Reply(later, version),
        node.now_ms(),
    )
    return later


class _Reply:
    """Turns the coordinator's answer into a response."""

    def __init__(self, later: Later, version: int) -> None:
        self._later = later
        self._version = version

    @property
    def is_abandoned(self) -> bool:
        return self._later.is_abandoned

    def complete(self, answer: JoinAnswer) -> None:
        protocol = answer.protocol
        if protocol is None and self._version < _FIRST_VERSION_WITH_NO_PROTOCOL:
            protocol = ""
        self._later.complete(
            {
                "error_code": answer.error,
                "generation_id": answer.generation,
                "protocol_type": answer.protocol_type,
                "protocol_name": protocol,
                "leader": answer.leader_id,
                "skip_assignment": answer.skip_assignment,
                "member_id": answer.member_id,
                "members": [
                    {"member_id": member_id, "group_instance_id": instance_id, "metadata": metadata}
                    for member_id, instance_id, metadata in answer.members
                ],
            }
        )
