"""ListOffsets (key 2): v1-9.

Behaviour:
- Timestamp -1 means latest: the first offset that cannot be fetched yet (the high watermark), at
  every isolation level, because there are no transactions. -2 means earliest. -3 (v7+) means the
  record with the highest timestamp. 0 and above is a time: the first offset at which the running
  maximum of timestamps reaches it. Pending delayed records have no offset and do not count. A
  delivered record counts with its timestamp, mostly that of its creation.
- 2^62 and above is the time of the broker: the first record that became visible 2^62 ms less, or
  later, and when that was. `latermq tail --since` asks so, and finds delivered records.
- If nothing is found, offset and timestamp are -1, without an error.
- The leader epoch (v4+) is the log's. A request with an older one gets FENCED_LEADER_EPOCH, with a
  newer one UNKNOWN_LEADER_EPOCH.
- There are no storage tiers: -4 (v8+), the earliest local offset, means earliest; for -5 (v9+), the
  latest offset in the remote tier, nothing is found. Other negative times, and these in older
  versions, get UNSUPPORTED_VERSION.
- The internal topic has no records: its first and next offset are 0.
- A search by time reads frames. A thread reads cold frames and unpacks batches; damaged frames are
  skipped. A search that needs too many reads gets KAFKA_STORAGE_ERROR.
- A partition that is named more than once gets INVALID_REQUEST.

Deviations: the replica id is ignored.

Versions: 1 one offset with its timestamp; 2 isolation level, throttle time; 4 leader epochs;
6 flexible; 7 highest timestamp; 8 earliest local; 9 latest in the remote tier.
Layer 4; does no I/O.
"""

from functools import partial
from typing import Final

from _core.queue.partition import Partition
from appliance.model import STORED_TIMES_FROM
from appliance.offset_search import OffsetSearch
from compat.kafka.cold_search import search_partitions
from compat.kafka.configs.internal_topic import is_internal_partition
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.needs import TOPICS, on_slave, refuse_partitions
from compat.kafka.protocol.registry import Fields, Needs, handles
from compat.kafka.protocol.slices import InPieces

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
"""The meanings of negative times in Kafka, with the first request version that has each."""

_NO_EPOCH: Final = -1

_NOTHING: Final[Fields] = {
    "error_code": ErrorCode.none,
    "timestamp": -1,
    "offset": -1,
    "leader_epoch": _NO_EPOCH,
}


_NEEDS: Final = Needs(
    TOPICS,
    refuse_partitions(
        ErrorCode.leader_not_available, timestamp=-1, offset=-1, leader_epoch=_NO_EPOCH
    ),
)

_ON_SLAVE: Final = on_slave(
    ErrorCode.not_leader_or_follower,
    refuse_partitions,
    timestamp=-1,
    offset=-1,
    leader_epoch=_NO_EPOCH,
)


@handles(
    key=2, name="ListOffsets", versions=(1, 9), flexible_from=6, needs=_NEEDS, on_slave=_ON_SLAVE
)
def list_offsets(node: Node, version: int, request: Fields) -> InPieces:
    """Return one offset for each requested partition."""
    topics = search_partitions(
        node,
        request["topics"],
        "name",
        "partition_index",
        partial(_answer, node, version),
        nothing=_NOTHING,
    )
    return InPieces({"topics": topics})


def _answer(node: Node, version: int, name: str, asked: Fields, search: OffsetSearch) -> Fields:
    """Return the fields that differ from "nothing found"."""
    index: int = asked["partition_index"]
    topic = node.broker.topics.find(name)
    is_internal = topic is None and is_internal_partition(name, index)
    if not is_internal and (topic is None or not 0 <= index < len(topic.partitions)):
        return {"error_code": ErrorCode.unknown_topic_or_partition}
    epoch = node.broker.epoch
    client_epoch: int = asked.get("current_leader_epoch", _NO_EPOCH)
    if client_epoch != _NO_EPOCH and client_epoch < epoch:
        return {"error_code": ErrorCode.fenced_leader_epoch}
    if client_epoch > epoch:
        return {"error_code": ErrorCode.unknown_leader_epoch}
    timestamp: int = asked["timestamp"]
    if timestamp < 0 and version < _FIRST_VERSION.get(timestamp, version + 1):
        return {"error_code": ErrorCode.unsupported_version}
    found = _find(None if topic is None else topic.partitions[index], search, timestamp)
    if found is None:
        return {}
    return {"offset": found[0], "timestamp": found[1], "leader_epoch": epoch}


def _find(
    partition: Partition | None, search: OffsetSearch, timestamp: int
) -> tuple[int, int] | None:
    """Return offset and timestamp; the timestamp is -1 for earliest and latest.

    The internal topic has no partition, and is empty.
    """
    if partition is None:
        return (0, -1) if timestamp in (_LATEST, _EARLIEST, _EARLIEST_LOCAL) else None
    if timestamp >= STORED_TIMES_FROM:
        return search.find_stored(partition, timestamp - STORED_TIMES_FROM)
    if timestamp >= 0:
        return search.find(partition, timestamp)
    if timestamp == _LATEST:
        return partition.visible_offset, -1
    if timestamp == _MAX_TIMESTAMP:
        return search.find_highest(partition)
    if timestamp == _LATEST_TIERED:
        return None
    assert timestamp in (_EARLIEST, _EARLIEST_LOCAL)
    return partition.start_offset, -1
