"""The due queue: all pending timers, ordered by due time.

    push --> DueTree --> pop_due
      |         |           |-- skip CancelledTimers
      '----> DueWheels <----'

Guarantees:

 - Timers are popped by due millisecond, then by arrival, which is the order of their ids. A timer
   is never popped before it is due.
 - A timer takes 24 bytes in packed arrays, with little overhead.
 - No call does more than a few thousand steps of work, however many timers are pending, so the
   event loop never stalls.

Not all timers need be in memory. Those that are due from `horizon_ms` on are counted and nothing
else: files have them (`appliance/store/runs/timer_load.py`), and also what became of them. Of the
others some may not be loaded yet, those due from `loaded_ms` on; none of these is popped.

A cancelled timer keeps its entry until the entry reaches the front; `CancelledTimers` records which
timers are cancelled. When these outnumber the pending timers, a sweep removes their entries
incrementally, a few with each call.

The caller ensures that a timer is pushed only once and that a timer it cancels is pending. A popped
timer is no longer pending; if it cannot be delivered, `unpop` puts it back.

Layer 0: no I/O, no clock. Used by the event loop thread.
"""

cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from _core.bytes.debug cimport SELF_CHECKS
from _core.timers.due_tree cimport DUE_MS_END, DueTree
from _core.timers.due_wheels cimport DueWheels
from _core.timers.held_timers cimport HeldTimers
from _core.timers.timer_heap cimport TimerHeap, heap_drop_first
from _core.timers.timer_list cimport Timer, TimerList, is_before, list_drop_first, list_first
from _core.timers.cancelled_timers cimport CancelledTimers

cdef enum:
    PARTITION_MAX = 1 << 28        # a higher handle is a bug; bounds the memory of the counters
    PARTITION_CAPACITY_MIN = 64
    CHECKED_MAX = 4096             # entries of the heap that a self-check visits
    SWEEP_COUNT_MIN = 1024         # fewer cancelled timers are not worth a sweep
    ENTRY_BYTES = 26               # what a timer takes in the tree, about
    SWEEP_CALL_CREDIT = 8          # entries per push or cancel: the sweep ends before they double
    SWEEP_POP_CREDIT = 2048        # entries per pop: a fraction of the pop's own work
    EVICT_HEAP_MAX = 1 << 14       # with more timers in the heap, none is evicted

# The source of the next timers.
cdef enum Source:
    OUT_OF_MEMORY = -2
    FROM_NOWHERE = -1
    FROM_HEAP = 0
    FROM_RUN = 1

assert sizeof(Timer) == 24


@cython.final
@cython.no_gc    # no cycle can go through it
cdef class DueQueue:
    """Pending timers by due time, then by arrival.

    Attributes:
        pending: number of pending timers.
        wheels: how many of them are due when.
        loaded_ms: timers that are due before this time are all in memory, epoch ms; the highest
            number if all timers are.
        horizon_ms: timers that are due from this time on are not in memory.
    """

    def __cinit__(self):
        self.loaded_ms = self.horizon_ms = INT64_MAX
        self.cancelled = CancelledTimers()
        self.tree = DueTree(self.cancelled)
        self.wheels = DueWheels(self.tree)
        self.held = {}

    def __dealloc__(self):
        free(self.partition_pending)

    # Counters

    cdef int _ensure_counter(self, int32_t partition) except -1 nogil:
        cdef int64_t capacity = self.partition_capacity
        cdef int64_t* grown
        assert 0 <= partition < PARTITION_MAX
        if partition >= capacity:
            capacity = max(partition + 1, capacity + (capacity >> 1), PARTITION_CAPACITY_MIN)
            grown = <int64_t*>realloc(self.partition_pending, capacity * sizeof(int64_t))
            if grown == NULL:
                raise MemoryError("cannot allocate the timer counts of partitions")
            memset(
                grown + self.partition_capacity, 0,
                (capacity - self.partition_capacity) * sizeof(int64_t),
            )
            self.partition_pending = grown
            self.partition_capacity = capacity
        return 0

    cdef void _count_pushed(self, const Timer* timer) noexcept nogil:
        """REQUIRES: _ensure_counter"""
        self.partition_pending[timer.partition] += 1
        self.pending += 1
        self.wheels.add(timer)

    cdef void _count_popped(self, const Timer* timer) noexcept nogil:
        self.partition_pending[timer.partition] -= 1
        self.pending -= 1
        self.wheels.take(timer)

    # Push

    cdef int push(self, const Timer* timer) except -1 nogil:
        assert timer.position >= 0
        if self.cancelled.is_forgotten(timer.partition):
            return 0
        self._ensure_counter(timer.partition)
        if timer.due_ms < self.horizon_ms or timer.due_ms >= DUE_MS_END:
            self.tree.push(timer)
        self._count_pushed(timer)
        if self.is_sweeping:
            self.sweep(SWEEP_CALL_CREDIT)
        return 0

    # Load

    cdef int restore_count(self, int32_t partition, int64_t count) except -1:
        self._ensure_counter(partition)
        self.partition_pending[partition] += count
        self.pending += count
        return 0

    cdef int load(self, const Timer* timer) except -1 nogil:
        if self.cancelled.claim(timer.position, timer.record_index, timer.partition):
            return 0
        self._ensure_counter(timer.partition)
        return self.tree.push(timer)

    def leave_out(self, int64_t until_ms):
        """Begin without a timer: those due before a time are loaded, epoch ms; INT64_MAX: all."""
        self.loaded_ms = 0
        self.horizon_ms = until_ms

    def begin_load(self, int64_t until_ms):
        """Move the horizon away: more timers will be loaded, and new ones are kept in memory."""
        assert until_ms > self.horizon_ms == self.loaded_ms
        self.horizon_ms = until_ms

    def note_loaded(self, int64_t loaded_ms):
        """Note that all timers due before a time are loaded, epoch ms; INT64_MAX: all are."""
        assert loaded_ms <= self.horizon_ms
        self.loaded_ms = loaded_ms

    def evict(self, int64_t floor_ms):
        """Take the timers that are due last out of memory: some thousands. Files have them.

        Args:
            floor_ms: not what is due before this time, epoch ms, nor before what was popped.

        Returns:
            Whether some were; never while others are loaded.
        """
        cdef TimerList* leaf
        cdef int64_t begin_ms
        if self.loaded_ms != self.horizon_ms or self.tree.heap.count > EVICT_HEAP_MAX:
            return False
        leaf = self.tree.last_leaf()
        if leaf == NULL:
            return False
        begin_ms = self.tree.leaf_begin()
        if begin_ms < floor_ms or begin_ms <= self.reached_ms:
            return False
        self.tree.drop_last_leaf(leaf)
        self.loaded_ms = self.horizon_ms = begin_ms
        return True

    @property
    def tree_bytes(self):
        """Memory of the timers, bytes; those included that are cancelled."""
        return self.tree.pool.allocated_bytes

    @property
    def is_loaded(self):
        """Whether all timers are in memory."""
        return self.loaded_ms == INT64_MAX

    # Pop

    cdef Py_ssize_t pop_due(self, int64_t now_ms, Timer* out, Py_ssize_t limit) except -1 nogil:
        cdef Py_ssize_t count = 0
        cdef Timer bound
        cdef int source
        now_ms = min(now_ms, self.loaded_ms - 1)
        self.reached_ms = max(self.reached_ms, now_ms)
        if self.is_sweeping:
            self.sweep(SWEEP_POP_CREDIT)
        self.tree.unready_ms = 0    # timers may have been pushed since the last call
        self.tree.run = NULL
        while count < limit:
            source = self._choose(now_ms, &bound)
            if source == FROM_HEAP:
                count += self._drain_heap(now_ms, &bound, out + count, limit - count)
            elif source == FROM_RUN:
                count += self._drain_run(&bound, out + count, limit - count)
                self.tree.drop_run_if_empty()
            elif source == OUT_OF_MEMORY and count == 0:
                raise MemoryError("cannot allocate memory for due timers")
            else:
                break
        if SELF_CHECKS:
            self._check(now_ms, out, count)
        return count

    cdef int _check(self, int64_t now_ms, const Timer* popped, Py_ssize_t count) except -1 nogil:
        """The counts agree, the heap is in order, and so is what was popped."""
        cdef const TimerHeap* heap = &self.tree.heap
        cdef int64_t total = 0
        cdef int64_t i
        for i in range(self.partition_capacity):
            assert self.partition_pending[i] >= 0
            total += self.partition_pending[i]
        assert total == self.pending
        assert self.wheels.is_lost or self.wheels.minutes.total <= total
        for i in range(1, min(heap.count, CHECKED_MAX)):
            assert not is_before(&heap.timers[i], &heap.timers[(i - 1) >> 2])
        for i in range(count):
            assert popped[i].due_ms <= now_ms
            assert i == 0 or not is_before(&popped[i], &popped[i - 1])
        return 0

    cdef int _choose(self, int64_t now_ms, Timer* bound) noexcept nogil:
        """Choose the source of the first timer. No other source has a timer before `bound`."""
        cdef TimerHeap* heap = &self.tree.heap
        cdef const Timer* from_run = NULL
        cdef const Timer* from_heap = NULL
        if self.tree.run == NULL and self.tree.unready_ms <= now_ms:
            if heap.count == 0 or heap.timers[0].due_ms >= self.tree.unready_ms:
                if not self.tree.ready(now_ms):
                    return OUT_OF_MEMORY
        if self.tree.run != NULL:
            from_run = list_first(self.tree.run)
        if heap.count and heap.timers[0].due_ms <= now_ms:
            from_heap = &heap.timers[0]
        # Timers in leaves are due at unready_ms or later, and no id precedes this one.
        bound[0] = Timer(self.tree.unready_ms, -1, -1, 0)
        if from_heap != NULL and (from_run == NULL or is_before(from_heap, from_run)):
            if from_run != NULL and is_before(from_run, bound):
                bound[0] = from_run[0]
            return FROM_HEAP
        if from_run == NULL:
            return FROM_NOWHERE
        if from_heap != NULL and is_before(from_heap, bound):
            bound[0] = from_heap[0]
        return FROM_RUN

    cdef Py_ssize_t _drain_heap(
        self, int64_t now_ms, const Timer* bound, Timer* out, Py_ssize_t limit
    ) noexcept nogil:
        cdef Py_ssize_t count = 0
        cdef Timer timer
        while self.tree.heap.count and count < limit:
            timer = self.tree.heap.timers[0]
            if timer.due_ms > now_ms or is_before(bound, &timer):
                break
            heap_drop_first(&self.tree.pool, &self.tree.heap)
            if self.cancelled.claim(timer.position, timer.record_index, timer.partition):
                continue
            self._count_popped(&timer)
            out[count] = timer
            count += 1
        return count

    cdef Py_ssize_t _drain_run(
        self, const Timer* bound, Timer* out, Py_ssize_t limit
    ) noexcept nogil:
        cdef TimerList* run = self.tree.run
        cdef Py_ssize_t count = 0
        cdef Timer timer
        while run.count and count < limit:
            timer = list_first(run)[0]
            if is_before(bound, &timer):
                break
            list_drop_first(&self.tree.pool, run)
            if self.cancelled.claim(timer.position, timer.record_index, timer.partition):
                continue
            self._count_popped(&timer)
            out[count] = timer
            count += 1
        return count

    cdef int unpop(self, const Timer* timers, Py_ssize_t count) except -1 nogil:
        cdef Py_ssize_t i
        # This comes first: it may raise MemoryError, and nothing has changed then.
        self.tree.put_back(timers, count)
        for i in range(count):
            if not self.cancelled.is_forgotten(timers[i].partition):
                self._count_pushed(&timers[i])
        return 0

    cdef bint keep(self, const Timer* timer) except -1 nogil:
        if self.cancelled.is_forgotten(timer.partition):
            return False
        self._count_pushed(timer)
        self.wheels.note_kept(timer)
        return True

    cdef bint take_kept(self, const Timer* timer) noexcept nogil:
        if self.cancelled.claim(timer.position, timer.record_index, timer.partition):
            return False
        self._count_popped(timer)
        return True

    cdef int64_t next_due_ms(self) noexcept nogil:
        cdef int64_t due_ms = self.tree.min_due_ms()
        # What is due later waits for those that are loaded; that ends with another look at this.
        return due_ms if self.pending and due_ms < self.loaded_ms else -1

    cdef bint may_have_due(self, int64_t now_ms) noexcept nogil:
        return self.pending > 0 and min(self.tree.min_due_ms(), self.loaded_ms) <= now_ms

    # Cancel

    cdef int cancel(
        self, int64_t position, int32_t record_index, int32_t partition, int64_t due_ms
    ) except -1 nogil:
        cdef Timer timer = Timer(due_ms, position, record_index, partition)
        assert 0 <= partition < self.partition_capacity
        assert self.partition_pending[partition] > 0    # the caller ensures that it is pending
        # One that is not in memory has nothing that refers to it, unless its due time is unknown.
        if due_ms < self.horizon_ms and not self.cancelled.cancel(position, record_index):
            return 0
        if due_ms < 0:
            self.wheels.lose()
        self._count_popped(&timer)
        self._consider_sweep()
        return 1

    cdef int forget_partition(self, int32_t partition) except -1 nogil:
        cdef int64_t count = 0
        if partition < self.partition_capacity:
            count = self.partition_pending[partition]
        self.cancelled.forget(partition, count)
        self.orphans_since += count
        if count:
            self.partition_pending[partition] = 0
            self.pending -= count
            self.wheels.lose()
        self._consider_sweep()
        return 0

    cdef void _consider_sweep(self) noexcept nogil:
        cdef int64_t cancelled = self.cancelled.cancelled_count + self.cancelled.orphan_count
        # Orphans need not be in memory. Of the cancelled ones most are, on a slave all.
        cdef int64_t half = self.tree.pool.allocated_bytes // (2 * ENTRY_BYTES)
        cdef bint is_needed = cancelled > self.pending or self.cancelled.cancelled_count > half
        if not self.is_sweeping and cancelled > SWEEP_COUNT_MIN and is_needed:
            self.is_sweeping = True
            self.sweep_credit = 0
            self.orphans_since = 0
            self.tree.begin_sweep()
        if self.is_sweeping:
            self.sweep(SWEEP_CALL_CREDIT)

    cdef bint sweep(self, int64_t budget) noexcept nogil:
        cdef int64_t examined
        # A step processes a whole chunk, usually more than the budget. The next calls repay the
        # excess.
        self.sweep_credit += budget
        while self.is_sweeping and self.sweep_credit > 0:
            examined = self.tree.sweep_step()
            if examined < 0:
                self.is_sweeping = False
                # Those that are not in memory are never claimed.
                self.cancelled.orphan_count = min(
                    self.cancelled.orphan_count, self.orphans_since
                )
            self.sweep_credit -= max(examined, 1)
        return self.is_sweeping

    # How many are due when

    def advance_wheels(self, int64_t now_ms, int64_t budget):
        """Extend what is counted by seconds, and count again what got lost.

        Args:
            now_ms: epoch ms.
            budget: timers to look at, about.

        Returns:
            Whether there is more to do.
        """
        cdef bint has_more
        with nogil:
            has_more = self.wheels.advance(now_ms, self.loaded_ms, budget)
        return has_more

    def tally(self, int64_t[::1] counts not None, int64_t begin_ms, int64_t step_ms):
        """Count timers by intervals of due time, without looking at them.

        Args:
            counts: one for each interval, to which this call adds.
            begin_ms: where the first interval begins, epoch ms, 0 or later.
            step_ms: length of an interval, from 1 on.

        Returns:
            How many timers are due before the first interval; -1 if the wheels do not know: the
            intervals are not of whole seconds or minutes, they are of seconds and reach beyond 48
            hours, or what was lost is not counted yet. Then `counts` is as it was.
        """
        cdef int64_t before
        if step_ms < 1 or begin_ms < 0 or not counts.shape[0]:
            raise ValueError("there is no interval")
        with nogil:
            before = self.wheels.tally(
                self.pending, begin_ms, step_ms, &counts[0], counts.shape[0]
            )
        return before

    # For metrics and the admin API

    @property
    def next_due(self):
        """A time before which no timer is due, epoch ms, kept timers excepted; -1 if empty.

        It may be that of a cancelled timer, which costs a wake-up; see `first_due`.
        """
        return self.next_due_ms()

    def has_due(self, int64_t now_ms):
        """Whether a timer is due by a time, epoch ms, or may be: one that is not loaded yet."""
        return self.may_have_due(now_ms)

    def first_due(self, int64_t entry_max):
        """The due time of the first pending timer, epoch ms, kept timers excepted; -1 if empty.

        Args:
            entry_max: entries to look at. If cancelled ones are that many, the result is a time
                before which no timer is due.
        """
        cdef int64_t due_ms = min(self.tree.first_pending_ms(entry_max), self.loaded_ms)
        return due_ms if self.pending and due_ms < INT64_MAX else -1

    @property
    def memory_bytes(self):
        """Memory of the timers, of their counts, and of the ids of cancelled ones, bytes."""
        return (
            self.tree.pool.allocated_bytes
            + self.wheels.minutes.allocated_bytes
            + self.wheels.seconds.allocated_bytes
            + self.cancelled.allocated_bytes
            + self.partition_capacity * <int64_t>sizeof(int64_t)
            + sum([(<HeldTimers>held).pool.allocated_bytes for held in self.held.values()])
        )

    @property
    def held_count(self):
        """Number of due timers that their topics hold back, some cancelled ones included."""
        return sum([(<HeldTimers>held).heap.count for held in self.held.values()])

    def held_of(self, topic):
        """Number of due timers that one topic holds back, some cancelled ones included."""
        cdef HeldTimers held = self.held.get(topic)
        return 0 if held is None else held.heap.count

    @property
    def cancelled_count(self):
        """Number of cancelled timers whose entries are still in memory."""
        return self.cancelled.cancelled_count + self.cancelled.orphan_count

    def pending_of(self, int32_t partition):
        """Number of pending timers of one partition handle."""
        if 0 <= partition < self.partition_capacity:
            return self.partition_pending[partition]
        return 0
