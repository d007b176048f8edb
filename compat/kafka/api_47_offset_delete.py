"""OffsetDelete (key 47): v0.

Behaviour:
- Each partition is answered by itself; one on which nothing is committed is no error. One that does
  not exist: UNKNOWN_TOPIC_OR_PARTITION. One whose topic a member of the group is subscribed to:
  GROUP_SUBSCRIBED_TO_TOPIC.
- Unless no partition exists, the group must: GROUP_ID_NOT_FOUND. One with members which are not
  consumers (a protocol type other than "consumer") keeps its offsets: NON_EMPTY_GROUP. No name at
  all: INVALID_GROUP_ID.
- The disk is full: COORDINATOR_NOT_AVAILABLE, and nothing is deleted.

Deviations: none.
Layer 4; does no I/O.
"""

from appliance.errors import RequestError
from appliance.store.group_frames import OFFSET_DELETED, OffsetEntry
from compat.kafka.error_codes import ErrorCode
from compat.kafka.groups.offset_rules import check_delete, code_of
from compat.kafka.node import Node, TopicView
from compat.kafka.registry import Fields, handles


@handles(key=47, name="OffsetDelete", versions=(0, 0), flexible_from=1)
def offset_delete(node: Node, version: int, request: Fields) -> Fields:
    """Delete committed offsets of one group."""
    group: str = request["group_id"]
    topics = []
    found: list[tuple[TopicView, Fields]] = []
    for asked in request["topics"]:
        topic = node.broker.find_topic(asked["name"])
        answers: list[Fields] = []
        for partition in asked["partitions"]:
            index: int = partition["partition_index"]
            answers.append({"partition_index": index, "error_code": ErrorCode.NONE})
            if topic is None or not 0 <= index < len(topic.partitions):
                answers[-1]["error_code"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                found.append((topic, answers[-1]))
        topics.append({"name": asked["name"], "partitions": answers})
    error = _delete(node, group, found) if found else ErrorCode.NONE
    return {"error_code": error, "topics": [] if error else topics}


def _delete(node: Node, group: str, found: list[tuple[TopicView, Fields]]) -> int:
    """Delete what is committed on partitions that exist; the error of the whole request."""
    error = check_delete(node.groups, group)
    if error != ErrorCode.NONE:
        return error
    committed = node.broker.committed_offsets(group)
    entries = []
    for topic, answer in found:
        index: int = answer["partition_index"]
        if node.groups.is_subscribed(group, topic.name):
            answer["error_code"] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        elif (topic.topic_id, index) in committed:
            entries.append(
                OffsetEntry(
                    op=OFFSET_DELETED, group=group, topic_id=topic.topic_id, partition=index
                )
            )
    try:
        node.broker.commit_offsets(entries)
    except RequestError as refusal:
        return code_of(refusal)
    return ErrorCode.NONE
