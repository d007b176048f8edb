"""Metadata (key 3): v0-12.

Behaviour:
- One broker is the controller and leads every partition: this one, or of a pair the master. The
  other node of a pair is listed too, unless both advertise one address. The leader epoch (v7+) is
  the log's.
- While no leader is known, partitions have leader -1 and LEADER_NOT_AVAILABLE, and clients ask
  again: a slave does not hear its master, or a master may not accept anything.
- A null topic list (v1+), or an empty one (v0), means all topics. An empty list (v1+) means none;
  librdkafka sends it to learn the brokers. A topic that is requested twice is answered once.
- A missing topic is created with the broker's default partition count if the broker's settings and
  the request allow it (v0-3 always do); the response has it already. Otherwise it gets
  UNKNOWN_TOPIC_OR_PARTITION. An invalid name gets INVALID_TOPIC_EXCEPTION. A slave creates nothing:
  where a master would, it closes the connection, and clients ask another broker.
- The internal topic `__consumer_offsets` is always listed, with one partition; a request by its
  name or id gets it too. Committed offsets are not stored there.
- Topic ids (v10+) are real. A request by id (v12) never creates a topic: UNKNOWN_TOPIC_ID.

Deviations:
- A new topic has a leader at once. LEADER_NOT_AVAILABLE is for topics that are not created yet,
  because the client's address has created many: 100 at once, 5 a second (clients ask again). A
  quarter of the topics and partitions that the broker allows is left for CreateTopics.
- Authorized operations (v8+) are always "unknown".

Versions: 1 controller id, rack, is_internal; 2 cluster id; 3 throttle time; 4 the request says
whether topics may be created; 5 offline replicas; 7 leader epoch; 8 authorized operations;
9 flexible; 10 topic ids; 11 drops the cluster's authorized operations; 12 topics by id.
Layer 4; does no I/O.
"""

import functools
import struct
from collections.abc import Iterator
from typing import Final
from uuid import UUID

from _core.queue.partition import Topic
from appliance.errors import RemoteProtocolError, RequestError
from appliance.routes import NO_NODE
from compat.kafka.configs.internal_topic import (
    INTERNAL_TOPIC,
    PARTITION_COUNT,
    internal_topic_id,
    is_internal_topic_id,
)
from compat.kafka.configs.topic_names import RESERVED_TOPIC_NAMES, check_topic_name
from compat.kafka.node import Node
from compat.kafka.protocol import messages
from compat.kafka.protocol.error_codes import ErrorCode, code_of
from compat.kafka.protocol.named_items import each_once
from compat.kafka.protocol.registry import Fields, Needs, OnSlave, handles
from compat.kafka.protocol.slices import VALUE_WORK, EncodedItems, InPieces, Items

_KEY: Final = 3
_FIRST_VERSION_WITH_EMPTY_AS_NONE: Final = 1
_FIRST_VERSION_BY_ID: Final = 12

_CHUNK_PARTITIONS: Final = 250
"""Encoded in one step."""


def _find_positions(node: Node, request: Fields) -> Iterator[int]:
    changes = node.broker.topics.changes
    if changes.are_flushed:
        return
    if not request["topics"]:
        yield changes.last  # all topics are listed, or none
        return
    for item in request["topics"]:
        name = item["name"]
        if name is None and item.get("topic_id") is not None:
            name = _name_of(node, item["topic_id"])
        yield changes.of(name) if name else changes.last


def _answer_late(node: Node, version: int, request: Fields) -> InPieces:
    """Describe the topics; those whose last change is not durable get LEADER_NOT_AVAILABLE."""
    return _answer(node, version, request, is_late=True)


_NEEDS: Final = Needs(_find_positions, _answer_late)


@handles(
    key=_KEY,
    name="Metadata",
    versions=(0, 12),
    flexible_from=9,
    needs=_NEEDS,
    on_slave=OnSlave("names the master; closes the connection where a master would create a topic"),
)
def metadata(node: Node, version: int, request: Fields) -> InPieces:
    """Return the brokers, topics and partitions; create missing topics if allowed."""
    return _answer(node, version, request, is_late=False)


def _answer(node: Node, version: int, request: Fields, *, is_late: bool) -> InPieces:
    leader = node.routes.leader
    return InPieces(
        {
            "brokers": [
                {
                    "node_id": each.node_id,
                    "host": each.at.host,
                    "port": each.at.port,
                    "rack": each.at.rack or None,
                }
                for each in node.routes.members
            ],
            "cluster_id": node.broker.cluster_id,
            "controller_id": NO_NODE if leader is None else leader.node_id,
            "topics": _answer_topics(node, version, request, is_late=is_late),
        }
    )


def _answer_topics(node: Node, version: int, request: Fields, *, is_late: bool) -> Items:
    topics, asked = node.broker.topics, request["topics"]
    if asked is None or (not asked and version < _FIRST_VERSION_WITH_EMPTY_AS_NONE):
        for topic in topics.all():
            # One that was deleted meanwhile is left out.
            if topics.find(topic.name) is not topic:
                yield VALUE_WORK
            elif is_late and not topics.changes.is_flushed(topic.name):
                yield _refuse(ErrorCode.leader_not_available, topic.name, topic.uuid)
            else:
                yield _describe(node, version, topic)
        yield _describe_internal(node, version)
        return
    may_create = (
        node.broker.config.auto_create_topics
        and not is_late
        and request.get("allow_auto_topic_creation", True)
    )
    for wanted in each_once(_read_wanted(item, version) for item in asked):
        if isinstance(wanted, int):
            yield wanted
        elif is_late and not topics.changes.is_flushed(_name_of(node, wanted)):
            is_name = isinstance(wanted, str)
            name, uuid = (wanted, None) if is_name else (None, wanted)
            yield _refuse(ErrorCode.leader_not_available, name, uuid)
        elif isinstance(wanted, UUID):
            yield _answer_by_id(node, version, wanted)
        else:
            yield _answer_by_name(node, version, wanted, may_create)


def _name_of(node: Node, wanted: str | UUID) -> str:
    """Return the name of a requested topic; "" for an id that no topic has."""
    if isinstance(wanted, str):
        return wanted
    topic = node.broker.topics.find_by_uuid(wanted)
    return "" if topic is None else topic.name


def _read_wanted(item: Fields, version: int) -> str | UUID:
    wanted: str | UUID | None = item["name"]
    if version >= _FIRST_VERSION_BY_ID and item["topic_id"] is not None:
        wanted = item["topic_id"]
    if wanted is None:
        raise RemoteProtocolError("a topic in a Metadata request has neither name nor id")
    return wanted


def _answer_by_id(node: Node, version: int, topic_id: UUID) -> Fields | bytes:
    topic = node.broker.topics.find_by_uuid(topic_id)
    if topic is None and is_internal_topic_id(topic_id, node.broker.cluster_id):
        return _describe_internal(node, version)
    if topic is None:
        return _refuse(ErrorCode.unknown_topic_id, None, topic_id)
    return _describe(node, version, topic)


def _answer_by_name(node: Node, version: int, name: str, may_create: bool) -> Fields | bytes:
    broker = node.broker
    topic = broker.topics.find(name)
    if topic is None and name == INTERNAL_TOPIC:
        return _describe_internal(node, version)
    if topic is None:
        try:
            check_topic_name(name)
            if not may_create:
                return _refuse(ErrorCode.unknown_topic_or_partition, name, None)
            if not node.routes.leads:
                # After an error, librdkafka asks the one broker that it is connected to again.
                raise RemoteProtocolError("a slave creates no topics: ask the master")
            count = broker.config.default_partition_count
            if not broker.topics.may_name(count, node.client.host, node.now_ms()):
                return _refuse(ErrorCode.leader_not_available, name, None)
            topic = broker.topics.create_named(name, count)
        except RequestError as error:
            return _refuse(code_of(error), name, None)
    return _describe(node, version, topic)


def _refuse(error_code: int, name: str | None, topic_id: UUID | None) -> Fields:
    return {"error_code": error_code, "name": name, "topic_id": topic_id, "partitions": ()}


def _describe(node: Node, version: int, topic: Topic) -> Fields | bytes:
    is_internal = topic.name in RESERVED_TOPIC_NAMES
    return _encode(
        node,
        version,
        {"name": topic.name, "topic_id": topic.uuid, "is_internal": is_internal},
        partition_count=len(topic.partitions),
    )


def _describe_internal(node: Node, version: int) -> Fields | bytes:
    topic_id = internal_topic_id(node.broker.cluster_id)
    return _encode(
        node,
        version,
        {"name": INTERNAL_TOPIC, "topic_id": topic_id, "is_internal": True},
        partition_count=PARTITION_COUNT,
    )


def _encode(node: Node, version: int, topic: Fields, *, partition_count: int) -> Fields | bytes:
    """Encode a topic; one with many partitions is left to later steps."""
    fields = topic | {"error_code": ErrorCode.none}
    if partition_count > _CHUNK_PARTITIONS:
        return fields | {"partitions": _encode_chunks(node, version, partition_count)}
    fields["partitions"] = _encode_partitions(node, version, range(partition_count))
    return messages.encode_response_item(_KEY, version, "topics", fields)


def _encode_chunks(node: Node, version: int, count: int) -> Items:
    for start in range(0, count, _CHUNK_PARTITIONS):
        indexes = range(start, min(start + _CHUNK_PARTITIONS, count))
        yield EncodedItems(len(indexes), b"".join(_encode_partitions(node, version, indexes)))


def _encode_partitions(node: Node, version: int, indexes: range) -> list[bytes]:
    routes = node.routes
    leader = routes.leader
    first = _encode_partition(
        version,
        NO_NODE if leader is None else leader.node_id,
        node.broker.epoch,
        routes.replica_ids,
        routes.in_sync_ids,
    )
    # Partitions differ only in their index, which follows the int16 error code in every version.
    # A topic may have a thousand, and every client requests them repeatedly.
    head, tail = first[:2], first[6:]
    return [b"".join((head, struct.pack(">i", index), tail)) for index in indexes]


@functools.lru_cache(maxsize=32)
def _encode_partition(
    version: int, leader_id: int, epoch: int, replicas: tuple[int, ...], in_sync: tuple[int, ...]
) -> bytes:
    """Encode partition 0."""
    has_leader = leader_id != NO_NODE
    return messages.encode_response_item(
        _KEY,
        version,
        "topics.partitions",
        {
            "error_code": ErrorCode.none if has_leader else ErrorCode.leader_not_available,
            "partition_index": 0,
            "leader_id": leader_id,
            "leader_epoch": epoch,
            "replica_nodes": replicas,
            "isr_nodes": in_sync,
        },
    )
