from libc.stdint cimport int32_t, int64_t

from _core.timers.due_tree cimport DueTree
from _core.timers.due_wheels cimport DueWheels
from _core.timers.timer_list cimport Timer
from _core.timers.cancelled_timers cimport CancelledTimers

cdef class DueQueue:
    cdef readonly int64_t pending
    cdef readonly int64_t loaded_ms    # later timers may be left to load; INT64_MAX: none
    cdef readonly int64_t horizon_ms   # timers due from then on are counted, but not in memory
    cdef int64_t reached_ms            # what was popped, and perhaps kept, is not due later
    cdef DueTree tree
    cdef readonly DueWheels wheels
    cdef CancelledTimers cancelled
    cdef int64_t* partition_pending
    cdef int64_t partition_capacity
    cdef bint is_sweeping
    cdef int64_t sweep_credit
    cdef int64_t orphans_since    # timers of partitions that were forgotten since the sweep began
    cdef dict held            # by topic: a HeldTimers, if the topic holds timers back
    # Adds a pending timer. due_ms >= 0; the timer is not pending yet.
    cdef int push(self, const Timer* timer) except -1 nogil
    # Adds a timer of a saved state whose counts were restored; one that was cancelled since is
    # dropped.
    cdef int load(self, const Timer* timer) except -1 nogil
    # Counts timers of a partition that `load` will add, or has added.
    cdef int restore_count(self, int32_t partition, int64_t count) except -1
    # Takes up to `limit` timers due by now_ms, by due time, then arrival. Returns the count.
    cdef Py_ssize_t pop_due(self, int64_t now_ms, Timer* out, Py_ssize_t limit) except -1 nogil
    # Makes popped timers pending again; drops those of forgotten partitions.
    cdef int unpop(self, const Timer* timers, Py_ssize_t count) except -1 nogil
    # Counts a popped timer as pending although the caller holds it. False if its partition is
    # forgotten.
    cdef bint keep(self, const Timer* timer) except -1 nogil
    # Makes a kept timer a popped one again; False if it has been cancelled.
    cdef bint take_kept(self, const Timer* timer) noexcept nogil
    # Cancels a pending timer. Returns 1, or 0 if it was cancelled already. due_ms: -1 if it is not
    # known; then the wheels lose count, and the timers are walked.
    cdef int cancel(
        self, int64_t position, int32_t record_index, int32_t partition, int64_t due_ms
    ) except -1 nogil
    # Cancels all timers of a partition. Timers pushed for it later are dropped.
    cdef int forget_partition(self, int32_t partition) except -1 nogil
    # A time before which no timer is due; -1 when empty. It is earlier than the first pending timer
    # only if a cancelled timer precedes it. Popping at that time removes the cancelled timer.
    cdef int64_t next_due_ms(self) noexcept nogil
    # Whether a timer is due, or may be: one that is not loaded yet, or is cancelled.
    cdef bint may_have_due(self, int64_t now_ms) noexcept nogil
    # Examines about `budget` entries and removes the cancelled ones, if a sweep is in progress: one
    # starts when they outnumber the pending timers. Pushes, pops and cancels sweep a little; an
    # idle broker may do more. Returns whether work is left.
    cdef bint sweep(self, int64_t budget) noexcept nogil
    cdef int _ensure_counter(self, int32_t partition) except -1 nogil
    cdef void _count_pushed(self, const Timer* timer) noexcept nogil
    cdef void _count_popped(self, const Timer* timer) noexcept nogil
    cdef int _choose(self, int64_t now_ms, Timer* bound) noexcept nogil
    cdef Py_ssize_t _drain_heap(
        self, int64_t now_ms, const Timer* bound, Timer* out, Py_ssize_t limit
    ) noexcept nogil
    cdef Py_ssize_t _drain_run(
        self, const Timer* bound, Timer* out, Py_ssize_t limit
    ) noexcept nogil
    cdef int _check(self, int64_t now_ms, const Timer* popped, Py_ssize_t count) except -1 nogil
    cdef void _consider_sweep(self) noexcept nogil
