"""CreateTopics (key 19): v2-7.

Behaviour:
- Each topic is made or refused by itself. With validate_only everything is checked and nothing is
  made. A name that occurs twice in a request is refused: INVALID_REQUEST.
- Partitions: -1 (in every version) means the broker's default.
- Replicas: there is one broker, so -1 or 1, else INVALID_REPLICATION_FACTOR. An assignment by hand
  is taken if it puts each partition, numbered from 0 without a gap, on this broker alone, else
  INVALID_REPLICA_ASSIGNMENT; partitions and replicas must then be -1 (INVALID_REQUEST).
- Settings: compat.kafka.topic_settings; INVALID_CONFIG with a sentence for each that is refused.
- v5+ answers all settings of the new topic, those with a choice as changeable.
- A topic exists, and can be used, when it is answered; the answer waits for the flush.

Deviations:
- The request's timeout is ignored: nothing here takes long.
- Names that differ only in . and _ are different names; Kafka forbids the second for the sake of
  its metric names.

Versions: 2 throttle time; 3 as 2; 4 defaults by -1; 5 flexible, settings in the answer; 6 may
answer quota errors; 7 topic ids.
Layer 4; does no I/O.
"""

from typing import Final

from appliance.errors import RequestError
from compat.kafka.error_codes import ErrorCode
from compat.kafka.node import Node
from compat.kafka.registry import Fields, handles
from compat.kafka.topic_names import check_topic_name
from compat.kafka.topic_settings import check_topic_settings, list_topic_settings

_DEFAULT: Final = -1


@handles(key=19, name="CreateTopics", versions=(2, 7), flexible_from=5)
def create_topics(node: Node, version: int, request: Fields) -> Fields:
    """Make topics, each for itself."""
    by_name: dict[str, list[Fields]] = {}
    for topic in request["topics"]:
        by_name.setdefault(topic["name"], []).append(topic)
    results = []
    for name, topics in by_name.items():
        try:
            if len(topics) > 1:
                raise _invalid_request("the request names this topic more than once")
            result = _create_topic(node, topics[0], request["validate_only"])
        except RequestError as error:
            result = _refuse(error)
        results.append({"name": name, **result})
    return {"topics": results}


def _create_topic(node: Node, asked: Fields, is_only_checked: bool) -> Fields:
    """Make or check one topic. Raises RequestError."""
    broker = node.broker
    name: str = asked["name"]
    check_topic_name(name)
    partition_count = _read_partition_count(node, asked)
    settings = check_topic_settings(
        {setting["name"]: setting["value"] for setting in asked["configs"]}, broker.config
    )
    if is_only_checked:
        broker.check_topic(name, partition_count, settings)
        topic_id = None
    else:
        topic_id = broker.create_topic(name, partition_count, settings).uuid
    return {
        "topic_id": topic_id,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "num_partitions": partition_count,
        "replication_factor": 1,
        "configs": [setting.fields() for setting in list_topic_settings(settings, broker.config)],
    }


def _read_partition_count(node: Node, asked: Fields) -> int:
    partition_count: int = asked["num_partitions"]
    replica_count: int = asked["replication_factor"]
    if asked["assignments"]:
        if (partition_count, replica_count) != (_DEFAULT, _DEFAULT):
            raise _invalid_request("with an assignment, partitions and replicas must be -1")
        return _check_assignments(node.broker.node_id, asked["assignments"])
    if replica_count not in (_DEFAULT, 1):
        raise RequestError(
            f"replication factor {replica_count}: there is one broker, so it is 1",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )
    if partition_count == _DEFAULT:
        return node.broker.config.default_partition_count
    return partition_count


def _check_assignments(node_id: int, assignments: list[Fields]) -> int:
    """Return the number of partitions."""
    assigned = {item["partition_index"]: item["broker_ids"] for item in assignments}
    if len(assigned) < len(assignments) or set(assigned) != set(range(len(assigned))):
        raise RequestError(
            "the assigned partitions are not numbered from 0 without a gap",
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        )
    if any(broker_ids != [node_id] for broker_ids in assigned.values()):
        raise RequestError(
            f"a partition can be assigned to [{node_id}] only, the one broker",
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        )
    return len(assigned)


def _invalid_request(message: str) -> RequestError:
    return RequestError(message, ErrorCode.INVALID_REQUEST)


def _refuse(error: RequestError) -> Fields:
    return {
        "topic_id": None,
        "error_code": error.code,
        "error_message": error.message,
        "configs": (),
    }
