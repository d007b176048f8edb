"""Reads a `DueQueue` in the order in which it will be popped, for people and for forecasts.

The queue is not changed. Leaves of its tree are ranges of due times that ascend, so a page is built
leaf by leaf: the timers of a leaf, which are in no order, compete for the places of the page. A
call examines about as many entries as its budget says and returns where the next one goes on, so
that the event loop serves others between two calls.

Layer 0: no I/O, no clock. Used by the event loop thread.
"""

cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc

from _core.timers.due_queue cimport DueQueue
from _core.timers.due_tree cimport DueTree
from _core.timers.held_timers cimport HeldTimers
from _core.timers.timer_heap cimport TimerHeap
from _core.timers.timer_list cimport Chunk, Timer, TimerList, chunk_timers, is_before


cdef struct Best:
    # The first timers in order that were found so far: a binary heap, the last of them on top.
    Timer* timers
    Py_ssize_t count
    Py_ssize_t limit


cdef void best_offer(Best* best, const Timer* timer) noexcept nogil:
    """Add a timer; if the page is full, the last one of all falls out."""
    cdef Py_ssize_t at = best.count
    cdef Py_ssize_t child
    if best.count < best.limit:
        best.count += 1
        while at and is_before(&best.timers[(at - 1) >> 1], timer):
            best.timers[at] = best.timers[(at - 1) >> 1]
            at = (at - 1) >> 1
        best.timers[at] = timer[0]
        return
    at = 0
    while True:
        child = 2 * at + 1
        if child >= best.count:
            break
        if child + 1 < best.count and is_before(&best.timers[child], &best.timers[child + 1]):
            child += 1
        if not is_before(timer, &best.timers[child]):
            break
        best.timers[at] = best.timers[child]
        at = child
    best.timers[at] = timer[0]


@cython.final
@cython.no_gc    # no cycle can go through it
cdef class DueList:
    """The pending timers of a queue, without those that `DeliverPath` keeps for the disk.

    Args:
        queue: the queue.
        from_ms, until_ms: timers due from one instant on, and before another, epoch ms.
        end_pos: timers accepted from this log position on are left out.
        wanted: a byte for each partition handle, 0 for those whose timers are left out; handles
            beyond it are left out too. None for all.
    """

    cdef DueQueue queue
    cdef DueTree tree
    cdef const TimerHeap** heaps    # of the tree, and of the topics that hold timers back
    cdef Py_ssize_t heap_count
    cdef Py_ssize_t heap_index      # where `count` goes on
    cdef int64_t heap_at
    cdef int64_t from_ms
    cdef int64_t until_ms
    cdef int64_t end_pos
    cdef const uint8_t[::1] wanted
    cdef bint takes_all

    def __cinit__(
        self,
        DueQueue queue not None,
        int64_t from_ms = 0,
        int64_t until_ms = INT64_MAX,
        int64_t end_pos = INT64_MAX,
        const uint8_t[::1] wanted = None,
    ):
        self.queue = queue
        self.tree = queue.tree
        self.from_ms = max(from_ms, 0)
        self.until_ms = until_ms
        self.end_pos = end_pos
        self.takes_all = wanted is None
        if not self.takes_all:
            self.wanted = wanted

    def __dealloc__(self):
        free(self.heaps)

    cdef int _find_heaps(self) except -1:
        """Note where the heaps are now; it holds until the queue is changed."""
        cdef Py_ssize_t count = 1 + len(self.queue.held)
        cdef Py_ssize_t at
        cdef void* grown = realloc(self.heaps, count * sizeof(void*))
        if grown == NULL:
            raise MemoryError("cannot allocate a list of heaps")
        self.heaps = <const TimerHeap**>grown
        self.heaps[0] = &self.tree.heap
        for at, held in enumerate(self.queue.held.values(), 1):
            self.heaps[at] = &(<HeldTimers>held).heap
        self.heap_count = count
        return 0

    cdef inline bint _takes(self, const Timer* timer) noexcept nogil:
        if not self.from_ms <= timer.due_ms < self.until_ms or timer.position >= self.end_pos:
            return False
        if self.takes_all:
            return True
        return timer.partition < self.wanted.shape[0] and self.wanted[timer.partition] != 0

    def page(self, after, Py_ssize_t limit, int64_t budget):
        """Return the next timers in order of due time, then of arrival.

        Args:
            after: (due_ms, position, record_index): only timers after it; None for the first page.
            limit: timers at most, from 1 on.
            budget: entries to examine; a leaf is examined to its end.

        Returns:
            (timers, after, is_complete): tuples of due_ms, position, record_index and partition
            handle; where the next call goes on; and whether no other timer follows.
        """
        cdef Timer bound
        cdef Best best
        cdef bint is_complete
        if limit < 1:
            raise ValueError("limit is less than 1")
        bound = Timer(-1, -1, -1, 0) if after is None else Timer(after[0], after[1], after[2], 0)
        best = Best(<Timer*>malloc(limit * sizeof(Timer)), 0, limit)
        if best.timers == NULL:
            raise MemoryError("cannot allocate a page of timers")
        try:
            self._find_heaps()
            with nogil:
                is_complete = self._fill(&best, &bound, budget)
            found = [
                (
                    best.timers[at].due_ms,
                    best.timers[at].position,
                    best.timers[at].record_index,
                    best.timers[at].partition,
                )
                for at in range(best.count)
            ]
        finally:
            free(best.timers)
        found.sort()
        return found, (bound.due_ms, bound.position, bound.record_index), is_complete

    cdef bint _fill(self, Best* best, Timer* bound, int64_t budget) noexcept nogil:
        """Fill a page from `bound` on, and move `bound` to where the next one begins.

        Returns:
            Whether no other timer follows.
        """
        cdef int64_t reached = max(bound.due_ms, self.from_ms)   # what is due before is in `best`
        cdef int64_t left = budget
        cdef TimerList* leaf
        cdef Chunk* chunk
        cdef Py_ssize_t i
        for i in range(self.heap_count):
            self._offer(best, bound, self.heaps[i].timers, self.heaps[i].count)
        while True:
            leaf = self.tree.leaf_from(reached)
            if leaf == NULL or self.tree.leaf_begin() >= self.until_ms:
                break
            if best.count == best.limit and best.timers[0].due_ms < self.tree.leaf_begin():
                break
            if left <= 0:
                # Timers of the heaps that are due later are found again.
                self._drop_from(best, reached)
                if best.count < best.limit:
                    bound[0] = Timer(reached, -1, -1, 0)
                    return False
                break
            chunk = leaf.head
            while chunk != NULL:
                self._offer(best, bound, chunk_timers(chunk) + chunk.begin, chunk.end - chunk.begin)
                chunk = chunk.next
            left -= leaf.count
            reached = self.tree.leaf_end()
        if best.count == best.limit:
            bound[0] = best.timers[0]
            return False    # whether one follows shows the next page
        return True

    cdef void _offer(
        self, Best* best, const Timer* bound, const Timer* timers, int64_t count
    ) noexcept nogil:
        cdef int64_t i
        cdef const Timer* timer
        for i in range(count):
            timer = &timers[i]
            if not self._takes(timer) or not is_before(bound, timer):
                continue
            if best.count == best.limit and not is_before(timer, &best.timers[0]):
                continue
            if not self.tree.is_cancelled(timer):
                best_offer(best, timer)

    cdef void _drop_from(self, Best* best, int64_t due_ms) noexcept nogil:
        cdef Py_ssize_t at
        cdef Py_ssize_t kept = 0
        for at in range(best.count):
            if best.timers[at].due_ms < due_ms:
                best.timers[kept] = best.timers[at]
                kept += 1
        best.count = kept    # no heap any more, unless all were kept

    def holds(self, places not None):
        """Look for some timers among all of the queue; the bounds of this list do not count.

        Args:
            places: due_ms, position and record_index of each, in this order.

        Returns:
            A byte for each: 1 if it is in the queue and not cancelled, else 0.
        """
        cdef Py_ssize_t count = len(places)
        cdef Timer* sought = <Timer*>malloc(max(count, 1) * sizeof(Timer))
        cdef bytearray found = bytearray(count)
        cdef uint8_t[::1] flags = found
        cdef Py_ssize_t at
        if sought == NULL:
            raise MemoryError("cannot allocate the places of timers")
        try:
            for at, (due_ms, position, record_index) in enumerate(places):
                sought[at] = Timer(due_ms, position, record_index, 0)
            if count:
                self._find_heaps()
                with nogil:
                    self._look_for(sought, count, &flags[0])
        finally:
            free(sought)
        return bytes(found)

    cdef void _look_for(
        self, const Timer* sought, Py_ssize_t count, uint8_t* found
    ) noexcept nogil:
        cdef TimerList* leaf
        cdef Chunk* chunk
        cdef Py_ssize_t i, at = 0
        cdef int64_t end
        for i in range(self.heap_count):
            self._mark(self.heaps[i].timers, self.heaps[i].count, sought, count, found)
        while at < count:
            leaf = self.tree.leaf_from(sought[at].due_ms)
            if leaf == NULL:
                break
            if self.tree.leaf_begin() <= sought[at].due_ms:
                chunk = leaf.head
                while chunk != NULL:
                    self._mark(
                        chunk_timers(chunk) + chunk.begin, chunk.end - chunk.begin,
                        sought + at, count - at, found + at,
                    )
                    chunk = chunk.next
                end = self.tree.leaf_end()
            else:
                end = self.tree.leaf_begin()
            while at < count and sought[at].due_ms < end:
                at += 1

    cdef void _mark(
        self, const Timer* timers, int64_t timer_count, const Timer* sought, Py_ssize_t count,
        uint8_t* found,
    ) noexcept nogil:
        """Note which of some timers in order are among others in no order."""
        cdef int64_t i
        cdef Py_ssize_t low, high, middle
        cdef const Timer* timer
        for i in range(timer_count):
            timer = &timers[i]
            if is_before(timer, sought) or is_before(&sought[count - 1], timer):
                continue
            low, high = 0, count - 1
            while low < high:
                middle = (low + high) >> 1
                if is_before(&sought[middle], timer):
                    low = middle + 1
                else:
                    high = middle
            # Not before each other: they are the same.
            if not is_before(timer, &sought[low]) and not self.tree.is_cancelled(timer):
                found[low] = 1

    def count(self, int64_t[::1] counts not None, int64_t step_ms, int64_t reached, int64_t budget):
        """Count timers by intervals of due time that begin at `from_ms`.

        Args:
            counts: the counts, to which this call adds; the last one takes all later timers too.
            step_ms: length of an interval, from 1 on.
            reached: what the call before returned; -1 for the first one.
            budget: entries to examine; a leaf is examined to its end.

        Returns:
            Where the next call goes on; -1 if all are counted.
        """
        cdef TimerList* leaf
        cdef Chunk* chunk
        cdef int64_t some
        cdef const TimerHeap* heap
        if step_ms < 1 or not counts.shape[0]:
            raise ValueError("there is no interval")
        self._find_heaps()
        with nogil:
            if reached < 0:
                reached = self.from_ms
                self.heap_index = self.heap_at = 0
            while budget > 0 and self.heap_index < self.heap_count:
                # Timers that leave a heap between two calls move others: few are counted wrong.
                heap = self.heaps[self.heap_index]
                some = max(min(heap.count - self.heap_at, budget), 0)
                self._count(counts, step_ms, heap.timers + self.heap_at, some)
                self.heap_at += some
                budget -= some + 1
                if self.heap_at >= heap.count:
                    self.heap_index += 1
                    self.heap_at = 0
            while budget > 0:
                leaf = self.tree.leaf_from(reached)
                if leaf == NULL or self.tree.leaf_begin() >= self.until_ms:
                    reached = -1
                    break
                chunk = leaf.head
                while chunk != NULL:
                    self._count(
                        counts, step_ms, chunk_timers(chunk) + chunk.begin, chunk.end - chunk.begin
                    )
                    chunk = chunk.next
                budget -= leaf.count
                reached = self.tree.leaf_end()
        return reached

    cdef void _count(
        self, int64_t[::1] counts, int64_t step_ms, const Timer* timers, int64_t count
    ) noexcept nogil:
        cdef int64_t i
        cdef int64_t at
        for i in range(count):
            if self._takes(&timers[i]) and not self.tree.is_cancelled(&timers[i]):
                at = min((timers[i].due_ms - self.from_ms) // step_ms, counts.shape[0] - 1)
                counts[at] += 1
