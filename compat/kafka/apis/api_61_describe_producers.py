"""DescribeProducers (key 61): v0.

Behaviour:
- Returns the known idempotent producers of each partition: id, epoch, last sequence, and the time
  at which the last batch was stored. A producer expires after producers.id_expiry_ms without a
  batch.
- A missing partition gets UNKNOWN_TOPIC_OR_PARTITION. The internal topic has no producers. A
  partition that is named more than once is answered once.

Deviations:
- There are no transactions yet: the coordinator's epoch and the start offset are -1.

Versions: 0 is flexible from the start.
Layer 4; does no I/O.
"""

from typing import Final

from _core.queue.partition import Topic
from appliance.topics import NO_SUCH_TOPIC
from compat.kafka.configs.internal_topic import is_internal_partition
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.registry import Fields, handles

_NONE: Final = -1


@handles(key=61, name="DescribeProducers", versions=(0, 0), flexible_from=0, needs=None)
def describe_producers(node: Node, version: int, request: Fields) -> Fields:
    """Return the known producers of each requested partition."""
    by_name: dict[str, dict[int, None]] = {}
    for asked in request["topics"]:
        by_name.setdefault(asked["name"], {}).update(dict.fromkeys(asked["partition_indexes"]))
    topics = []
    for name, indexes in by_name.items():
        topic = node.broker.topics.find(name)
        partitions = [_describe(name, topic, index) for index in indexes]
        topics.append({"name": name, "partitions": partitions})
    return {"topics": topics}


def _describe(name: str, topic: Topic | None, index: int) -> Fields:
    if topic is None and is_internal_partition(name, index):
        return {"partition_index": index, "error_code": ErrorCode.none, "active_producers": ()}
    if topic is None or not 0 <= index < len(topic.partitions):
        return {
            "partition_index": index,
            "error_code": ErrorCode.unknown_topic_or_partition,
            "error_message": NO_SUCH_TOPIC,
            "active_producers": (),
        }
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "error_message": None,
        "active_producers": [
            {
                "producer_id": producer_id,
                "producer_epoch": state.epoch,
                "last_sequence": state.last_sequence,
                "last_timestamp": state.last_ms,
                "coordinator_epoch": _NONE,
                "current_txn_start_offset": _NONE,
            }
            for producer_id, state in topic.partitions[index].producers.items()
        ],
    }
