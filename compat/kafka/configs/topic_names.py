"""The rules for topic names. Layer 3; does no I/O."""

import re
from typing import Final

from appliance.errors import InvalidTopicError
from compat.kafka.configs.entries import shown

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

    The messages are those of Kafka's `Topic.validate`: tools match on them.

    Raises:
        InvalidTopicError: the message says what is wrong.
    """
    if not name:
        raise InvalidTopicError(
            "Topic name is invalid: the empty string is not allowed: "
            f"use 1 to {TOPIC_NAME_SIZE_MAX} characters"
        )
    if len(name) > TOPIC_NAME_SIZE_MAX:
        raise InvalidTopicError(
            f"Topic name is invalid: the length of {shown(name)} is longer than the max allowed "
            f"length {TOPIC_NAME_SIZE_MAX}"
        )
    if name in (".", ".."):
        raise InvalidTopicError(f"Topic name is invalid: {name!r} is not allowed: use another name")
    if not _ALLOWED.fullmatch(name):
        raise InvalidTopicError(
            f"Topic name is invalid: {shown(name)} contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    if name in RESERVED_TOPIC_NAMES:
        raise InvalidTopicError(
            "The request attempted to perform an operation on an invalid topic: "
            f"{name} is reserved for the broker, use another name"
        )
