"""ListGroups (key 16): v0-5.

Behaviour: returns all groups, including those that have only committed offsets: they are "Empty"
and have no protocol type. State (v4+) and type (v5) filter the groups, ignoring case; an unknown
state or type matches none.

Versions: 1 throttle time; 2 as 1; 3 flexible; 4 states; 5 types.
Layer 4; does no I/O.
"""

from typing import Final

from compat.kafka.groups.group import GroupState
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.needs import refuse
from compat.kafka.protocol.registry import Fields, Needs, OnSlave, handles
from compat.kafka.protocol.slices import VALUE_WORK, InPieces, Items

_TYPE: Final = "classic"


_NEEDS: Final = Needs(
    lambda node, request: iter((node.broker.groups.changes.last,)),
    refuse(ErrorCode.coordinator_load_in_progress, groups=()),
)

_ON_SLAVE: Final = OnSlave("no group", refuse(ErrorCode.none, groups=()))


@handles(
    key=16, name="ListGroups", versions=(0, 5), flexible_from=3, needs=_NEEDS, on_slave=_ON_SLAVE
)
def list_groups(node: Node, version: int, request: Fields) -> InPieces:
    """Return the groups that match the filters."""
    return InPieces({"error_code": ErrorCode.none, "groups": _list(node, request)})


def _list(node: Node, request: Fields) -> Items:
    states = {state.lower() for state in request.get("states_filter", ())}
    types = {kind.lower() for kind in request.get("types_filter", ())}
    if types and _TYPE not in types:
        return
    for group in list(node.groups.groups()):
        if group.state is GroupState.DEAD or (states and group.state.value.lower() not in states):
            yield VALUE_WORK  # it was deleted meanwhile, or does not match
            continue
        yield {
            "group_id": group.group_id,
            "protocol_type": group.protocol_type or "",
            "group_state": group.state.value,
            "group_type": _TYPE,
        }
