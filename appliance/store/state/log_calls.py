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
        end_pos: returns where the log ends, including what is only encoded yet.
        flushed_pos: returns the end of the part of the log that is on the disk.
        check_room: (payload size, ROOM_*) raises DiskFullError unless that payload fits.
        begin: announces that memory changes before its frame is appended.
        end: notes that the frame is applied: memory and log agree. If an error prevents the call,
            the process ends.
    """

    append: Callable[[int, bytes], None]
    append_topic: Callable[[bytes, int], int]
    end_pos: Callable[[], int]
    flushed_pos: Callable[[], int]
    check_room: Callable[[int, int], None]
    begin: Callable[[], None]
    end: Callable[[], None]
