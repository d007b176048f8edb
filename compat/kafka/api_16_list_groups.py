"""ListGroups (key 16): v0-5.

Behaviour: all groups, also those that consist of committed offsets alone: they are "Empty" and have
no protocol type. They can be chosen by state (v4+) and type (v5), in either case of letters; a
state or type that does not exist chooses none.

Versions: 1 throttle time; 2 as 1; 3 flexible; 4 states; 5 types.
Layer 4; does no I/O.
"""

from typing import Final

from compat.kafka.error_codes import ErrorCode
from compat.kafka.node import Node
from compat.kafka.registry import Fields, handles

_TYPE: Final = "classic"


@handles(key=16, name="ListGroups", versions=(0, 5), flexible_from=3)
def list_groups(node: Node, version: int, request: Fields) -> Fields:
    """Tell which groups there are."""
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
    return {"error_code": ErrorCode.NONE, "groups": chosen}
