"""LeaveGroup (key 13): v0-5.

Behaviour: removes members at once and rebalances the others. A request may name many members (v3+);
each has its own error code, UNKNOWN_MEMBER_ID if it is named again. An operator can remove a static
member by its instance id alone. The reason (v5) is ignored.

Versions: 0 one member; 1 throttle time; 2 as 1; 3 many members, by member or instance id;
4 flexible; 5 reason.
Layer 4; does no I/O.
"""

from typing import Final

from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.needs import GROUP, on_slave, refuse
from compat.kafka.protocol.registry import Fields, Needs, handles
from compat.kafka.protocol.slices import InPieces, Items

_FIRST_VERSION_WITH_MANY: Final = 3

MEMBERS_AT_ONCE: Final = 1_000
"""Removed in one step, as many as a group has by default."""


_NEEDS: Final = Needs(GROUP, refuse(ErrorCode.coordinator_not_available, members=()))

_ON_SLAVE: Final = on_slave(ErrorCode.not_coordinator, refuse, members=())


@handles(
    key=13, name="LeaveGroup", versions=(0, 5), flexible_from=4, needs=_NEEDS, on_slave=_ON_SLAVE
)
def leave_group(node: Node, version: int, request: Fields) -> Fields | InPieces:
    """Remove members from a group."""
    group_id: str = request["group_id"]
    if not group_id:
        return {"error_code": ErrorCode.invalid_group_id, "members": ()}
    if version < _FIRST_VERSION_WITH_MANY:
        leaving = [(request["member_id"], None)]
        return {"error_code": node.groups.leave(group_id, leaving, node.now_ms())[0]}
    return InPieces(
        {"error_code": ErrorCode.none, "members": _remove(node, group_id, request["members"])}
    )


def _remove(node: Node, group_id: str, members: list[Fields]) -> Items:
    for start in range(0, len(members), MEMBERS_AT_ONCE):
        leaving = [
            (each["member_id"], each["group_instance_id"])
            for each in members[start : start + MEMBERS_AT_ONCE]
        ]
        errors = node.groups.leave(group_id, leaving, node.now_ms())
        for (member_id, instance_id), error in zip(leaving, errors, strict=True):
            yield {"member_id": member_id, "group_instance_id": instance_id, "error_code": error}
