"""What a client may describe or change the configuration of: topics, and the broker.

Layer 3; does no I/O.
"""

from typing import Final

from appliance.errors import RequestError, UnknownTopicError
from compat.kafka.broker_settings import list_broker_settings
from compat.kafka.config_entries import ConfigEntry, ResourceType, shown
from compat.kafka.error_codes import ErrorCode
from compat.kafka.node import Node, TopicView
from compat.kafka.registry import Fields
from compat.kafka.topic_names import check_topic_name
from compat.kafka.topic_settings import list_topic_settings

DUPLICATE: Final = "the request names this resource more than once"

_KINDS: Final = {
    ResourceType.BROKER_LOGGER: "loggers; process.log_level is in the broker's own file",
    16: "client metrics",
    32: "groups",
}
"""Kafka's other kinds, and what there is nothing of here."""


def find_configs(node: Node, resource: Fields) -> list[ConfigEntry]:
    """List the settings of a resource.

    Args:
        node: the broker.
        resource: has `resource_type` and `resource_name`.

    Raises:
        RequestError: there is no such resource, or nothing to describe of its kind.
    """
    kind, name = resource["resource_type"], resource["resource_name"]
    if kind == ResourceType.TOPIC:
        return list_topic_settings(find_topic(node, name).settings, node.broker.config)
    check_broker(node, kind, name)
    return list_broker_settings(node)


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
