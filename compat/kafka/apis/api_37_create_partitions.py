"""CreatePartitions (key 37): v0-3.

Behaviour:
- Increases the number of a topic's partitions. A number that is not higher, or above
  topics.partition_count_max_per_topic, gets INVALID_PARTITIONS; a total above
  topics.partition_total_max gets POLICY_VIOLATION. The new partitions are empty and usable when the
  response is sent; the response waits for the flush.
- A manual assignment must assign each new partition to this broker only, otherwise
  INVALID_REPLICA_ASSIGNMENT.
- A missing topic gets UNKNOWN_TOPIC_OR_PARTITION. A topic that the request names more than once is
  not changed and is answered once, with INVALID_REQUEST.
- With validate_only, everything is checked and nothing is created.

Deviations: the request's timeout is ignored: creation is immediate.

Versions: 1 as 0; 2 flexible; 3 may return quota errors.
Layer 4; does no I/O.
"""

from functools import partial
from typing import Final

from compat.kafka.configs.resources import find_topic
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import CodedError, ErrorCode
from compat.kafka.protocol.named_items import answer_each
from compat.kafka.protocol.needs import TOPICS, on_slave, refuse_each
from compat.kafka.protocol.registry import Fields, Needs, handles
from compat.kafka.protocol.slices import InPieces

_NEEDS: Final = Needs(
    TOPICS, refuse_each("topics", ("name",), "results", ErrorCode.request_timed_out)
)

_ON_SLAVE: Final = on_slave(
    ErrorCode.not_controller, partial(refuse_each, "topics", ("name",), "results")
)


@handles(
    key=37,
    name="CreatePartitions",
    versions=(0, 3),
    flexible_from=2,
    needs=_NEEDS,
    on_slave=_ON_SLAVE,
)
def create_partitions(node: Node, version: int, request: Fields) -> InPieces:
    """Add partitions to topics, each independently."""
    add = partial(_add_partitions, node, is_only_checked=request["validate_only"])
    results = answer_each(
        request["topics"], ("name",), "topic", add, partitions=lambda asked, _: asked["count"]
    )
    return InPieces({"results": results})


def _add_partitions(node: Node, asked: Fields, *, is_only_checked: bool) -> Fields:
    """Add partitions to one topic, or only check the request. Raises RequestError."""
    topic = find_topic(node, asked["name"])
    count: int = asked["count"]
    node.broker.topics.check_add_partitions(topic, count)
    if asked["assignments"] is not None:
        _check_assignments(
            node.broker.node_id, asked["assignments"], added=count - len(topic.partitions)
        )
    if not is_only_checked:
        node.broker.topics.add_partitions(topic, count)
    return {}


def _check_assignments(node_id: int, assignments: list[Fields], *, added: int) -> None:
    if len(assignments) != added:
        raise CodedError(
            ErrorCode.invalid_replica_assignment,
            f"{len(assignments)} partitions are assigned: assign the {added} that are added",
        )
    if any(assignment["broker_ids"] != [node_id] for assignment in assignments):
        raise CodedError(
            ErrorCode.invalid_replica_assignment,
            f"assign each partition to [{node_id}] only: it is the only broker",
        )
