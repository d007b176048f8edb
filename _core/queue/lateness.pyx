"""How late timers were delivered, as counts between bounds: of all, and of each topic.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int64_t

LATENESS_BOUNDS_MS = (0.5, 1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 5000, 60000)

# In whole milliseconds, as due times are.
cdef int64_t* LIMITS_MS = [0, 1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 5000, 60000]


cdef void note_lateness(Lateness* lateness, int64_t late_ms) noexcept nogil:
    cdef int i = 0
    while i < LATENESS_BOUNDS and late_ms > LIMITS_MS[i]:
        i += 1
    lateness.counts[i] += 1
    lateness.sum_ms += late_ms


cdef list lateness_counts(const Lateness* lateness):
    cdef int i
    return [lateness.counts[i] for i in range(LATENESS_BOUNDS + 1)]
