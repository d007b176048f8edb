"""The internal topic `__consumer_offsets`, which every Kafka cluster lists.

Tools expect it. Here committed offsets are in control frames of the log, so the topic exists by
name only: it has one partition without records, and counts in no limit. Nobody reads it, and
nobody changes it. Layer 3; does no I/O.
"""

from typing import Final
from uuid import UUID, uuid5

from appliance.errors import InvalidTopicError

INTERNAL_TOPIC: Final = "__consumer_offsets"

PARTITION_COUNT: Final = 1

_NAMESPACE: Final = UUID("6b1f2c52-6ef2-5d5c-a8f3-0b8a4f0f6c11")
"""Any fixed value."""


def internal_topic_id(cluster_id: str) -> UUID:
    """Return the topic's id, which is the same for the life of a cluster."""
    return uuid5(_NAMESPACE, cluster_id)


def is_internal_topic_id(topic_id: UUID, cluster_id: str) -> bool:
    """Return whether an id is that of the internal topic."""
    return topic_id == internal_topic_id(cluster_id)


def is_internal_partition(name: str, index: int) -> bool:
    """Return whether this is a partition of the internal topic."""
    return name == INTERNAL_TOPIC and 0 <= index < PARTITION_COUNT


def closed_keys(cluster_id: str) -> frozenset[bytes]:
    """Return the name and the id of the topic as Produce and Fetch name it."""
    return frozenset((INTERNAL_TOPIC.encode(), internal_topic_id(cluster_id).bytes))


def check_changeable(name: str, change: str) -> None:
    """Refuse a change of the internal topic.

    Args:
        name: of the topic to change.
        change: what cannot be done, such as "deleted".

    Raises:
        InvalidTopicError: it is the internal topic.
    """
    if name == INTERNAL_TOPIC:
        raise InvalidTopicError(
            "The request attempted to perform an operation on an invalid topic: "
            f"{name} is internal and cannot be {change}"
        )
