"""What the parts of the state call in the log. Layer 2; does no I/O."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogCalls:
    """The functions of the log that the parts call.

    Attributes:
        append: (kind, payload) appends a control frame; `end` must follow.
        append_topic: (payload, topic id) appends a topic frame and returns the end of its segment;
            `end` must follow.
        has_room: returns whether a payload of that many bytes fits without using the reserve.
        begin: announces that memory changes before its frame is appended.
        end: notes that the frame is applied: memory and log agree. If an error prevents the call,
            the process ends.
    """

    append: Callable[[int, bytes], None]
    append_topic: Callable[[bytes, int], int]
    has_room: Callable[[int], bool]
    begin: Callable[[], None]
    end: Callable[[], None]
