# How late timers were delivered: counts between bounds, which LATENESS_BOUNDS_MS names.
from libc.stdint cimport int64_t

cdef enum:
    LATENESS_BOUNDS = 13

cdef struct Lateness:
    int64_t counts[LATENESS_BOUNDS + 1]    # at or below each bound and above the one before; above
    int64_t sum_ms

# Counts one timer.
cdef void note_lateness(Lateness* lateness, int64_t late_ms) noexcept nogil
cdef list lateness_counts(const Lateness* lateness)
