"""Heartbeat (key 12): v0-4.

Behaviour: restarts the member's session. REBALANCE_IN_PROGRESS asks the member to rejoin;
ILLEGAL_GENERATION and UNKNOWN_MEMBER_ID mean that the group continued without it;
FENCED_INSTANCE_ID means that another client uses its instance id.

Versions: 1 throttle time; 2 as 1; 3 static members; 4 flexible.
Layer 4; does no I/O.
"""

from typing import Final

from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.needs import on_slave, refuse
from compat.kafka.protocol.registry import Fields, handles

_ON_SLAVE: Final = on_slave(ErrorCode.not_coordinator, refuse)


@handles(key=12, name="Heartbeat", versions=(0, 4), flexible_from=4, needs=None, on_slave=_ON_SLAVE)
def heartbeat(node: Node, version: int, request: Fields) -> Fields:
    """Restart the session of a member."""
    error = node.groups.heartbeat(
        request["group_id"],
        request["member_id"],
        request.get("group_instance_id"),
        request["generation_id"],
        node.now_ms(),
        address=node.client.host,
    )
    return {"error_code": error}
