from libc.stdint cimport int32_t, int64_t

from _core.bytes.buffer cimport Buf

# A record batch or a timer that was carried: a frame after its first one holds it again.
cdef struct Copy:
    int64_t pos               # of the frame that holds the copy
    int64_t origin            # position of the frame that first held it
    int64_t number            # what the caller calls the copy
    int64_t home              # what the caller calls the first of its places in the log
    int64_t next              # place of the next copy of the same thing in the list, -1 for none
    int32_t index             # of the timer in its accept frame; 0 for records
    bint has_original
    bint is_first             # of the copies in the log

# What was read before; see `Copies.left_out`.
cdef struct Since:
    int64_t position
    int64_t gap_from
    int64_t gap_to
    int64_t gap_end


cdef Since since_of(tuple read) except *


cdef class Copies:
    cdef Buf copies           # Copy, in the order of the log
    cdef Buf slots            # int64_t: a hash table of places in that list, plus one; 0 = free
    cdef readonly int64_t count
    cdef Py_ssize_t used      # slots
    # Adds a copy. REQUIRES: it comes after all others in the log. `original` is what the caller
    # calls its original, -1 if that is not in the log.
    cdef int add(
        self, int64_t pos, int64_t origin, int32_t index, int64_t number, int64_t original
    ) except -1
    # Place of the newest copy of a thing in the list, -1 for none.
    cdef int64_t find(self, int64_t origin, int32_t index) noexcept nogil
    cdef Copy* at(self, int64_t place) noexcept nogil
    # Place of the first copy at or after a log position.
    cdef int64_t first_at(self, int64_t pos) noexcept nogil
    # Whether the copy stands for its thing in what is read now.
    cdef bint is_taken(self, const Copy* copy, const Since* since) noexcept nogil
    cdef int _grow(self) except -1
