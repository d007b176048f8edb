# Sorts the rows of a piece of the key index.

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

cdef enum:
    RADIX_BITS = 8
    RADIX = 1 << RADIX_BITS

cdef struct Row:
    uint64_t hash
    int64_t pos


# Sorts rows by hash, keeping the order of equal ones; returns which of the buffers has them. It is
# a radix sort from the low byte on: the rows of one position of the log come after those of earlier
# ones already, so that only the hash is sorted.
cdef inline const Row* sort_rows(Row* rows, Row* other, int64_t count) noexcept nogil:
    cdef int64_t counts[RADIX]
    cdef int64_t at, i, before, n
    cdef int step, shift, digit
    cdef Row* swapped
    for step in range(64 // RADIX_BITS):
        shift = step * RADIX_BITS
        memset(counts, 0, sizeof(counts))
        for i in range(count):
            counts[(rows[i].hash >> shift) & (RADIX - 1)] += 1
        before = 0
        for digit in range(RADIX):
            n = counts[digit]
            counts[digit] = before
            before += n
        for i in range(count):
            digit = (rows[i].hash >> shift) & (RADIX - 1)
            at = counts[digit]
            counts[digit] = at + 1
            other[at] = rows[i]
        swapped = rows
        rows = other
        other = swapped
    return rows
