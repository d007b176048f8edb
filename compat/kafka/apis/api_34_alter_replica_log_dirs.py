"""AlterReplicaLogDirs (key 34): v1-2.

Behaviour:
- There is one directory, the data directory, and every partition is in it: to move a partition
  there changes nothing and is no error. Another directory gets LOG_DIR_NOT_FOUND, a missing
  partition UNKNOWN_TOPIC_OR_PARTITION. Each partition is answered once.

Deviations: none.

Versions: 1 as 0; 2 flexible.
Layer 4; does no I/O.
"""

from compat.kafka.configs.internal_topic import is_internal_partition
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.registry import SERVED, Fields, handles
from compat.kafka.protocol.slices import VALUE_WORK, InPieces, Items


@handles(
    key=34,
    name="AlterReplicaLogDirs",
    versions=(1, 2),
    flexible_from=2,
    needs=None,
    on_slave=SERVED,
)
def alter_replica_log_dirs(node: Node, version: int, request: Fields) -> InPieces:
    """Answer where partitions cannot be moved to."""
    return InPieces({"results": _answer_topics(node, request["dirs"])})


def _answer_topics(node: Node, directories: list[Fields]) -> Items:
    paths: dict[str, dict[int, str]] = {}
    for directory in directories:
        for topic in directory["topics"]:
            of_topic = paths.setdefault(topic["name"], {})
            for index in topic["partitions"]:
                of_topic[index] = directory["path"]
                yield VALUE_WORK
    for name, of_topic in paths.items():
        yield {"topic_name": name, "partitions": _answer_partitions(node, name, of_topic)}


def _answer_partitions(node: Node, name: str, paths: dict[int, str]) -> Items:
    for index, path in paths.items():
        yield {"partition_index": index, "error_code": _check(node, path, name, index)}


def _check(node: Node, path: str, name: str, index: int) -> int:
    if path != str(node.broker.config.data_dir):
        return ErrorCode.log_dir_not_found
    topic = node.broker.topics.find(name)
    if topic is not None and 0 <= index < len(topic.partitions):
        return ErrorCode.none
    if topic is None and is_internal_partition(name, index):
        return ErrorCode.none
    return ErrorCode.unknown_topic_or_partition
