"""Which topic names a client may use. Layer 3; does no I/O."""

import re
from typing import Final

from appliance.errors import InvalidTopicError

TOPIC_NAME_SIZE_MAX: Final = 249
"""Kafka's limit: a file name of 255 bytes less a partition suffix. A name is a directory here
too."""

RESERVED_TOPIC_NAMES: Final = frozenset(
    {"SCHEDULE_TOPIC_XXXX", "__consumer_offsets", "__transaction_state"}
)
"""Topics of the broker itself: RocketMQ's name for the level queues, and Kafka's two, whose content
lives in control frames here. Clients can neither make nor delete them."""

_ALLOWED: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def check_topic_name(name: str) -> None:
    """Check the name of a topic that a client wants to make.

    Raises:
        InvalidTopicError: with a sentence that says what is wrong.
    """
    if not name:
        raise InvalidTopicError("a topic name cannot be empty")
    if len(name) > TOPIC_NAME_SIZE_MAX:
        raise InvalidTopicError(
            f"the topic name has {len(name)} characters; {TOPIC_NAME_SIZE_MAX} at most"
        )
    if name in (".", ".."):
        raise InvalidTopicError(f"a topic name cannot be {name!r}")
    if not _ALLOWED.fullmatch(name):
        raise InvalidTopicError(
            f"the topic name {name!r} has characters other than a-z A-Z 0-9 . _ -"
        )
    if name in RESERVED_TOPIC_NAMES:
        raise InvalidTopicError(f"the topic name {name!r} is reserved for the broker itself")
