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

import struct
from collections.abc import Mapping
from functools import partial
from typing import Final

from _core.queue.producer_state import ProducerState
from appliance.topics import NO_SUCH_TOPIC
from compat.kafka.configs.internal_topic import is_internal_partition
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.named_items import by_partition
from compat.kafka.protocol.needs import on_slave
from compat.kafka.protocol.registry import Fields, handles
from compat.kafka.protocol.slices import EncodedItems, Hold, InPieces, Items, free_in_steps

_NONE: Final = -1

_PRODUCER: Final = struct.Struct(">qiiqiqb")
"""Id, epoch, last sequence and time of one producer, coordinator epoch, start offset, and no tags.
Encoded by hand because there may be millions."""

_CHUNK_PRODUCERS: Final = 100
"""Encoded in one step."""

_ID_BYTES: Final = 8


def _refuse(error: ErrorCode, node: Node, version: int, request: Fields) -> InPieces:
    nothing = {"error_code": error, "error_message": None, "active_producers": ()}

    def refused(topic: Fields) -> Items:
        for index in topic["partition_indexes"]:
            yield {"partition_index": index, **nothing}

    topics = ({"name": each["name"], "partitions": refused(each)} for each in request["topics"])
    return InPieces({"topics": topics})


_ON_SLAVE: Final = on_slave(ErrorCode.not_leader_or_follower, lambda code: partial(_refuse, code))


@handles(
    key=61,
    name="DescribeProducers",
    versions=(0, 0),
    flexible_from=0,
    needs=None,
    on_slave=_ON_SLAVE,
)
def describe_producers(node: Node, version: int, request: Fields) -> InPieces:
    """Return the known producers of each requested partition."""
    return InPieces({"topics": _describe_topics(node, request["topics"])})


def _describe_topics(node: Node, asked: list[Fields]) -> Items:
    by_name = yield from by_partition(asked, "name", "partition_indexes")
    for name, indexes in by_name.items():
        yield {"name": name, "partitions": (_describe(node, name, index) for index in indexes)}
    yield from free_in_steps(by_name)


def _describe(node: Node, name: str, index: int) -> Fields:
    topic = node.broker.topics.find(name)
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
        "active_producers": _list_producers(topic.partitions[index].producers),
    }


def _list_producers(producers: Mapping[int, ProducerState]) -> Items:
    """Yield those that are known now, without those that are forgotten meanwhile."""
    ids = list(producers)
    yield Hold(len(ids) * _ID_BYTES)
    for start in range(0, len(ids), _CHUNK_PRODUCERS):
        found = [(each, producers.get(each)) for each in ids[start : start + _CHUNK_PRODUCERS]]
        encoded = [_encode(each, state) for each, state in found if state is not None]
        yield EncodedItems(len(encoded), b"".join(encoded))
    yield Hold(-len(ids) * _ID_BYTES)


def _encode(producer_id: int, state: ProducerState) -> bytes:
    return _PRODUCER.pack(
        producer_id, state.epoch, state.last_sequence, state.last_ms, _NONE, _NONE, 0
    )
