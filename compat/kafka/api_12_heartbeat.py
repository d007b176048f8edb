"""Heartbeat (key 12): v0-4.

Behaviour: begins the member's session anew. REBALANCE_IN_PROGRESS tells it to join again,
ILLEGAL_GENERATION and UNKNOWN_MEMBER_ID that the group went on without it, FENCED_INSTANCE_ID that
another client has its instance id.

Versions: 1 throttle time; 2 as 1; 3 static members; 4 flexible.
Layer 4; does no I/O.
"""

from compat.kafka.node import Node
from compat.kafka.registry import Fields, handles


@handles(key=12, name="Heartbeat", versions=(0, 4), flexible_from=4)
def heartbeat(node: Node, version: int, request: Fields) -> Fields:
    """Note that a member is alive."""
    error = node.groups.heartbeat(
        request["group_id"],
        request["member_id"],
        request.get("group_instance_id"),
        request["generation_id"],
        node.now_ms(),
    )
    return {"error_code": error}
