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
from collections.abc import Iterable, Iterator
from typing import Final

from _core.queue.partition import Partition, Topic
from appliance.errors import StorageError
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.registry import Fields, handles

_KEY: Final = 35
_FLEXIBLE_FROM: Final = 2

_PARTITION: Final = struct.Struct(">iqqb")
"""Index, size, lag and is_future_key of one partition, the same in every version. Encoded by hand
because there may be a hundred thousand."""
_NO_TAGS: Final = b"\x00"


@handles(
    key=_KEY, name="DescribeLogDirs", versions=(1, 4), flexible_from=_FLEXIBLE_FROM, needs=None
)
def describe_log_dirs(node: Node, version: int, request: Fields) -> Fields:
    """Return the sizes of the partitions in the data directory."""
    result = {"error_code": ErrorCode.none, "log_dir": str(node.broker.config.data_dir)}
    try:
        total, usable = node.broker.space()
    except StorageError:
        result |= {"error_code": ErrorCode.kafka_storage_error, "topics": ()}
        return {"error_code": ErrorCode.none, "results": (result,)}
    end = _NO_TAGS if version >= _FLEXIBLE_FROM else b""
    topics = [
        {"name": topic.name, "partitions": [_encode(each) + end for each in partitions]}
        for topic, partitions in _find(node, request["topics"])
    ]
    result |= {"topics": topics, "total_bytes": total, "usable_bytes": usable}
    return {"error_code": ErrorCode.none, "results": (result,)}


def _find(node: Node, asked: list[Fields] | None) -> Iterator[tuple[Topic, Iterable[Partition]]]:
    if asked is None:
        yield from ((topic, topic.partitions) for topic in node.broker.topics.all())
        return
    by_name: dict[str, dict[int, None]] = {}
    for item in asked:
        by_name.setdefault(item["topic"], {}).update(dict.fromkeys(item["partitions"]))
    for name, indexes in by_name.items():
        topic = node.broker.topics.find(name)
        if topic is not None:
            present = range(len(topic.partitions))
            yield topic, [topic.partitions[index] for index in indexes if index in present]


def _encode(partition: Partition) -> bytes:
    return _PARTITION.pack(partition.index, partition.log_bytes, 0, False)
