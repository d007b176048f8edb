from libc.stdint cimport int32_t, int64_t, uint8_t

cdef enum:
    CHARGE_LEVELS = 32
    CHARGE_SLOTS = 16

cdef class DueCharges:
    cdef void _advance(self, int level, int64_t now_ms) noexcept nogil
    cdef int64_t first[CHARGE_LEVELS]                  # the first interval that is not over
    cdef int64_t counts[CHARGE_LEVELS][CHARGE_SLOTS]   # of interval i at i % CHARGE_SLOTS
    cdef int64_t recurring                             # charges for timers that recur
    # Charges `count` timers due at one time, epoch ms; `now_ms` is 0 or more.
    cdef void add(self, int64_t now_ms, int64_t due_ms, int64_t count) noexcept nogil
    # Charges the timers of a table of an accept frame; `may_recur`: some of them may recur.
    cdef void add_entries(
        self, int64_t now_ms, const uint8_t* entries, int32_t count, int64_t min_due_ms,
        int64_t max_due_ms, bint may_recur
    ) noexcept nogil
    # Takes back the charge for one timer, due then, if there may be one.
    cdef void credit(self, int64_t due_ms, bint recurs) noexcept nogil
    # Charges that last.
    cdef int64_t total(self, int64_t now_ms) noexcept nogil
