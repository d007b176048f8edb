"""The bytes of a connection that have arrived: the size of the next request, and room for it.

Layer 0: no I/O.
"""

from libc.stdint cimport int32_t, int64_t

from _core.bytes.buffer cimport Buf, grow_to, reserve
from _core.bytes.octets cimport load_i32

cdef enum:
    INPUT_MIN_BYTES = 16 << 10
    # For a client that sends requests faster than they are read: fewer turns for the same requests.
    INPUT_BUSY_BYTES = 64 << 10
    # For a larger request the buffer does not double beyond its size.
    INPUT_EXACT_BYTES = 1 << 20
    # Of one read: the first touch of a large buffer is spread over many turns. A request of a
    # client with default settings, at most 1 MB, comes in one: with 512 KiB it takes two, and a
    # sixth more CPU time for each byte.
    WINDOW_BYTES = 1 << 20


cdef inline int64_t next_size(const Buf* b, Py_ssize_t consumed, int64_t size_max) noexcept:
    """Return the size of the request at `consumed` with its prefix; 0 if that is not there."""
    cdef int32_t size
    if b.size - consumed < 4:
        return 0
    size = load_i32(b.data + consumed)
    return 4 + <int64_t>size if 0 < size <= size_max else 0


cdef inline bint make_room(Buf* b, int64_t needed, bint is_busy) except -1:
    """Make room for the next read. Returns whether that was to have fewer reads.

    The buffer grows as bytes arrive, never by the claim of a size field alone.

    Args:
        b: what has arrived.
        needed: the end of the first incomplete request in the buffer, 0 if it is unknown.
        is_busy: the last read filled the buffer.
    """
    cdef Py_ssize_t room = b.capacity - b.size
    needed += INPUT_MIN_BYTES // 2
    if room < INPUT_MIN_BYTES // 2:
        if needed > INPUT_EXACT_BYTES and b.capacity < needed < 2 * b.capacity:
            grow_to(b, needed)
            return False
        reserve(b, b.capacity if b.capacity else INPUT_MIN_BYTES)
    elif is_busy and b.capacity < INPUT_BUSY_BYTES:
        reserve(b, room + 1)  # which doubles it
        return True
    return False
