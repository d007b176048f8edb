"""DescribeLogDirs (key 35): v1-4.

Behaviour:
- Returns one directory, the data directory, with the requested partitions, or all (null). Missing
  partitions are left out.
- The size of a partition is that of its frames in the shared log: records, pending delayed records,
  and delivered ones. It does not shrink when records are deleted.
- Includes the total and free space of the file system (v4). If it is not available, the directory
  gets KAFKA_STORAGE_ERROR and has no partitions.

Deviations: none.

Versions: 1 throttle time; 2 flexible; 3 top-level error code; 4 space.
Layer 4; does no I/O of its own.
"""

import struct
from collections.abc import Sequence
from typing import Final

from _core.queue.partition import Partition, Topic
from appliance.errors import StorageError
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.named_items import by_partition
from compat.kafka.protocol.registry import SERVED, Fields, handles
from compat.kafka.protocol.slices import VALUE_WORK, EncodedItems, InPieces, Items, free_in_steps

_KEY: Final = 35
_FLEXIBLE_FROM: Final = 2

_PARTITION: Final = struct.Struct(">iqqb")
"""Index, size, lag and is_future_key of one partition, the same in every version. Encoded by hand
because there may be a hundred thousand."""
_NO_TAGS: Final = b"\x00"

_CHUNK_PARTITIONS: Final = 250
"""Encoded in one step."""


@handles(
    key=_KEY,
    name="DescribeLogDirs",
    versions=(1, 4),
    flexible_from=_FLEXIBLE_FROM,
    needs=None,
    on_slave=SERVED,
)
def describe_log_dirs(node: Node, version: int, request: Fields) -> InPieces:
    """Return the sizes of the partitions in the data directory."""
    return InPieces({"error_code": ErrorCode.none, "results": _describe(node, version, request)})


def _describe(node: Node, version: int, request: Fields) -> Items:
    result = {"error_code": ErrorCode.none, "log_dir": str(node.broker.config.data_dir)}
    try:
        total, usable = node.broker.space()
    except StorageError:
        yield result | {"error_code": ErrorCode.kafka_storage_error, "topics": ()}
        return
    end = _NO_TAGS if version >= _FLEXIBLE_FROM else b""
    asked = request["topics"]
    topics = _describe_all(node, end) if asked is None else _describe_each(node, asked, end)
    yield result | {"topics": topics, "total_bytes": total, "usable_bytes": usable}


def _describe_all(node: Node, end: bytes) -> Items:
    topics = node.broker.topics
    for topic in topics.all():
        if topics.find(topic.name) is topic:
            yield _describe_topic(topic, topic.partitions, end)
        else:
            yield VALUE_WORK  # it was deleted meanwhile


def _describe_each(node: Node, asked: list[Fields], end: bytes) -> Items:
    by_name = yield from by_partition(asked, "topic", "partitions")
    for name, indexes in by_name.items():
        topic = node.broker.topics.find(name)
        if topic is not None:
            present = range(len(topic.partitions))
            partitions = [topic.partitions[index] for index in indexes if index in present]
            yield _describe_topic(topic, partitions, end)
    yield from free_in_steps(by_name)


def _describe_topic(topic: Topic, partitions: Sequence[Partition], end: bytes) -> Fields:
    return {"name": topic.name, "partitions": _encode_chunks(partitions, end)}


def _encode_chunks(partitions: Sequence[Partition], end: bytes) -> Items:
    for start in range(0, len(partitions), _CHUNK_PARTITIONS):
        chunk = partitions[start : start + _CHUNK_PARTITIONS]
        encoded = [_encode(each) + end for each in chunk]
        yield EncodedItems(len(encoded), b"".join(encoded))


def _encode(partition: Partition) -> bytes:
    return _PARTITION.pack(partition.index, partition.log_bytes, 0, False)
