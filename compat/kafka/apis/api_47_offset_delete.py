"""OffsetDelete (key 47): v0.

Behaviour:
- Each partition has its own error code. A partition without a committed offset is not an error. A
  missing partition gets UNKNOWN_TOPIC_OR_PARTITION. A partition of a topic to which a member of the
  group is subscribed gets GROUP_SUBSCRIBED_TO_TOPIC.
- If any of the partitions exists, the group must exist, otherwise GROUP_ID_NOT_FOUND. A group whose
  members are not consumers (a protocol type other than "consumer") keeps its offsets:
  NON_EMPTY_GROUP. An empty group name gets INVALID_GROUP_ID.
- If the disk is full, nothing is deleted: COORDINATOR_NOT_AVAILABLE.

Deviations: none.
Layer 4; does no I/O.
"""

from _core.queue.partition import Topic
from appliance.errors import RequestError
from appliance.store.state.group_frames import OFFSET_DELETED, OffsetEntry
from compat.kafka.groups.offset_rules import check_delete, commit_code_of
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.needs import GROUP_CHANGED
from compat.kafka.protocol.registry import Fields, handles


@handles(key=47, name="OffsetDelete", versions=(0, 0), flexible_from=1, needs=GROUP_CHANGED)
def offset_delete(node: Node, version: int, request: Fields) -> Fields:
    """Delete committed offsets of one group."""
    group: str = request["group_id"]
    topics = []
    found: list[tuple[Topic, Fields]] = []
    for asked in request["topics"]:
        topic = node.broker.topics.find(asked["name"])
        answers: list[Fields] = []
        for partition in asked["partitions"]:
            index: int = partition["partition_index"]
            answers.append({"partition_index": index, "error_code": ErrorCode.none})
            if topic is None or not 0 <= index < len(topic.partitions):
                answers[-1]["error_code"] = ErrorCode.unknown_topic_or_partition
            else:
                found.append((topic, answers[-1]))
        topics.append({"name": asked["name"], "partitions": answers})
    error = _delete(node, group, found) if found else ErrorCode.none
    return {"error_code": error, "topics": [] if error else topics}


def _delete(node: Node, group: str, found: list[tuple[Topic, Fields]]) -> int:
    """Delete the offsets of existing partitions; return the error of the whole request."""
    error = check_delete(node.groups, group)
    if error != ErrorCode.none:
        return error
    committed = node.broker.groups.offsets(group)
    entries = []
    for topic, answer in found:
        index: int = answer["partition_index"]
        if node.groups.is_subscribed(group, topic.name):
            answer["error_code"] = ErrorCode.group_subscribed_to_topic
        elif (topic.topic_id, index) in committed:
            entries.append(
                OffsetEntry(
                    op=OFFSET_DELETED, group=group, topic_id=topic.topic_id, partition=index
                )
            )
    try:
        node.broker.groups.commit_offsets(entries)
    except RequestError as refusal:
        return commit_code_of(refusal)
    return ErrorCode.none
