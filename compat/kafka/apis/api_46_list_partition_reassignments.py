"""ListPartitionReassignments (key 46): v0.

Behaviour: partitions never move, so the answer is always empty, whichever partitions are named.

Deviations: none.

Versions: 0 is flexible from the start.
Layer 4; does no I/O.
"""

from typing import Final

from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.needs import on_slave, refuse
from compat.kafka.protocol.registry import Fields, handles

_ON_SLAVE: Final = on_slave(ErrorCode.not_controller, refuse, error_message=None, topics=())


@handles(
    key=46,
    name="ListPartitionReassignments",
    versions=(0, 0),
    flexible_from=0,
    needs=None,
    on_slave=_ON_SLAVE,
)
def list_partition_reassignments(node: Node, version: int, request: Fields) -> Fields:
    """Answer that no partition moves."""
    return {"error_code": ErrorCode.none, "error_message": None, "topics": ()}
