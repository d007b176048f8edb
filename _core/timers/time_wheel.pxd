from libc.stdint cimport int64_t, uint32_t

from _core.timers.timer_list cimport Timer

cdef enum:
    PAGE_BITS = 8
    PAGE_SLOTS = 1 << PAGE_BITS

# Slots of one stretch of time: those whose number, shifted right by PAGE_BITS, is `number`.
cdef struct WheelPage:
    int64_t number
    int64_t total
    uint32_t counts[PAGE_SLOTS]

cdef class TimeWheel:
    cdef readonly int64_t slot_ms
    cdef readonly int64_t from_ms
    cdef readonly int64_t total
    cdef readonly int64_t allocated_bytes
    cdef Timer until          # what it counts is before this timer
    cdef WheelPage** pages    # an open-addressing table by number
    cdef int64_t capacity     # a power of two, or 0
    cdef int64_t page_count
    cdef WheelPage* last      # the page that was found last, or NULL
    cdef bint is_open         # counts are differences, and may be below zero
    # Counts timers due from a multiple of slot_ms on, none at first: what is before `until` grows.
    cdef void begin(self, int64_t from_ms) noexcept nogil
    # Whether the wheel counts this timer.
    cdef bint counts(self, const Timer* timer) noexcept nogil
    # Counts timers that are due at one time. False if there is no memory; nothing has changed then.
    cdef bint add(self, int64_t due_ms, int64_t count) noexcept nogil
    # Takes one back. False if it was not counted.
    cdef bint take(self, int64_t due_ms) noexcept nogil
    # How many are due in the slot that has this time.
    cdef int64_t count_at(self, int64_t due_ms) noexcept nogil
    # Adds what is due in each of `size` intervals of `step_ms` from a time on, both multiples of
    # slot_ms; returns how many are due before it.
    cdef int64_t tally(
        self, int64_t begin_ms, int64_t step_ms, int64_t* counts, int64_t size
    ) noexcept nogil
    # Adds the counts of another wheel to differences. False if there is no memory.
    cdef bint close(self, TimeWheel counted) noexcept nogil
    cdef WheelPage* _find(self, int64_t number) noexcept nogil
    cdef WheelPage* _make(self, int64_t number) noexcept nogil
    cdef bint _grow(self) noexcept nogil
    cdef void _drop(self, WheelPage* page) noexcept nogil
    cdef void _clear(self) noexcept nogil
