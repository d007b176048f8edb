"""OffsetDelete (key 47): v0.

Behaviour:
- Each partition has its own error code. A partition without a committed offset is not an error. A
  missing partition gets UNKNOWN_TOPIC_OR_PARTITION. A partition of a topic to which a member of the
  group is subscribed gets GROUP_SUBSCRIBED_TO_TOPIC.
- If any of the partitions exists, the group must exist, otherwise GROUP_ID_NOT_FOUND. A group whose
  members are not consumers (a protocol type other than "consumer") keeps its offsets:
  NON_EMPTY_GROUP. An empty group name gets INVALID_GROUP_ID.
- If the disk is full, nothing is deleted: COORDINATOR_NOT_AVAILABLE.
- A request that names more than 300 partitions deletes 300 at a time, each time all or none;
  fewer if the group's name is long. A partition that is named more than once is answered
  once.

Deviations: none.
Layer 4; does no I/O.
"""

from typing import Final

from appliance.errors import RequestError
from appliance.store.state.group_frames import OFFSET_DELETED, OffsetEntry
from compat.kafka.groups.offset_rules import (
    Answers,
    answer_partitions,
    check_delete,
    commit_code_of,
    in_steps,
)
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.named_items import by_partition
from compat.kafka.protocol.needs import GROUP, on_slave, refuse
from compat.kafka.protocol.registry import Fields, Needs, Response, handles
from compat.kafka.protocol.slices import InPieces, Steps

_NEEDS: Final = Needs(GROUP, refuse(ErrorCode.coordinator_not_available, topics=()))

_ON_SLAVE: Final = on_slave(ErrorCode.not_coordinator, refuse, topics=())


@handles(
    key=47, name="OffsetDelete", versions=(0, 0), flexible_from=1, needs=_NEEDS, on_slave=_ON_SLAVE
)
def offset_delete(node: Node, version: int, request: Fields) -> Steps[Response]:
    """Delete committed offsets of one group."""
    by_name = yield from by_partition(request["topics"], "name", "partitions", "partition_index")
    group: str = request["group_id"]
    error: int = ErrorCode.none
    answers = Answers()
    asked = ((name, index) for name, indexes in by_name.items() for index in indexes)
    for chunk, work in in_steps(asked, lambda _: len(group)):
        error = error or _delete(node, group, chunk, answers)
        yield work
    if error != ErrorCode.none:
        return {"error_code": error, "topics": []}
    return InPieces({"error_code": error, "topics": answer_partitions(by_name, answers)})


def _delete(node: Node, group: str, asked: list[tuple[str, int]], answers: Answers) -> int:
    """Delete offsets, all or none; return the error of the whole request."""
    found = []
    for name, index in asked:
        topic = node.broker.topics.find(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            answers[name, index] = ErrorCode.unknown_topic_or_partition
        else:
            found.append((topic, index))
    error = check_delete(node.groups, group) if found else ErrorCode.none
    if error != ErrorCode.none:
        return error
    committed = node.broker.groups.offsets(group)
    entries = []
    for topic, index in found:
        if node.groups.is_subscribed(group, topic.name):
            answers[topic.name, index] = ErrorCode.group_subscribed_to_topic
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
