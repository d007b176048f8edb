"""DeleteRecords (key 21): v0-2.

Behaviour:
- Records of a partition below the given offset can no longer be fetched; -1 means all visible
  records. The response has the lowest remaining offset and waits for the flush. Deleting already
  deleted offsets is not an error and changes nothing.
- An offset above the high watermark or below -1 gets OFFSET_OUT_OF_RANGE, a missing partition
  UNKNOWN_TOPIC_OR_PARTITION. Each partition is answered once, with its own error code; if a request
  names it more than once, the highest offset applies.
- The internal topic gets INVALID_TOPIC_EXCEPTION.
- Pending delayed records are not affected: they have no offset yet. Deleted records stay in the log
  until their segment is removed, but are never returned.

Deviations: the request's timeout is ignored: deletion is immediate.

Versions: 1 as 0; 2 flexible.
Layer 4; does no I/O.
"""

from typing import Final

from _core.queue.partition import Topic
from appliance.errors import RequestError, UnknownTopicError
from compat.kafka.configs.internal_topic import check_changeable
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import CodedError, ErrorCode, code_of
from compat.kafka.protocol.needs import TOPICS, on_slave, refuse_partitions
from compat.kafka.protocol.registry import Fields, Needs, handles
from compat.kafka.protocol.slices import VALUE_WORK, InPieces, Items

_HIGH_WATERMARK: Final = -1
_NO_WATERMARK: Final = -1


_NEEDS: Final = Needs(TOPICS, refuse_partitions(ErrorCode.request_timed_out, low_watermark=-1))

_ON_SLAVE: Final = on_slave(ErrorCode.not_leader_or_follower, refuse_partitions, low_watermark=-1)


@handles(
    key=21, name="DeleteRecords", versions=(0, 2), flexible_from=2, needs=_NEEDS, on_slave=_ON_SLAVE
)
def delete_records(node: Node, version: int, request: Fields) -> InPieces:
    """Delete records, in each partition independently."""
    return InPieces({"topics": _delete_topics(node, request["topics"])})


def _delete_topics(node: Node, topics: list[Fields]) -> Items:
    # Each topic is changed only once per request, because each change is written to the log.
    by_name: dict[str, dict[int, list[int]]] = {}
    for asked in topics:
        partitions = by_name.setdefault(asked["name"], {})
        for partition in asked["partitions"]:
            partitions.setdefault(partition["partition_index"], []).append(partition["offset"])
            yield VALUE_WORK
    for name, wanted in by_name.items():
        yield {"name": name, "partitions": _delete(node, name, wanted)}


def _delete(node: Node, name: str, asked: dict[int, list[int]]) -> Items:
    """Delete records of one topic, in one step; yield the answers for its partitions."""
    topic = node.broker.topics.find(name)
    count = 0 if topic is None else len(topic.partitions)
    errors: dict[int, int] = {}
    offsets: dict[int, int] = {}
    for index, wanted in asked.items():
        if not 0 <= index < count:
            continue  # answered below: there may be any number of them
        try:
            check_changeable(name, "emptied")
            offsets[index] = max(_read_offset(topic, index, offset) for offset in wanted)
        except RequestError as error:
            errors[index] = code_of(error)
    if topic is not None and offsets:
        try:
            node.broker.topics.delete_records(topic, offsets)
        except RequestError as error:
            errors |= dict.fromkeys(offsets, code_of(error))
    low = {index: topic.partitions[index].start_offset for index in offsets} if topic else {}
    for index in asked:
        if not 0 <= index < count:
            errors[index] = _refuse_missing(name)
        is_deleted = index not in errors
        yield {
            "partition_index": index,
            "low_watermark": low[index] if is_deleted else _NO_WATERMARK,
            "error_code": errors.get(index, ErrorCode.none),
        }


def _refuse_missing(name: str) -> int:
    """Return the error of a partition that does not exist."""
    try:
        check_changeable(name, "emptied")
    except RequestError as error:
        return code_of(error)
    return ErrorCode.unknown_topic_or_partition


def _read_offset(topic: Topic | None, index: int, offset: int) -> int:
    """Return the offset below which to delete records. Raises RequestError."""
    if topic is None or not 0 <= index < len(topic.partitions):
        raise UnknownTopicError("there is no such partition")
    visible_offset = topic.partitions[index].visible_offset
    if offset == _HIGH_WATERMARK:
        return visible_offset
    if not 0 <= offset <= visible_offset:
        raise CodedError(ErrorCode.offset_out_of_range, "there is no such offset")
    return offset
