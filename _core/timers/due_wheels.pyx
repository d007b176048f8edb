"""How many timers of a due queue are due when, without looking at them.

    timers    now                48 h                                    10 years
    minutes   |||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||
    seconds   ||||||||||||||||||||

Each timer that becomes pending, and each that no longer is, changes one count in each wheel. So the
counts are exact, and a forecast reads counts of slots, not timers. One wheel has minutes as far as
timers reach, the other one the seconds of the next two days.

A walk over the due tree moves the bound of a wheel, some timers at a time: that of the seconds as
time passes, and both after a topic was deleted with timers whose due times nobody has. A timer
behind the bound is counted by the walk, a timer before it by `add` and `take`; a bound is a timer,
not a time, so that each is counted once. The walk does not find the timers that are kept outside of
the queue. It begins after the last of them, at a minute, and none of them is counted.

Layer 0: no I/O, no clock. Used by the event loop thread.
"""

cimport cython
from libc.stdint cimport INT64_MAX, int64_t

from _core.bytes.debug cimport SELF_CHECKS
from _core.timers.due_tree cimport DUE_MS_END, DueTree
from _core.timers.time_wheel cimport TimeWheel
from _core.timers.timer_list cimport Chunk, Timer, TimerList, chunk_timers, is_before

cdef enum:
    SECOND_MS = 1000
    MINUTE_MS = 60_000
    NEAR_MS = 48 * 60 * MINUTE_MS
    # More timers in the heap than this are not looked at for each step: the walk waits.
    HEAP_MAX = 1 << 16


cdef inline Timer timer_at(int64_t due_ms) noexcept nogil:
    """A bound before all timers that are due then."""
    return Timer(due_ms, -1, -1, 0)


@cython.final
@cython.no_gc    # no cycle can go through it
cdef class DueWheels:
    """The two wheels of a due queue, which is empty at first.

    Attributes:
        minutes: all timers, or those from the last walk on.
        seconds: those of the next 48 hours.
    """

    def __cinit__(self, DueTree tree not None):
        self.tree = tree
        self.minutes = TimeWheel(MINUTE_MS)
        self.seconds = TimeWheel(SECOND_MS)
        # No timer is pending, so that nothing needs a walk.
        self.minutes.until = timer_at(DUE_MS_END)
        self.kept_max_ms = -1

    cdef void add(self, const Timer* timer) noexcept nogil:
        if self.minutes.counts(timer) and not self.minutes.add(timer.due_ms, 1):
            self.is_lost = True    # no memory: it is counted again when there is some
        if self.seconds.counts(timer) and not self.seconds.add(timer.due_ms, 1):
            self.is_lost = True

    cdef void take(self, const Timer* timer) noexcept nogil:
        if self.minutes.counts(timer) and not self.minutes.take(timer.due_ms):
            assert self.is_lost or not SELF_CHECKS
            self.is_lost = True
        if self.seconds.counts(timer) and not self.seconds.take(timer.due_ms):
            assert self.is_lost or not SELF_CHECKS
            self.is_lost = True

    cdef void note_kept(self, const Timer* timer) noexcept nogil:
        self.kept_max_ms = max(self.kept_max_ms, timer.due_ms)

    cdef void lose(self) noexcept nogil:
        self.is_lost = self.is_stale = True

    def begin_count(self, int64_t now_ms):
        """Begin to count all timers anew; what happens to them meanwhile is noted.

        Returns:
            The time from which on they are to be counted, epoch ms: a minute.
        """
        cdef int64_t from_ms = now_ms - now_ms % MINUTE_MS
        self.minutes.begin(from_ms)
        self.minutes.until = timer_at(DUE_MS_END)
        self.minutes.is_open = True
        self.seconds.begin(from_ms)
        self.is_lost, self.is_stale = True, False
        return from_ms

    def end_count(self, TimeWheel counted not None):
        """Add the timers that were pending at `begin_count`; return whether all is counted now."""
        if self.is_stale or not self.minutes.close(counted):
            return False
        self.is_lost = False
        return True

    cdef bint _is_whole(self) noexcept nogil:
        """Whether the minutes have every timer from their first one on."""
        return not self.is_lost and self.minutes.until.due_ms == DUE_MS_END

    @property
    def is_whole(self):
        """Whether all timers are counted by minutes."""
        return self._is_whole()

    # Saved and restored with a state

    def save(self):
        """Encode the counts by minutes; None if they do not have every timer.

        O(minutes that have timers, in pages of 256).
        """
        return self.minutes.save() if self._is_whole() else None

    def restore(self, bytes saved):
        """Restore the result of `save`, before a timer is pushed or loaded.

        Raises:
            ValueError: it is not the result of `save`; the counts are lost.
        """
        self.is_lost = True
        if saved is not None:
            self.minutes.restore(saved)
            self.minutes.until = timer_at(DUE_MS_END)
            self.is_lost = False

    # The walk

    cdef bint advance(self, int64_t now_ms, int64_t loaded_ms, int64_t budget) noexcept nogil:
        cdef int64_t near_ms = now_ms - now_ms % SECOND_MS + NEAR_MS
        cdef int64_t end_ms = min(near_ms, loaded_ms)
        cdef int64_t kept_ms = self.kept_max_ms + MINUTE_MS
        cdef int64_t minute_ms = now_ms - now_ms % MINUTE_MS
        cdef int64_t from_ms = max(minute_ms, kept_ms - kept_ms % MINUTE_MS)
        cdef int64_t reached_ms = self.seconds.until.due_ms
        if self.is_lost or from_ms < self.minutes.from_ms:
            if loaded_ms < INT64_MAX:
                return False    # later, when the walk finds all of them
            self.minutes.begin(from_ms)
            self.is_lost = False
            self.seconds.begin(from_ms)
        elif (
            reached_ms < minute_ms or reached_ms > near_ms + NEAR_MS
            or from_ms < self.seconds.from_ms
        ):
            # At first, after a long sleep, or after a step back of the clock.
            self.seconds.begin(from_ms)
        self._walk(self.minutes, DUE_MS_END, &budget)
        self._walk(self.seconds, end_ms, &budget)
        return not self._is_whole() or self.seconds.until.due_ms < end_ms

    cdef void _walk(self, TimeWheel wheel, int64_t end_ms, int64_t* budget) noexcept nogil:
        """Move the bound of a wheel towards a time, and count the timers on the way."""
        cdef Timer begin = wheel.until
        cdef Timer reached = begin
        cdef TimerList* leaf
        if begin.due_ms >= end_ms or self.tree.heap.count > HEAP_MAX:
            return
        while budget[0] > 0 and reached.due_ms < end_ms:
            leaf = self.tree.leaf_from(reached.due_ms)
            if leaf == NULL or self.tree.leaf_begin() >= end_ms:
                reached = timer_at(end_ms)
            elif self._count_leaf(wheel, leaf, &reached, end_ms, budget):
                reached = timer_at(min(self.tree.leaf_end(), end_ms))
        # Those of the heap are in no order of due times.
        self._count_some(wheel, self.tree.heap.timers, self.tree.heap.count, &begin, &reached)
        budget[0] -= self.tree.heap.count
        wheel.until = reached

    cdef bint _count_leaf(
        self, TimeWheel wheel, TimerList* leaf, Timer* reached, int64_t end_ms, int64_t* budget
    ) noexcept nogil:
        """Count the timers of a leaf that are not before `reached`; returns whether all are.

        Else `reached` is moved on: millions may be due in one ms, and stay in order of arrival.
        """
        cdef Chunk* chunk = leaf.head
        cdef Timer end = timer_at(end_ms)
        cdef bint is_ordered = self.tree.is_leaf_ordered()
        cdef const Timer* last
        while chunk != NULL:
            last = chunk_timers(chunk) + chunk.end - 1
            if not is_ordered or not is_before(last, reached):
                if is_ordered and budget[0] <= 0:
                    return False
                self._count_some(
                    wheel, chunk_timers(chunk) + chunk.begin, chunk.end - chunk.begin, reached, &end
                )
                budget[0] -= chunk.end - chunk.begin
                if is_ordered:
                    reached[0] = last[0]
                    reached.record_index += 1
            chunk = chunk.next
        return True

    cdef void _count_some(
        self, TimeWheel wheel, const Timer* timers, int64_t count, const Timer* from_timer,
        const Timer* until
    ) noexcept nogil:
        """Count timers from one on and before another, without cancelled ones."""
        cdef int64_t i
        for i in range(count):
            if is_before(&timers[i], from_timer) or not is_before(&timers[i], until):
                continue
            if not self.tree.is_cancelled(&timers[i]) and not wheel.add(timers[i].due_ms, 1):
                self.is_lost = True

    # What the wheels say

    cdef int64_t count_at(self, int64_t due_ms, bint* is_minute) noexcept nogil:
        cdef int64_t second_ms = due_ms - due_ms % SECOND_MS
        is_minute[0] = False
        if self.is_lost:
            return -1
        if self.seconds.from_ms <= second_ms and self.seconds.until.due_ms >= second_ms + SECOND_MS:
            return self.seconds.count_at(due_ms)
        is_minute[0] = True
        if not self._is_whole() or due_ms < self.minutes.from_ms:
            return -1
        return self.minutes.count_at(due_ms)

    cdef int64_t tally(
        self, int64_t pending, int64_t begin_ms, int64_t step_ms, int64_t* counts, int64_t size
    ) noexcept nogil:
        cdef int64_t minute_ms = begin_ms - begin_ms % MINUTE_MS
        cdef int64_t before
        if not self._is_whole() or minute_ms < self.minutes.from_ms:
            return -1
        # Timers before the first minute are the ones that it does not count.
        before = pending - self.minutes.total
        if begin_ms == minute_ms and step_ms % MINUTE_MS == 0:
            return before + self.minutes.tally(begin_ms, step_ms, counts, size)
        if begin_ms % SECOND_MS or step_ms % SECOND_MS or minute_ms < self.seconds.from_ms:
            return -1
        if size > (self.seconds.until.due_ms - begin_ms) // step_ms:
            return -1
        before += self.minutes.tally(minute_ms, MINUTE_MS, NULL, 0)
        before += self.seconds.tally(begin_ms, step_ms, counts, size)
        return before - self.seconds.tally(minute_ms, SECOND_MS, NULL, 0)
