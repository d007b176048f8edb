"""SyncGroup (key 14): v0-5.

Behaviour: Kafka's, see compat.kafka.groups.rebalance. The leader brings the assignment of every
member, and all that ask get theirs then; a member of a stable group at once. A member that the
leader has left out gets an empty one.
- While members are joining: REBALANCE_IN_PROGRESS. Of another generation: ILLEGAL_GENERATION. A
  protocol (v5) other than the group's: INCONSISTENT_GROUP_PROTOCOL.
- Whoever has joined and does not ask for its assignment within the rebalance time-out is removed.
- Assignments beyond `groups.size_max_bytes` or `groups.total_size_max_bytes`:
  UNKNOWN_SERVER_ERROR to all, as Kafka does if a group is too large for its log.

Deviations: a second SyncGroup of a member that waits answers the first with REBALANCE_IN_PROGRESS;
Kafka lets it hang.

Versions: 1 throttle time; 2 as 1; 3 static members; 4 flexible; 5 protocol type and name.
Layer 4; does no I/O.
"""

from compat.kafka.groups.member import SyncAnswer, SyncRequest
from compat.kafka.node import Node
from compat.kafka.registry import Fields, Later, handles


@handles(key=14, name="SyncGroup", versions=(0, 5), flexible_from=4)
def sync_group(node: Node, version: int, request: Fields) -> Later:
    """Tell a member what it has to consume, as soon as the leader has said so."""
    later = Later()
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
        _Reply(later),
        node.now_ms(),
    )
    return later


class _Reply:
    """Turns the coordinator's answer into a response."""

    def __init__(self, later: Later) -> None:
        self._later = later

    @property
    def is_abandoned(self) -> bool:
        return self._later.is_abandoned

    def complete(self, answer: SyncAnswer) -> None:
        self._later.complete(
            {
                "error_code": answer.error,
                "protocol_type": answer.protocol_type,
                "protocol_name": answer.protocol,
                "assignment": answer.assignment,
            }
        )
