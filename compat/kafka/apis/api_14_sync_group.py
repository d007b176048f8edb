"""SyncGroup (key 14): v0-5.

Behaviour: as in Kafka; see compat.kafka.groups.rebalance. The leader sends the assignments of all
members; every waiting member then receives its own. In a stable group the response is immediate. A
member without an assignment from the leader receives an empty one.
- While members are joining: REBALANCE_IN_PROGRESS. With another generation: ILLEGAL_GENERATION.
  With a protocol (v5) other than the group's: INCONSISTENT_GROUP_PROTOCOL.
- A member that has joined but sends no SyncGroup within the rebalance time-out is removed.
- Assignments beyond `groups.size_max_bytes` or `groups.total_size_max_bytes` cause
  UNKNOWN_SERVER_ERROR for all members, as in Kafka if a group is too large for its log.

Deviations: a second SyncGroup of a waiting member completes the first with REBALANCE_IN_PROGRESS;
Kafka leaves the first unanswered.

Versions: 1 throttle time; 2 as 1; 3 static members; 4 flexible; 5 protocol type and name.
Layer 4; does no I/O.
"""

from typing import Final

from compat.kafka.groups.member import SyncAnswer, SyncRequest
from compat.kafka.node import Node
from compat.kafka.protocol.deferred import DeferredResponse
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.needs import GROUP, on_slave, refuse
from compat.kafka.protocol.registry import Fields, Needs, handles

_NEEDS: Final = Needs(GROUP, refuse(ErrorCode.coordinator_not_available, assignment=b""))

_ON_SLAVE: Final = on_slave(ErrorCode.not_coordinator, refuse, assignment=b"")


@handles(
    key=14, name="SyncGroup", versions=(0, 5), flexible_from=4, needs=_NEEDS, on_slave=_ON_SLAVE
)
def sync_group(node: Node, version: int, request: Fields) -> DeferredResponse[SyncAnswer]:
    """Return a member's assignment; the response is deferred until the leader has sent it."""
    deferred = DeferredResponse(_response)
    node.groups.sync(
        SyncRequest(
            group_id=request["group_id"],
            member_id=request["member_id"],
            instance_id=request.get("group_instance_id"),
            generation=request["generation_id"],
            protocol_type=request.get("protocol_type"),
            protocol=request.get("protocol_name"),
            assignments={each["member_id"]: each["assignment"] for each in request["assignments"]},
        ),
        deferred,
        node.now_ms(),
    )
    return deferred


def _response(answer: SyncAnswer) -> Fields:
    return {
        "error_code": answer.error,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol,
        "assignment": answer.assignment,
    }
