"""How many pending timers one address is charged for, in 4 KiB however many they are.

    delay below   8 s   16 s   33 s   66 s  ...   35 years
    interval      1 s    2 s    4 s    8 s  ...    8 years

Who asked for a timer is not stored with it. A charge belongs to an interval of due times instead.
The longer the delay, the longer the interval: from an eighth to a quarter of the delay, at least a
second. A charge ends when its interval is over, so that it lasts at least as long as the timer if
that is delivered in time, and at most a quarter of the delay longer. Intervals of one level are
aligned: a due time is in one of each level.

A timer that is cancelled takes a charge back from the shortest interval that has its due time. So
nobody gets rid of a charge for a late timer by cancelling timers that are due soon.

A timer that recurs is charged for until it is cancelled or replaced. If it ends by itself or with
its topic, the charge stays until the broker starts again.

Layer 0: no I/O, no clock. Used by the event loop thread.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memset

from _core.bytes.layout cimport (
    DUE_RECURRING, TIMER_AT_DUE, TIMER_AT_KIND, TIMER_ENTRY_SIZE,
)
from _core.bytes.octets cimport load_i64

cdef enum:
    SHORTEST_BITS = 10     # an interval has at least 2^10 ms
    PARTS_BITS = 3         # a delay reaches over 2^3 intervals of its level at most

cdef extern from *:
    int leading_zeros "__builtin_clzll"(unsigned long long) noexcept nogil

# The longest delay that a setting allows, 100 years, has a level of its own.
assert <int64_t>1 << (CHARGE_LEVELS - 1 + SHORTEST_BITS + PARTS_BITS) > 36_500 * 86_400_000LL
assert CHARGE_SLOTS > (1 << PARTS_BITS)


cdef inline int level_of(int64_t delay_ms) noexcept nogil:
    """The level for a delay; for one of 0 or less the first."""
    cdef int bits = 64 - leading_zeros(<uint64_t>delay_ms) if delay_ms > 0 else 0
    return min(max(bits - PARTS_BITS - SHORTEST_BITS, 0), CHARGE_LEVELS - 1)


@cython.final
@cython.no_gc    # it holds no objects
cdef class DueCharges:
    """The charges of one address. Due times and the current time are epoch ms."""

    cdef void _advance(self, int level, int64_t now_ms) noexcept nogil:
        """End the charges of intervals that are over. After a step back of the clock, none are."""
        cdef int64_t first = now_ms >> (SHORTEST_BITS + level)
        cdef int64_t interval
        if first - self.first[level] >= CHARGE_SLOTS:
            memset(self.counts[level], 0, sizeof(self.counts[level]))
        else:
            for interval in range(self.first[level], first):
                self.counts[level][interval % CHARGE_SLOTS] = 0
        self.first[level] = max(self.first[level], first)

    cdef void add(self, int64_t now_ms, int64_t due_ms, int64_t count) noexcept nogil:
        cdef int level = level_of(due_ms - now_ms)
        cdef int64_t interval = due_ms >> (SHORTEST_BITS + level)
        self._advance(level, now_ms)
        # The clock may have stepped back since: then it ends later.
        interval = max(interval, self.first[level])
        interval = min(interval, self.first[level] + CHARGE_SLOTS - 1)
        self.counts[level][interval % CHARGE_SLOTS] += count

    cdef void add_entries(
        self, int64_t now_ms, const uint8_t* entries, int32_t count, int64_t min_due_ms,
        int64_t max_due_ms, bint may_recur
    ) noexcept nogil:
        cdef int level = level_of(max_due_ms - now_ms)
        cdef int bits = SHORTEST_BITS + level
        cdef int32_t i
        cdef bint is_near = min_due_ms >> bits == max_due_ms >> bits
        if is_near and not may_recur and level_of(min_due_ms - now_ms) == level:
            self.add(now_ms, max_due_ms, count)
            return
        for i in range(count):
            if entries[TIMER_AT_KIND] == DUE_RECURRING:
                self.recurring += 1
            else:
                self.add(now_ms, load_i64(entries + TIMER_AT_DUE), 1)
            entries += TIMER_ENTRY_SIZE

    cdef void credit(self, int64_t due_ms, bint recurs) noexcept nogil:
        cdef int64_t interval
        cdef int level
        if recurs:
            self.recurring = max(self.recurring - 1, 0)
            return
        for level in range(CHARGE_LEVELS):
            interval = due_ms >> (SHORTEST_BITS + level)
            if not 0 <= interval - self.first[level] < CHARGE_SLOTS:
                continue
            if self.counts[level][interval % CHARGE_SLOTS] > 0:
                self.counts[level][interval % CHARGE_SLOTS] -= 1
                return

    cdef int64_t total(self, int64_t now_ms) noexcept nogil:
        cdef int64_t count = self.recurring
        cdef int level, i
        for level in range(CHARGE_LEVELS):
            self._advance(level, now_ms)
            for i in range(CHARGE_SLOTS):
                count += self.counts[level][i]
        return count
