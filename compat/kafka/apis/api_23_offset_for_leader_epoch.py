"""OffsetForLeaderEpoch (key 23): v2-4.

Behaviour:
- Returns the end offset of the records of an epoch and all earlier ones. A consumer that has read
  beyond it in that epoch has read records that were lost since. For the current epoch it is the end
  of the partition.
- The epoch in the response is the latest one in the log that is not above the requested epoch, or
  the requested epoch if all in the log are later. A future epoch gets -1 and -1, without an error.
- If the client's own epoch is older than the broker's: FENCED_LEADER_EPOCH; if newer:
  UNKNOWN_LEADER_EPOCH. A missing partition gets UNKNOWN_TOPIC_OR_PARTITION, the internal topic
  TOPIC_AUTHORIZATION_FAILED.
- The search reads frames. A thread reads cold frames. A search that needs too many reads gets
  KAFKA_STORAGE_ERROR.
- A partition that is named more than once gets INVALID_REQUEST.

Deviations:
- Epochs belong to the log and are the same for all partitions. An epoch in which a partition
  received no record is known too, and ends at the offset at which it began.
- The replica id (v3+) is ignored: followers do not exist.

Versions: 2 the client's epoch, throttle time; 3 replica id; 4 flexible.
Layer 4; does no I/O.
"""

from functools import partial
from typing import Final

from appliance.offset_search import OffsetSearch
from compat.kafka.cold_search import search_partitions
from compat.kafka.configs.internal_topic import is_internal_partition
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.needs import on_slave
from compat.kafka.protocol.registry import Fields, handles
from compat.kafka.protocol.slices import InPieces, Items

_NO_EPOCH: Final = -1


def _refuse(error: ErrorCode, node: Node, version: int, request: Fields) -> InPieces:
    def refused(topic: Fields) -> Items:
        for each in topic["partitions"]:
            yield {"partition": each["partition"], "error_code": error}

    topics = ({"topic": each["topic"], "partitions": refused(each)} for each in request["topics"])
    return InPieces({"topics": topics})


_ON_SLAVE: Final = on_slave(ErrorCode.not_leader_or_follower, lambda code: partial(_refuse, code))


@handles(
    key=23,
    name="OffsetForLeaderEpoch",
    versions=(2, 4),
    flexible_from=4,
    needs=None,
    on_slave=_ON_SLAVE,
)
def offset_for_leader_epoch(node: Node, version: int, request: Fields) -> InPieces:
    """Return the end of an epoch in each requested partition."""
    topics = search_partitions(
        node,
        request["topics"],
        "topic",
        "partition",
        partial(_answer, node),
        nothing={"error_code": ErrorCode.none},
    )
    return InPieces({"topics": topics})


def _answer(node: Node, name: str, asked: Fields, search: OffsetSearch) -> Fields:
    """Return the fields that differ from "unknown"."""
    topic = node.broker.topics.find(name)
    index: int = asked["partition"]
    if topic is None and is_internal_partition(name, index):
        return {"error_code": ErrorCode.topic_authorization_failed}
    if topic is None or not 0 <= index < len(topic.partitions):
        return {"error_code": ErrorCode.unknown_topic_or_partition}
    client_epoch: int = asked["current_leader_epoch"]
    if client_epoch != _NO_EPOCH and client_epoch < node.broker.epoch:
        return {"error_code": ErrorCode.fenced_leader_epoch}
    if client_epoch > node.broker.epoch:
        return {"error_code": ErrorCode.unknown_leader_epoch}
    epoch: int = asked["leader_epoch"]
    found = search.find_end_of_epoch(topic.partitions[index], epoch) if epoch >= 0 else None
    return {} if found is None else {"leader_epoch": found[0], "end_offset": found[1]}
