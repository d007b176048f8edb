"""CreateTopics (key 19): v2-7.

Behaviour:
- Each topic is created or refused independently. With validate_only, everything is checked and
  nothing is created. A name that occurs twice in a request gets INVALID_REQUEST.
- Partitions: -1 (in every version) means the broker's default.
- Replication factor: there is one broker, so it must be -1 or 1, otherwise
  INVALID_REPLICATION_FACTOR. A manual assignment must number the partitions from 0 without gaps and
  assign each to this broker only, otherwise INVALID_REPLICA_ASSIGNMENT; partitions and replication
  factor must then be -1, otherwise INVALID_REQUEST.
- Settings: see compat.kafka.configs.topic_settings. A refused setting gets INVALID_CONFIG with a
  message.
- The internal topic exists: TOPIC_ALREADY_EXISTS.
- The response (v5+) has all settings of the new topic; those that clients can choose are not
  read-only.
- The topic exists and is usable when the response is sent; the response waits for the flush.

Deviations:
- The request's timeout is ignored: creation is immediate.
- Names that differ only in . and _ are distinct; Kafka refuses the second because its metric names
  would collide.

Versions: 2 throttle time; 3 as 2; 4 defaults by -1; 5 flexible, settings in the response; 6 may
return quota errors; 7 topic ids.
Layer 4; does no I/O.
"""

from functools import partial
from typing import Final

from appliance.errors import InvalidPartitionsError, InvalidRequestError, TopicExistsError
from compat.kafka.configs.internal_topic import INTERNAL_TOPIC
from compat.kafka.configs.topic_names import check_topic_name
from compat.kafka.configs.topic_settings import check_topic_settings, list_topic_settings
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import CodedError, ErrorCode
from compat.kafka.protocol.named_items import answer_each
from compat.kafka.protocol.needs import TOPICS, on_slave, refuse_each
from compat.kafka.protocol.registry import Fields, Needs, handles
from compat.kafka.protocol.slices import InPieces

_DEFAULT: Final = -1


_NEEDS: Final = Needs(
    TOPICS,
    refuse_each(
        "topics", ("name",), "topics", ErrorCode.request_timed_out, topic_id=None, configs=()
    ),
)

_ON_SLAVE: Final = on_slave(
    ErrorCode.not_controller,
    partial(refuse_each, "topics", ("name",), "topics"),
    topic_id=None,
    configs=(),
)


@handles(
    key=19, name="CreateTopics", versions=(2, 7), flexible_from=5, needs=_NEEDS, on_slave=_ON_SLAVE
)
def create_topics(node: Node, version: int, request: Fields) -> InPieces:
    """Create topics, each independently."""
    create = partial(_create_topic, node, is_only_checked=request["validate_only"])
    refused = {"topic_id": None, "configs": ()}
    asked = request["topics"]
    topics = answer_each(
        asked,
        ("name",),
        "topic",
        create,
        refused=refused,
        partitions=lambda _, answer: answer["num_partitions"],
    )
    return InPieces({"topics": topics})


def _create_topic(node: Node, asked: Fields, *, is_only_checked: bool) -> Fields:
    """Create or check one topic. Raises RequestError."""
    broker = node.broker
    name: str = asked["name"]
    if name == INTERNAL_TOPIC:
        raise TopicExistsError(f"Topic '{name}' already exists.")
    check_topic_name(name)
    partition_count = _read_partition_count(node, asked)
    settings = check_topic_settings(
        {setting["name"]: setting["value"] for setting in asked["configs"]}, broker.config
    )
    if is_only_checked:
        broker.topics.check_create(name, partition_count)
        topic_id = None
    else:
        topic_id = broker.topics.create(name, partition_count, settings).uuid
    return {
        "topic_id": topic_id,
        "num_partitions": partition_count,
        "replication_factor": 1,
        "configs": [setting.fields() for setting in list_topic_settings(settings, broker.config)],
    }


def _read_partition_count(node: Node, asked: Fields) -> int:
    partition_count: int = asked["num_partitions"]
    replica_count: int = asked["replication_factor"]
    if asked["assignments"]:
        limit = node.broker.config.partition_count_max_per_topic
        if len(asked["assignments"]) > limit:
            raise InvalidPartitionsError(
                f"{len(asked['assignments'])} partitions are assigned: use at most {limit}, the "
                "limit set by topics.partition_count_max_per_topic"
            )
        if (partition_count, replica_count) != (_DEFAULT, _DEFAULT):
            raise InvalidRequestError(
                "with a manual assignment, partition count and replication factor must be -1"
            )
        return _check_assignments(node.broker.node_id, asked["assignments"])
    if replica_count not in (_DEFAULT, 1):
        raise CodedError(
            ErrorCode.invalid_replication_factor,
            f"replication factor {replica_count} is invalid: use 1, there is one broker",
        )
    if partition_count == _DEFAULT:
        return node.broker.config.default_partition_count
    return partition_count


def _check_assignments(node_id: int, assignments: list[Fields]) -> int:
    """Return the number of partitions."""
    assigned = {item["partition_index"]: item["broker_ids"] for item in assignments}
    if len(assigned) < len(assignments) or set(assigned) != set(range(len(assigned))):
        raise CodedError(
            ErrorCode.invalid_replica_assignment,
            "the assigned partitions are not numbered consecutively from 0",
        )
    if any(broker_ids != [node_id] for broker_ids in assigned.values()):
        raise CodedError(
            ErrorCode.invalid_replica_assignment,
            f"assign each partition to [{node_id}] only: it is the only broker",
        )
    return len(assigned)
