"""DeleteGroups (key 42): v0-2.

Behaviour: deletes groups with their offsets, each independently. A group with members gets
NON_EMPTY_GROUP, a missing one GROUP_ID_NOT_FOUND. If the disk is full, the group is kept:
COORDINATOR_NOT_AVAILABLE, after which clients retry.

Versions: 1 as 0; 2 flexible.
Layer 4; does no I/O.
"""

from typing import Final

from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.needs import of_groups, with_code
from compat.kafka.protocol.registry import Fields, Needs, handles

_NEEDS: Final = Needs(
    of_groups(lambda request: request["groups_names"]),
    with_code(ErrorCode.coordinator_not_available),
)


@handles(key=42, name="DeleteGroups", versions=(0, 2), flexible_from=2, needs=_NEEDS)
def delete_groups(node: Node, version: int, request: Fields) -> Fields:
    """Delete groups that have no members."""
    return {
        "results": [
            {"group_id": group_id, "error_code": node.groups.delete(group_id)}
            # A group that is named twice is deleted once.
            for group_id in dict.fromkeys(request["groups_names"])
        ]
    }
