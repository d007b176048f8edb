"""DeleteTopics (key 20): v1-6.

Behaviour:
- Each topic is deleted or refused independently. Its records and timers are gone when the response
  is sent; the response waits for the flush.
- Topics are named by name or (v6) by id. A missing topic gets UNKNOWN_TOPIC_OR_PARTITION or
  UNKNOWN_TOPIC_ID. A topic named twice in a request, by both name and id, or by neither, gets
  INVALID_REQUEST, once, and is kept.
- Internal topics cannot be deleted: INVALID_TOPIC_EXCEPTION.

Deviations: the request's timeout is ignored: deletion is immediate.

Versions: 1 throttle time; 2 and 3 as 1; 4 flexible; 5 messages; 6 topic ids.
Layer 4; does no I/O.
"""

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Final, TypeAlias
from uuid import UUID

from _core.queue.partition import Topic
from appliance.errors import InvalidRequestError, InvalidTopicError, RequestError, UnknownTopicError
from appliance.topics import NO_SUCH_TOPIC
from compat.kafka.configs.entries import shown
from compat.kafka.configs.internal_topic import (
    INTERNAL_TOPIC,
    check_changeable,
    is_internal_topic_id,
)
from compat.kafka.configs.topic_names import RESERVED_TOPIC_NAMES
from compat.kafka.node import Node
from compat.kafka.protocol.error_codes import CodedError, ErrorCode, code_of
from compat.kafka.protocol.needs import of_topics, on_slave
from compat.kafka.protocol.registry import Fields, Needs, handles
from compat.kafka.protocol.slices import VALUE_WORK, InPieces, Items, free_in_steps

_FIRST_VERSION_BY_ID: Final = 6

_Asked: TypeAlias = tuple[str | None, UUID | None]
"""Name and id of a topic, as the request has them."""


def _named(request: Fields) -> Iterable[str | None]:
    # The name of a deleted topic cannot be found by its id.
    return request.get("topic_names") or (item["name"] for item in request.get("topics") or ())


def _refuse(error: ErrorCode, node: Node, version: int, request: Fields) -> InPieces:
    topics = request.get("topics") or [
        {"name": name, "topic_id": None} for name in request["topic_names"]
    ]
    refused = (
        {
            "name": each["name"],
            "topic_id": each["topic_id"],
            "error_code": error,
            "error_message": None,
        }
        for each in topics
    )
    return InPieces({"responses": refused})


_NEEDS: Final = Needs(of_topics(_named), partial(_refuse, ErrorCode.request_timed_out))

_ON_SLAVE: Final = on_slave(ErrorCode.not_controller, lambda code: partial(_refuse, code))


@handles(
    key=20, name="DeleteTopics", versions=(1, 6), flexible_from=4, needs=_NEEDS, on_slave=_ON_SLAVE
)
def delete_topics(node: Node, version: int, request: Fields) -> InPieces:
    """Delete topics, each independently."""
    asked: Iterable[_Asked]
    if version >= _FIRST_VERSION_BY_ID:
        asked = ((item["name"], item["topic_id"]) for item in request["topics"])
    else:
        asked = ((name, None) for name in request["topic_names"])
    return InPieces({"responses": _delete_each(node, asked)})


def _delete_each(node: Node, asked: Iterable[_Asked]) -> Items:
    counts: Counter[_Asked] = Counter()
    names: Counter[str] = Counter()
    for each in asked:
        topic = _find(node, *each)
        counts[each] += 1
        names[topic.name if topic is not None else ""] += 1
        yield VALUE_WORK
    for each in counts:
        yield _delete(node, *each, names)
    yield from free_in_steps(counts)
    yield from free_in_steps(names)


def _delete(node: Node, name: str | None, topic_id: UUID | None, names: Counter[str]) -> Fields:
    result: Fields = {"name": name, "topic_id": topic_id, "error_message": None}
    try:
        result["error_code"] = ErrorCode.none
        topic = _find(node, name, topic_id)
        deleted = _check(name, topic_id, topic, names, node.broker.cluster_id)
        node.broker.topics.delete(deleted.name)
        result["name"], result["topic_id"] = deleted.name, deleted.uuid
    except RequestError as error:
        result["error_code"], result["error_message"] = code_of(error), error.message
    return result


def _find(node: Node, name: str | None, topic_id: UUID | None) -> Topic | None:
    if name is not None:
        return node.broker.topics.find(name)
    return None if topic_id is None else node.broker.topics.find_by_uuid(topic_id)


def _check(
    name: str | None,
    topic_id: UUID | None,
    topic: Topic | None,
    counts: Counter[str],
    cluster_id: str,
) -> Topic:
    if (name is None) == (topic_id is None):
        raise InvalidRequestError("a topic needs either a name or an id, not both")
    if topic is None:
        is_internal = topic_id is not None and is_internal_topic_id(topic_id, cluster_id)
        check_changeable(INTERNAL_TOPIC if is_internal else name or "", "deleted")
        if name is None:
            raise CodedError(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
        raise UnknownTopicError(f"{NO_SUCH_TOPIC} There is no topic {shown(name)}")
    if counts[topic.name] > 1:
        raise InvalidRequestError("the request names this topic more than once: name it once")
    if topic.name in RESERVED_TOPIC_NAMES:
        raise InvalidTopicError(
            "The request attempted to perform an operation on an invalid topic: "
            "this topic is internal and cannot be deleted"
        )
    return topic
