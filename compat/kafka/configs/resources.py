"""The resources whose settings clients can describe or change: topics and the broker.

Layer 3; does no I/O.
"""

from typing import Final

from _core.queue.partition import Topic
from appliance.errors import InvalidRequestError, UnknownTopicError
from appliance.topics import NO_SUCH_TOPIC
from compat.kafka.configs.entries import ResourceType, shown
from compat.kafka.configs.internal_topic import check_changeable
from compat.kafka.configs.topic_names import check_topic_name
from compat.kafka.node import Node

NAME_FIELDS: Final = ("resource_type", "resource_name")
"""The fields of a request that name a resource."""

_KINDS: Final = {
    ResourceType.BROKER_LOGGER: "loggers; set process.log_level in the broker's configuration file",
    16: "client metrics",
    32: "groups",
}
"""Kafka's other resource types, none of which exist here."""


def find_topic(node: Node, name: str) -> Topic:
    """Return a topic.

    Raises:
        UnknownTopicError: the topic does not exist.
        InvalidTopicError: the name is not a valid topic name, or that of the internal topic.
    """
    topic = node.broker.topics.find(name)
    if topic is None:
        check_changeable(name, "changed")
        check_topic_name(name)
        raise UnknownTopicError(f"{NO_SUCH_TOPIC} There is no topic {name}")
    return topic


def check_broker(node: Node, kind: int, name: str) -> None:
    """Check that a resource is this broker.

    Raises:
        RequestError: the resource is of another type, or is another broker.
    """
    if kind != ResourceType.BROKER:
        what = _KINDS.get(kind, f"a resource of type {kind}")
        raise InvalidRequestError(f"there is no configuration of {what}")
    if name not in ("", str(node.broker.node_id)):
        raise InvalidRequestError(
            f"there is no broker {shown(name)}: use {node.broker.node_id} or ''"
        )
