"""Finds an id in a run of ids: the block by the directory, and the row in the block.

Layer 0: no I/O.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp

from _core.bytes.layout cimport RUN_ID_AT_HASH_HIGH, RUN_ID_AT_TOPIC_ID, RUN_ID_SIZE
from _core.bytes.octets cimport load_u64

cdef enum:
    KEY_SIZE = RUN_ID_AT_TOPIC_ID + 4    # what a row begins with; bytes are in the order of ids
    PLACE_SIZE = 28


cdef Py_ssize_t first_place(const uint8_t* places, Py_ssize_t count, uint64_t high, bint after) \
        noexcept nogil:
    """The number of the first place whose key is not below `high`, or `after` it."""
    cdef Py_ssize_t low = 0, end = count, middle
    cdef uint64_t key
    while low < end:
        middle = (low + end) // 2
        key = load_u64(places + middle * PLACE_SIZE)
        if key < high or (after and key == high):
            low = middle + 1
        else:
            end = middle
    return low


def blocks_with(bytes places not None, bytes key not None):
    """Return the blocks that may have an id, as the number of the first and that after the last.

    Args:
        places: those of the directory, each of which begins with the first word of the hash of the
            first row.
        key: what the row begins with, 16 bytes.
    """
    cdef const uint8_t* p = <const uint8_t*><const char*>places
    cdef Py_ssize_t count = len(places) // PLACE_SIZE
    cdef uint64_t high
    assert len(key) == KEY_SIZE
    high = load_u64(<const uint8_t*><const char*>key + RUN_ID_AT_HASH_HIGH)
    return max(first_place(p, count, high, False) - 1, 0), first_place(p, count, high, True)


def find_row(bytes block not None, bytes key not None):
    """Return the row of an id in a block, b"" if it has none.

    Args:
        block: whole rows in order.
        key: what the row begins with, 16 bytes.
    """
    cdef const uint8_t* rows = <const uint8_t*><const char*>block
    cdef const uint8_t* wanted = <const uint8_t*><const char*>key
    cdef Py_ssize_t low = 0, end = len(block) // RUN_ID_SIZE, middle
    cdef Py_ssize_t count = end
    assert len(key) == KEY_SIZE
    while low < end:
        middle = (low + end) // 2
        if memcmp(rows + middle * RUN_ID_SIZE, wanted, KEY_SIZE) < 0:
            low = middle + 1
        else:
            end = middle
    if low == count or memcmp(rows + low * RUN_ID_SIZE, wanted, KEY_SIZE) != 0:
        return b""
    return block[low * RUN_ID_SIZE:(low + 1) * RUN_ID_SIZE]
