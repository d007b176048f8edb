"""What a client may describe or change the configuration of: topics, and the broker.

Layer 3; does no I/O.
"""

from typing import Final

from appliance.errors import RequestError, UnknownTopicError
from compat.kafka.config_entries import ResourceType, shown
from compat.kafka.error_codes import ErrorCode
from compat.kafka.node import Node, TopicView
from compat.kafka.topic_names import check_topic_name

DUPLICATE: Final = "the request names this resource more than once"

_KINDS: Final = {
    ResourceType.BROKER_LOGGER: "loggers; process.log_level is in the broker's own file",
    16: "client metrics",
    32: "groups",
}
"""Kafka's other kinds, and what there is nothing of here."""


def find_topic(node: Node, name: str) -> TopicView:
    """Return a topic.

    Raises:
        UnknownTopicError: it does not exist.
        InvalidTopicError: no topic may have the name.
    """
    topic = node.broker.find_topic(name)
    if topic is None:
        check_topic_name(name)
        raise UnknownTopicError(f"there is no topic {name}")
    return topic


def check_broker(node: Node, kind: int, name: str) -> None:
    """Refuse what is not this broker.

    Raises:
        RequestError: the resource is of another kind, or another broker.
    """
    if kind != ResourceType.BROKER:
        what = _KINDS.get(kind, f"a resource of type {kind}")
        raise RequestError(f"there is no configuration of {what}", ErrorCode.INVALID_REQUEST)
    if name not in ("", str(node.broker.node_id)):
        raise RequestError(
            f"there is no broker {shown(name)}: the one broker is {node.broker.node_id}, or ''",
            ErrorCode.INVALID_REQUEST,
        )
