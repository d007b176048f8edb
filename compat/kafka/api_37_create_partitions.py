"""CreatePartitions (key 37): v0-3.

Behaviour:
- The number of a topic's partitions can rise: INVALID_PARTITIONS if it would not, or passes
  topics.partition_count_max_per_topic; POLICY_VIOLATION if it passes topics.partition_total_max.
  The new partitions are empty and can be used when they are answered; the answer waits for the
  flush.
- An assignment by hand is taken if it puts each new partition on this broker alone, else
  INVALID_REPLICA_ASSIGNMENT.
- Not there: UNKNOWN_TOPIC_OR_PARTITION. A topic that the request names more than once stays as it
  is and is answered once: INVALID_REQUEST.
- With validate_only everything is checked and nothing is made.

Deviations: the request's timeout is ignored: nothing here takes long.

Versions: 1 as 0; 2 flexible; 3 may answer quota errors.
Layer 4; does no I/O.
"""

from appliance.errors import RequestError
from compat.kafka.config_resources import find_topic
from compat.kafka.error_codes import ErrorCode
from compat.kafka.node import Node
from compat.kafka.registry import Fields, handles


@handles(key=37, name="CreatePartitions", versions=(0, 3), flexible_from=2)
def create_partitions(node: Node, version: int, request: Fields) -> Fields:
    """Add partitions, to each topic for itself."""
    by_name: dict[str, list[Fields]] = {}
    for topic in request["topics"]:
        by_name.setdefault(topic["name"], []).append(topic)
    results = []
    for name, topics in by_name.items():
        result = {"name": name, "error_code": ErrorCode.NONE, "error_message": None}
        try:
            if len(topics) > 1:
                raise RequestError(
                    "the request names this topic more than once", ErrorCode.INVALID_REQUEST
                )
            _add_partitions(node, topics[0], is_only_checked=request["validate_only"])
        except RequestError as error:
            result["error_code"], result["error_message"] = error.code, error.message
        results.append(result)
    return {"results": results}


def _add_partitions(node: Node, asked: Fields, *, is_only_checked: bool) -> None:
    """Add to one topic, or check it. Raises RequestError."""
    topic = find_topic(node, asked["name"])
    count: int = asked["count"]
    node.broker.check_partitions(topic, count)
    if asked["assignments"] is not None:
        _check_assignments(
            node.broker.node_id, asked["assignments"], added=count - len(topic.partitions)
        )
    if not is_only_checked:
        node.broker.add_partitions(topic, count)


def _check_assignments(node_id: int, assignments: list[Fields], *, added: int) -> None:
    if len(assignments) != added:
        raise RequestError(
            f"{added} partitions would be added, and {len(assignments)} are assigned",
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        )
    if any(assignment["broker_ids"] != [node_id] for assignment in assignments):
        raise RequestError(
            f"a partition can be assigned to [{node_id}] only, the one broker",
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        )
