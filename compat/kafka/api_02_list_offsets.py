"""ListOffsets (key 2): v1-9.

Behaviour:
- -1 latest: the first offset that cannot be fetched yet (the high watermark), whatever the
  isolation level, as there are no open transactions; -2 earliest; -3 (v7+) the record with the
  highest timestamp; 0 and up: the first offset from which the running maximum of timestamps
  reaches the time. Records that wait for their time have no offset and count nowhere.
- Nothing found: offset -1 and timestamp -1, without error.
- The leader epoch (v4+) is the log's. A request that names an older one: FENCED_LEADER_EPOCH, a
  newer one: UNKNOWN_LEADER_EPOCH.
- Tiers that do not exist: -4 (v8+), the earliest on local disk, is the earliest; -5 (v9+), the
  latest in the remote tier, is not found. Other negative times, and these in older versions:
  UNSUPPORTED_VERSION.
- A look-up by time reads frames. What is not in memory is read by a thread meanwhile, and damaged
  frames are passed over; KAFKA_STORAGE_ERROR if that does not come to an end.

Deviations: the replica id is ignored.

Versions: 1 one offset with its timestamp; 2 isolation level, throttle time; 4 leader epochs;
6 flexible; 7 highest timestamp; 8 earliest local; 9 latest in the remote tier.
Layer 4; does no I/O.
"""

from typing import Final

from compat.kafka.cold_search import ColdSearch
from compat.kafka.error_codes import ErrorCode
from compat.kafka.node import Node, TopicView
from compat.kafka.registry import Fields, Later, handles

_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5

_FIRST_VERSION: Final = {
    _LATEST: 1,
    _EARLIEST: 1,
    _MAX_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
}
"""Kafka's table of what a negative time means, and from which version of the request on."""

_NO_EPOCH: Final = -1

_NOTHING: Final[Fields] = {
    "error_code": ErrorCode.NONE,
    "timestamp": -1,
    "offset": -1,
    "leader_epoch": _NO_EPOCH,
}


@handles(key=2, name="ListOffsets", versions=(1, 9), flexible_from=6)
def list_offsets(node: Node, version: int, request: Fields) -> Later:
    """Answer one offset for each partition that is asked about."""
    asked = [
        (node.broker.find_topic(topic["name"]), partition)
        for topic in request["topics"]
        for partition in topic["partitions"]
    ]

    def respond(answers: list[Fields]) -> Fields:
        rest = iter(
            {"partition_index": partition["partition_index"], **_NOTHING, **answer}
            for (_, partition), answer in zip(asked, answers, strict=True)
        )
        topics = [
            {"name": topic["name"], "partitions": [next(rest) for _ in topic["partitions"]]}
            for topic in request["topics"]
        ]
        return {"topics": topics}

    return ColdSearch(node, asked, lambda item: _answer(node, version, *item), respond).later


def _answer(node: Node, version: int, topic: TopicView | None, asked: Fields) -> Fields:
    """Return what differs from "nothing found"."""
    index: int = asked["partition_index"]
    if topic is None or not 0 <= index < len(topic.partitions):
        return {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    epoch = node.broker.epoch
    client_epoch: int = asked.get("current_leader_epoch", _NO_EPOCH)
    if client_epoch != _NO_EPOCH and client_epoch < epoch:
        return {"error_code": ErrorCode.FENCED_LEADER_EPOCH}
    if client_epoch > epoch:
        return {"error_code": ErrorCode.UNKNOWN_LEADER_EPOCH}
    timestamp: int = asked["timestamp"]
    if timestamp < 0 and version < _FIRST_VERSION.get(timestamp, version + 1):
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION}
    found = _find(node, topic, index, timestamp)
    if found is None:
        return {}
    return {"offset": found[0], "timestamp": found[1], "leader_epoch": epoch}


def _find(node: Node, topic: TopicView, index: int, timestamp: int) -> tuple[int, int] | None:
    """Return offset and timestamp; the timestamp is -1 where the offset alone was asked for."""
    partition = topic.partitions[index]
    if timestamp >= 0:
        return node.broker.offset_for_time(topic, index, timestamp)
    if timestamp == _LATEST:
        return partition.visible_offset, -1
    if timestamp == _MAX_TIMESTAMP:
        return node.broker.offset_of_max_timestamp(topic, index)
    if timestamp == _LATEST_TIERED:
        return None
    assert timestamp in (_EARLIEST, _EARLIEST_LOCAL)
    return partition.start_offset, -1
