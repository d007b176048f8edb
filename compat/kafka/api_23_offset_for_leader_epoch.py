"""OffsetForLeaderEpoch (key 23): v2-4.

Behaviour:
- Answers where the records of an epoch, and of all before it, end: a consumer that has read further
  in that epoch has read what was lost since. Of the present epoch that is the end of the partition.
- The epoch in the answer is the last one up to the one asked for that the log knows; the one asked
  for if all that it knows are later. An epoch that is yet to come: -1 and -1, no error.
- The client's own epoch: older than the broker's FENCED_LEADER_EPOCH, newer UNKNOWN_LEADER_EPOCH.
  Not there: UNKNOWN_TOPIC_OR_PARTITION.
- A look-up reads frames. What is not in memory is read by a thread meanwhile; KAFKA_STORAGE_ERROR
  if that does not come to an end.

Deviations:
- Epochs are the log's, the same for all partitions: an epoch in which a partition got no record is
  known all the same, and ends where it began.
- The replica id (v3+) is ignored: followers do not exist.

Versions: 2 the client's epoch, throttle time; 3 replica id; 4 flexible.
Layer 4; does no I/O.
"""

from typing import Final

from compat.kafka.cold_search import ColdSearch
from compat.kafka.error_codes import ErrorCode
from compat.kafka.node import Node, TopicView
from compat.kafka.registry import Fields, Later, handles

_NO_EPOCH: Final = -1


@handles(key=23, name="OffsetForLeaderEpoch", versions=(2, 4), flexible_from=4)
def offset_for_leader_epoch(node: Node, version: int, request: Fields) -> Later:
    """Answer the end of an epoch in each partition that is asked about."""
    asked = [
        (node.broker.find_topic(topic["topic"]), partition)
        for topic in request["topics"]
        for partition in topic["partitions"]
    ]

    def respond(answers: list[Fields]) -> Fields:
        rest = iter(answers)
        topics = []
        for topic in request["topics"]:
            partitions = [
                {"error_code": ErrorCode.NONE, "partition": each["partition"], **next(rest)}
                for each in topic["partitions"]
            ]
            topics.append({"topic": topic["topic"], "partitions": partitions})
        return {"topics": topics}

    return ColdSearch(node, asked, lambda item: _answer(node, *item), respond).later


def _answer(node: Node, topic: TopicView | None, asked: Fields) -> Fields:
    """Return what differs from "not known"."""
    index: int = asked["partition"]
    if topic is None or not 0 <= index < len(topic.partitions):
        return {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    client_epoch: int = asked["current_leader_epoch"]
    if client_epoch != _NO_EPOCH and client_epoch < node.broker.epoch:
        return {"error_code": ErrorCode.FENCED_LEADER_EPOCH}
    if client_epoch > node.broker.epoch:
        return {"error_code": ErrorCode.UNKNOWN_LEADER_EPOCH}
    epoch: int = asked["leader_epoch"]
    found = node.broker.end_of_epoch(topic, index, epoch) if epoch >= 0 else None
    return {} if found is None else {"leader_epoch": found[0], "end_offset": found[1]}
