"""The bytes of a connection that have arrived: the size of the next request, and room for it.

Layer 0: no I/O.
"""

from libc.stdint cimport int32_t, int64_t

from _core.bytes.buffer cimport Buf, grow_to
from _core.bytes.octets cimport load_i32

cdef enum:
    INPUT_MIN_BYTES = 16 << 10
    # For a client that sends requests faster than they are read: fewer turns for the same requests.
    # Each connection may have that much, whoever else needs memory.
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


cdef inline Py_ssize_t next_capacity(const Buf* b, Py_ssize_t consumed, int64_t size_max) noexcept:
    """Return the capacity that the buffer needs for the next read.

    It grows as bytes arrive, never by the claim of a size field alone.

    Args:
        b: what has arrived.
        consumed: where the first incomplete request begins.
        size_max: of a request, bytes.
    """
    cdef int64_t size = next_size(b, consumed, size_max)
    cdef int64_t needed = consumed + size if size else 0
    if b.capacity - b.size >= INPUT_MIN_BYTES // 2:
        return b.capacity
    if b.capacity == INPUT_BUSY_BYTES and b.size < needed <= b.capacity:
        return b.capacity  # a request of 64 KiB never needs more than a connection may have
    needed += INPUT_MIN_BYTES // 2
    if needed > INPUT_EXACT_BYTES and b.capacity < needed < 2 * b.capacity:
        return needed
    return max(2 * b.capacity, INPUT_MIN_BYTES)


cdef inline Py_ssize_t next_growth(const Buf* b, Py_ssize_t consumed, int64_t size_max) noexcept:
    """Return by how much the next read grows the buffer; 0 if within INPUT_BUSY_BYTES."""
    cdef Py_ssize_t capacity = next_capacity(b, consumed, size_max)
    return capacity - b.capacity if capacity > INPUT_BUSY_BYTES else 0


cdef inline bint make_room(Buf* b, Py_ssize_t consumed, int64_t size_max, bint is_busy) except -1:
    """Make room for the next read. Returns whether that was to have fewer reads.

    Args:
        b, consumed, size_max: as of `next_capacity`.
        is_busy: the last read filled the buffer.
    """
    cdef Py_ssize_t capacity = next_capacity(b, consumed, size_max)
    cdef bint is_fewer = capacity == b.capacity < INPUT_BUSY_BYTES and is_busy
    if is_fewer:
        capacity *= 2
    if capacity > b.capacity:
        grow_to(b, capacity)
    return is_fewer
