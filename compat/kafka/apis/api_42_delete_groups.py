"""DeleteGroups (key 42): v0-2.

Behaviour: deletes groups with their offsets, each independently. A group with members gets
NON_EMPTY_GROUP, a missing one GROUP_ID_NOT_FOUND. If the disk is full, the group is kept:
COORDINATOR_NOT_AVAILABLE, after which clients retry. A group that is named twice is deleted and
answered once.

Versions: 1 as 0; 2 flexible.
Layer 4; does no I/O.
"""

from functools import partial
from typing import Final

from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.named_items import each_once
from compat.kafka.protocol.needs import of_groups, on_slave
from compat.kafka.protocol.registry import Fields, Needs, handles
from compat.kafka.protocol.slices import InPieces, Items


def _refuse(error: ErrorCode, node: Node, version: int, request: Fields) -> InPieces:
    groups = dict.fromkeys(request["groups_names"])
    return InPieces({"results": ({"group_id": each, "error_code": error} for each in groups)})


_NEEDS: Final = Needs(
    of_groups(lambda request: request["groups_names"]),
    partial(_refuse, ErrorCode.coordinator_not_available),
)

_ON_SLAVE: Final = on_slave(ErrorCode.not_coordinator, lambda code: partial(_refuse, code))


@handles(
    key=42, name="DeleteGroups", versions=(0, 2), flexible_from=2, needs=_NEEDS, on_slave=_ON_SLAVE
)
def delete_groups(node: Node, version: int, request: Fields) -> InPieces:
    """Delete groups that have no members."""
    return InPieces({"results": _delete_each(node, request["groups_names"])})


def _delete_each(node: Node, asked: list[str]) -> Items:
    for group_id in each_once(asked):
        if isinstance(group_id, int):
            yield group_id
        else:
            yield {"group_id": group_id, "error_code": node.groups.delete(group_id)}
