"""JoinGroup (key 11): v0-9.

Behaviour: as in Kafka; see compat.kafka.groups.rebalance. The response is sent when all members of
the group have joined or the rebalance time-out has passed; in an empty group,
`groups.initial_rebalance_delay_ms` after the first member joins.
- A client without a member id receives one (v4+: with MEMBER_ID_REQUIRED) and joins with it. The id
  is valid for the session time-out.
- A member that rejoins with the same protocols and metadata gets the current generation again,
  unless the group is waiting for members. A rejoin of the leader of a stable group, or of a member
  with changed metadata, starts a rebalance.
- A static member (v5+) without a member id resumes its place under a new id. In a stable group the
  other members do not notice; a leader is told to skip the assignment (v9).
- The session time-out must be from `groups.session_timeout_min_ms` to `_max_ms`, otherwise
  INVALID_SESSION_TIMEOUT. Without a protocol common to all members: INCONSISTENT_GROUP_PROTOCOL.
- More than 100 protocols get INCONSISTENT_GROUP_PROTOCOL.
- Beyond the limits of members, groups or bytes: GROUP_MAX_SIZE_REACHED. An existing member that is
  refused for this reason is removed.

Deviations:
- The part of a member id before the UUID has at most 255 characters.
- A second JoinGroup of a waiting member completes the first with UNKNOWN_MEMBER_ID; Kafka leaves
  the first unanswered.
- A new member whose connection closes while it waits does not enter the generation.
- The reason (v8+) is ignored.

Versions: 0 the session time-out is the rebalance time-out; 1 rebalance time-out; 2 throttle time;
3 as 2; 4 member id required; 5 static members; 6 flexible; 7 protocol type in the response;
8 reason; 9 skip_assignment.
Layer 4; does no I/O.
"""

from functools import partial
from typing import Final

from compat.kafka.groups.member import JoinAnswer, JoinRequest
from compat.kafka.node import Node
from compat.kafka.protocol.deferred import DeferredResponse
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.needs import GROUP, on_slave
from compat.kafka.protocol.registry import Fields, Needs, handles
from compat.kafka.protocol.slices import InPieces

_FIRST_VERSION_WITH_REBALANCE_TIMEOUT: Final = 1
_FIRST_VERSION_WITH_ID_REQUIRED: Final = 4
_FIRST_VERSION_WITH_NO_PROTOCOL: Final = 7
_FIRST_VERSION_WITH_SKIPPING: Final = 9

PROTOCOLS_MAX: Final = 100
"""Protocols of one member, which are compared with those of all others. Clients send a few."""


def _refuse(error: ErrorCode, node: Node, version: int, request: Fields) -> InPieces:
    return _response(version, JoinAnswer(error=error, member_id=request["member_id"]))


_NEEDS: Final = Needs(GROUP, partial(_refuse, ErrorCode.coordinator_not_available))

_ON_SLAVE: Final = on_slave(ErrorCode.not_coordinator, lambda code: partial(_refuse, code))


@handles(
    key=11, name="JoinGroup", versions=(0, 9), flexible_from=6, needs=_NEEDS, on_slave=_ON_SLAVE
)
def join_group(node: Node, version: int, request: Fields) -> DeferredResponse[JoinAnswer]:
    """Add a client to a group; the response is deferred until all members have joined."""
    deferred = DeferredResponse(partial(_response, version))
    session_timeout_ms: int = request["session_timeout"]
    rebalance_timeout_ms: int = request.get("rebalance_timeout", session_timeout_ms)
    if version < _FIRST_VERSION_WITH_REBALANCE_TIMEOUT or rebalance_timeout_ms < 0:
        rebalance_timeout_ms = session_timeout_ms
    if len(request["protocols"]) > PROTOCOLS_MAX:
        error = ErrorCode.inconsistent_group_protocol
        deferred.complete(JoinAnswer(error=error, member_id=request["member_id"]))
        return deferred
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
        deferred,
        node.now_ms(),
    )
    return deferred


def _response(version: int, answer: JoinAnswer) -> InPieces:
    protocol = answer.protocol
    if protocol is None and version < _FIRST_VERSION_WITH_NO_PROTOCOL:
        protocol = ""
    return InPieces(
        {
            "error_code": answer.error,
            "generation_id": answer.generation,
            "protocol_type": answer.protocol_type,
            "protocol_name": protocol,
            "leader": answer.leader_id,
            "skip_assignment": answer.skip_assignment,
            "member_id": answer.member_id,
            "members": (
                {"member_id": member_id, "group_instance_id": instance_id, "metadata": metadata}
                for member_id, instance_id, metadata in answer.members
            ),
        }
    )
