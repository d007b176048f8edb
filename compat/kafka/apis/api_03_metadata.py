"""Metadata (key 3): v0-12.

Behaviour:
- This broker is the only one: it is the controller and leads every partition. The leader epoch
  (v7+) is the log's.
- A null topic list (v1+), or an empty one (v0), means all topics. An empty list (v1+) means none;
  librdkafka sends it to learn the brokers. A topic that is requested twice is answered once.
- A missing topic is created with the broker's default partition count if the broker's settings and
  the request allow it (v0-3 always do); the response has it already. Otherwise it gets
  UNKNOWN_TOPIC_OR_PARTITION. An invalid name gets INVALID_TOPIC_EXCEPTION.
- The internal topic `__consumer_offsets` is always listed, with one partition; a request by its
  name or id gets it too. Committed offsets are not stored there.
- Topic ids (v10+) are real. A request by id (v12) never creates a topic: UNKNOWN_TOPIC_ID.

Deviations:
- A new topic has a leader at once. LEADER_NOT_AVAILABLE is for topics that are not created yet,
  because the client's address has created many: 100 at once, 5 a second (clients ask again); and
  for topics whose last change is not durable after `flush.timeout_ms`. A quarter of the
  topics and partitions that the broker allows is left for CreateTopics.
- Authorized operations (v8+) are always "unknown".

Versions: 1 controller id, rack, is_internal; 2 cluster id; 3 throttle time; 4 the request says
whether topics may be created; 5 offline replicas; 7 leader epoch; 8 authorized operations;
9 flexible; 10 topic ids; 11 drops the cluster's authorized operations; 12 topics by id.
Layer 4; does no I/O.
"""

import functools
import struct
from typing import Final
from uuid import UUID

from _core.queue.partition import Topic
from appliance.errors import RemoteProtocolError, RequestError
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
from compat.kafka.protocol.registry import Fields, Needs, handles

_KEY: Final = 3
_FIRST_VERSION_WITH_EMPTY_AS_NONE: Final = 1
_FIRST_VERSION_BY_ID: Final = 12


def _find_pos(node: Node, request: Fields) -> int:
    topics = node.broker.topics
    if not len(topics.changes):
        return 0
    pos = 0
    for item in request["topics"] or ():
        name = item["name"]
        if name is None and item.get("topic_id") is not None:
            found = topics.find_by_uuid(item["topic_id"])
            name = None if found is None else found.name
        pos = max(pos, topics.changes.last if name is None else topics.changes.of(name))
    # Without names, all topics are listed, or none.
    return pos if request["topics"] else topics.changes.last


def _answer_late(node: Node, version: int, request: Fields, response: Fields) -> Fields:
    """Describe the topics; those whose last change is not durable get LEADER_NOT_AVAILABLE."""
    topics = node.broker.topics
    wanted = _read_all_wanted(request, version)
    if wanted is None:
        wanted = [topic.name for topic in topics.all()]
    answers: list[Fields | bytes] = []
    for each in wanted:
        if isinstance(each, UUID):
            found = topics.find_by_uuid(each)
            name = None if found is None else found.name
        else:
            name = each
        if name is not None and not topics.changes.is_flushed(name):
            answers.append(_refuse(ErrorCode.leader_not_available, name, None))
        elif isinstance(each, UUID):
            answers.append(_answer_by_id(node, version, each))
        else:
            answers.append(_answer_by_name(node, version, each, may_create=False))
    return _respond(node, answers)


_NEEDS: Final = Needs(_find_pos, _answer_late)


@handles(key=_KEY, name="Metadata", versions=(0, 12), flexible_from=9, needs=_NEEDS)
def metadata(node: Node, version: int, request: Fields) -> Fields:
    """Return the brokers, topics and partitions; create missing topics if allowed."""
    broker = node.broker
    wanted = _read_all_wanted(request, version)
    topics: list[Fields | bytes]
    if wanted is None:
        topics = [_describe(node, version, topic) for topic in broker.topics.all()]
        topics.append(_describe_internal(node, version))
    else:
        may_create = broker.config.auto_create_topics and request.get(
            "allow_auto_topic_creation", True
        )
        topics = [
            _answer_by_id(node, version, each)
            if isinstance(each, UUID)
            else _answer_by_name(node, version, each, may_create)
            for each in wanted
        ]
    return _respond(node, topics)


def _respond(node: Node, topics: list[Fields | bytes]) -> Fields:
    broker = node.broker
    return {
        "brokers": [{"node_id": broker.node_id, "host": node.host, "port": node.port}],
        "cluster_id": broker.cluster_id,
        "controller_id": broker.node_id,
        "topics": topics,
    }


def _read_all_wanted(request: Fields, version: int) -> list[str | UUID] | None:
    """Return the names and ids of the requested topics, each once; None for all topics."""
    asked = request["topics"]
    if asked is None or (not asked and version < _FIRST_VERSION_WITH_EMPTY_AS_NONE):
        return None
    return list(dict.fromkeys(_read_wanted(item, version) for item in asked))


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
            if not node.auto_creation.take(node.client.host, node.now_ms()):
                return _refuse(ErrorCode.leader_not_available, name, None)
            topic = broker.topics.create_named(name, broker.config.default_partition_count)
        except RequestError as error:
            return _refuse(code_of(error), name, None)
    return _describe(node, version, topic)


def _refuse(error_code: int, name: str | None, topic_id: UUID | None) -> Fields:
    return {"error_code": error_code, "name": name, "topic_id": topic_id, "partitions": ()}


def _describe(node: Node, version: int, topic: Topic) -> bytes:
    is_internal = topic.name in RESERVED_TOPIC_NAMES
    return _encode(
        node,
        version,
        {"name": topic.name, "topic_id": topic.uuid, "is_internal": is_internal},
        partition_count=len(topic.partitions),
    )


def _describe_internal(node: Node, version: int) -> bytes:
    topic_id = internal_topic_id(node.broker.cluster_id)
    return _encode(
        node,
        version,
        {"name": INTERNAL_TOPIC, "topic_id": topic_id, "is_internal": True},
        partition_count=PARTITION_COUNT,
    )


def _encode(node: Node, version: int, topic: Fields, *, partition_count: int) -> bytes:
    broker = node.broker
    first = _encode_partition(version, broker.node_id, broker.epoch)
    # Partitions differ only in their index, which follows the int16 error code in every version.
    # A topic may have a thousand, and every client requests them repeatedly.
    head, tail = first[:2], first[6:]
    partitions = [
        b"".join((head, struct.pack(">i", index), tail)) for index in range(partition_count)
    ]
    return messages.encode_response_item(
        _KEY,
        version,
        "topics",
        topic | {"error_code": ErrorCode.none, "partitions": partitions},
    )


@functools.lru_cache(maxsize=32)
def _encode_partition(version: int, node_id: int, epoch: int) -> bytes:
    """Encode partition 0 with error code 0."""
    return messages.encode_response_item(
        _KEY,
        version,
        "topics.partitions",
        {
            "error_code": ErrorCode.none,
            "partition_index": 0,
            "leader_id": node_id,
            "leader_epoch": epoch,
            "replica_nodes": (node_id,),
            "isr_nodes": (node_id,),
        },
    )
