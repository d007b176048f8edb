"""The rules for topic names. Layer 3; does no I/O."""

import re
from typing import Final

from appliance.errors import InvalidTopicError

TOPIC_NAME_SIZE_MAX: Final = 249
"""Kafka's limit: a file name of 255 bytes minus a partition suffix. Topic names are directory names
here too."""

RESERVED_TOPIC_NAMES: Final = frozenset(
    {"SCHEDULE_TOPIC_XXXX", "__consumer_offsets", "__transaction_state"}
)
"""Internal topics: RocketMQ's name for the level queues, and Kafka's two, whose content is in
control frames here. Clients can neither create nor delete them."""

_ALLOWED: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def check_topic_name(name: str) -> None:
    """Check the name of a topic that a client wants to create.

    Raises:
        InvalidTopicError: the message says what is wrong.
    """
    if not name:
        raise InvalidTopicError(
            f"the topic name is empty: use 1 to {TOPIC_NAME_SIZE_MAX} characters"
        )
    if len(name) > TOPIC_NAME_SIZE_MAX:
        raise InvalidTopicError(
            f"the topic name has {len(name)} characters: use at most {TOPIC_NAME_SIZE_MAX}"
        )
    if name in (".", ".."):
        raise InvalidTopicError(f"the topic name {name!r} is not allowed: use another name")
    if not _ALLOWED.fullmatch(name):
        raise InvalidTopicError(
            f"the topic name {name!r} has invalid characters: use only a-z A-Z 0-9 . _ -"
        )
    if name in RESERVED_TOPIC_NAMES:
        raise InvalidTopicError(
            f"the topic name {name!r} is reserved for the broker: use another name"
        )
