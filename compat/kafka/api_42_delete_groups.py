"""DeleteGroups (key 42): v0-2.

Behaviour: each group is deleted with its offsets, or answered by itself: NON_EMPTY_GROUP while it
has members, GROUP_ID_NOT_FOUND. If the disk is full it stays: COORDINATOR_NOT_AVAILABLE, after
which clients try again.

Versions: 1 as 0; 2 flexible.
Layer 4; does no I/O.
"""

from compat.kafka.node import Node
from compat.kafka.registry import Fields, handles


@handles(key=42, name="DeleteGroups", versions=(0, 2), flexible_from=2)
def delete_groups(node: Node, version: int, request: Fields) -> Fields:
    """Delete groups that have no members."""
    return {
        "results": [
            {"group_id": group_id, "error_code": node.groups.delete(group_id)}
            # One that is named twice was there once.
            for group_id in dict.fromkeys(request["groups_names"])
        ]
    }
