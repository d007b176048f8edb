"""A growable byte buffer, reused across requests so that the hot paths do not allocate.

`reserve` may move the bytes: keep offsets across it, never pointers. Layer 0: no I/O.
"""

from libc.stdint cimport uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset


cdef extern from *:
    """
    #ifdef __SANITIZE_ADDRESS__
    #include <sanitizer/asan_interface.h>
    #define LMQ_FENCE(p, size) ASAN_POISON_MEMORY_REGION(p, size)
    #define LMQ_UNFENCE(p, size) ASAN_UNPOISON_MEMORY_REGION(p, size)
    #else
    #define LMQ_FENCE(p, size) ((void)(p), (void)(size))
    #define LMQ_UNFENCE(p, size) ((void)(p), (void)(size))
    #endif
    """
    # Poison bytes inside a buffer that must not be accessed, so that AddressSanitizer reports any
    # access. Without the sanitizer both are no-ops.
    void fence "LMQ_FENCE"(const void* p, Py_ssize_t size) noexcept nogil
    void unfence "LMQ_UNFENCE"(const void* p, Py_ssize_t size) noexcept nogil


cdef struct Buf:
    uint8_t* data
    Py_ssize_t size
    Py_ssize_t capacity


cdef inline int grow_to(Buf* b, Py_ssize_t capacity) except -1 nogil:
    """Grow to a capacity, which is above the present one. Raises MemoryError."""
    cdef uint8_t* moved = <uint8_t*>realloc(b.data, capacity)
    if moved == NULL:
        with gil:
            raise MemoryError(f"cannot allocate a buffer of {capacity} bytes")
    b.data = moved
    b.capacity = capacity
    return 0


cdef inline uint8_t* grow(Buf* b, Py_ssize_t more) except NULL nogil:
    """Do as `reserve`, if there is not enough room."""
    cdef Py_ssize_t need = b.size + more
    grow_to(b, max(b.capacity * 2 if b.capacity else 256, need))
    return b.data + b.size


cdef inline uint8_t* reserve(Buf* b, Py_ssize_t more) except NULL nogil:
    """Ensure room for `more` bytes; return where they go. Raises MemoryError."""
    if b.data != NULL and more <= b.capacity - b.size:
        return b.data + b.size
    return grow(b, more)


cdef inline int append(Buf* b, const void* p, Py_ssize_t size) except -1 nogil:
    memcpy(reserve(b, size), p, size)
    b.size += size
    return 0


cdef inline uint8_t* extend_zero(Buf* b, Py_ssize_t size) except NULL nogil:
    """Append `size` zero bytes; return where they begin."""
    cdef uint8_t* p = reserve(b, size)
    memset(p, 0, size)
    b.size += size
    return p


cdef inline void shrink(Buf* b, Py_ssize_t keep) noexcept nogil:
    """Empty the buffer; free its memory if a large request grew it beyond `keep` bytes."""
    b.size = 0
    if b.capacity > keep:
        free(b.data)
        b.data = NULL
        b.capacity = 0


cdef inline void fit(Buf* b, Py_ssize_t keep) noexcept nogil:
    """Shrink the capacity to max(2 * size, `keep`) if that frees at least half of it."""
    cdef Py_ssize_t capacity = max(2 * b.size, keep)
    cdef uint8_t* moved
    if b.size == 0:
        shrink(b, keep)
    elif capacity <= b.capacity // 2:
        moved = <uint8_t*>realloc(b.data, capacity)
        if moved != NULL:
            b.data = moved
            b.capacity = capacity


cdef inline void release(Buf* b) noexcept nogil:
    free(b.data)
    b.data = NULL
    b.size = 0
    b.capacity = 0
