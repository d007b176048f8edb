"""ListGroups (key 16): v0-5.

Behaviour: returns all groups, including those that have only committed offsets: they are "Empty"
and have no protocol type. State (v4+) and type (v5) filter the groups, ignoring case; an unknown
state or type matches none.

Versions: 1 throttle time; 2 as 1; 3 flexible; 4 states; 5 types.
Layer 4; does no I/O.
"""

from typing import Final

from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.needs import with_code
from compat.kafka.protocol.registry import Fields, Needs, handles

_TYPE: Final = "classic"
_NEEDS: Final = Needs(
    lambda node, request: node.broker.groups.changes.last,
    with_code(ErrorCode.coordinator_load_in_progress),
)


@handles(key=16, name="ListGroups", versions=(0, 5), flexible_from=3, needs=_NEEDS)
def list_groups(node: Node, version: int, request: Fields) -> Fields:
    """Return the groups that match the filters."""
    states = {state.lower() for state in request.get("states_filter", ())}
    types = {kind.lower() for kind in request.get("types_filter", ())}
    chosen = [
        {
            "group_id": group.group_id,
            "protocol_type": group.protocol_type or "",
            "group_state": group.state.value,
            "group_type": _TYPE,
        }
        for group in node.groups.groups()
        if (not states or group.state.value.lower() in states) and (not types or _TYPE in types)
    ]
    return {"error_code": ErrorCode.none, "groups": chosen}
