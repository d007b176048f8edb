"""Reads a file around what the disk cannot read of it. Layer 2.

A read fails as a whole, or stops, where a single sector is bad; what lies around it is as good as
ever. So there it goes on page by page.
"""

from typing import Final

from appliance.errors import StorageError
from appliance.fs import File
from appliance.units import KIB, PAGE_SIZE_BYTES

Unreadable = tuple[int, int, str]
"""From, to, and why that part cannot be read."""

FILE_ENDS: Final = "the file ends"

WRITTEN_STEP_BYTES: Final = 64 * KIB
"""In such steps a start asks what was ever written behind the end of the log."""


def read_around(file: File, memory: memoryview, offset: int) -> list[Unreadable]:
    """Fill memory with bytes of a file, and with zeros where they cannot be read.

    Args:
        file: of which nobody expects more than its size.
        memory: to be filled.
        offset: position in the file of the first byte.

    Returns:
        The parts that cannot be read, ascending, as positions in the file.

    Raises:
        StorageError: it is not the disk that refuses.
    """
    lost: list[Unreadable] = []
    done = 0
    while done < len(memory):
        at = offset + done
        try:
            count = file.pread_into(memory[done:], at)
            why = FILE_ENDS
            lost_size = len(memory) - done
        except StorageError as error:
            if not error.is_unreadable:
                raise
            why = error.reason
            lost_size = min(PAGE_SIZE_BYTES - at % PAGE_SIZE_BYTES, len(memory) - done)
            count = _read_page(file, memory[done : done + lost_size], at)
        if count == 0:
            count = lost_size
            memory[done : done + count] = bytes(count)
            begin = lost.pop()[0] if lost and lost[-1][1:] == (at, why) else at
            lost.append((begin, at + count, why))
        done += count
    return lost


def _read_page(file: File, memory: memoryview, offset: int) -> int:
    """A page of which a larger read said that it is bad; 0 if it is."""
    try:
        return file.pread_into(memory, offset)
    except StorageError as error:
        if not error.is_unreadable:
            raise
        return 0


def written_ranges(file: File, start: int, end: int) -> list[tuple[int, int]]:
    """Where in a part of a file something may be written, as (from, to) offsets.

    Ask before those pages are read: one that was only looked at counts as written afterwards.
    """
    ranges: list[tuple[int, int]] = []
    at = start
    while at < end:
        found = file.next_data(at)
        if found is None or found >= end:
            break
        at = min((found // WRITTEN_STEP_BYTES + 1) * WRITTEN_STEP_BYTES, end)
        if ranges and ranges[-1][1] == found:
            found = ranges.pop()[0]
        ranges.append((found, at))
    return ranges
