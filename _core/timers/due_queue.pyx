"""The due queue: all pending timers, ordered by due time.

    push --+--> DelayLevels: one FIFO per fixed delay --+--> merge --> pop_due
           '--> DueTree: all other due times -----------'      |
                                                               '-- skip CancelledTimers

Guarantees:

 - Timers are popped by due millisecond, then by arrival, which is the order of their ids. A timer
   is never popped before it is due.
 - A timer takes 24 bytes in packed arrays, with little overhead.
 - No call does more than a few thousand steps of work, however many timers are pending, so the
   event loop never stalls.

A cancelled timer keeps its entry until the entry reaches the front; `CancelledTimers` records which
timers are cancelled. When these outnumber the pending timers, a sweep removes their entries
incrementally, a few with each call.

The caller ensures that a timer is pushed only once and that a timer it cancels is pending. A popped
timer is no longer pending; if it cannot be delivered, `unpop` puts it back.

Layer 0: no I/O, no clock. Used by the event loop thread.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

from _core.bytes.borrowed cimport Borrowed
from _core.timers.delay_levels cimport LEVEL_COUNT_MAX, DelayLevels, Level
from _core.timers.due_tree cimport DueTree
from _core.timers.timer_heap cimport TimerHeap, heap_drop_first
from _core.timers.timer_list cimport GAP, Timer, TimerList, is_before, list_drop_first, list_first
from _core.timers.cancelled_timers cimport CancelledTimers

cdef extern from *:
    int count_trailing_zeros "__builtin_ctzll"(unsigned long long) noexcept nogil

cdef enum:
    PARTITION_MAX = 1 << 28        # a higher handle is a bug; bounds the memory of the counters
    PARTITION_CAPACITY_MIN = 64
    POP_LIMIT_MAX = 1 << 24        # for the Python API, which allocates that many
    SWEEP_COUNT_MIN = 1024         # fewer cancelled timers are not worth a sweep
    SWEEP_CALL_CREDIT = 8          # entries per push or cancel: the sweep ends before they double
    SWEEP_POP_CREDIT = 2048        # entries per pop: a fraction of the pop's own work

# The source of the next timers; 1..LEVEL_COUNT_MAX is a level.
cdef enum Source:
    OUT_OF_MEMORY = -2
    FROM_NOWHERE = -1
    FROM_HEAP = 0
    FROM_RUN = LEVEL_COUNT_MAX + 1

assert sizeof(Timer) == 24


cdef inline bint take_if_before(const Timer* first, Timer* best, Timer* bound) noexcept nogil:
    """Whether `first` precedes all timers seen so far; best and bound are the first two of them."""
    if is_before(first, best):
        if is_before(best, bound):
            bound[0] = best[0]
        best[0] = first[0]
        return True
    if is_before(first, bound):
        bound[0] = first[0]
    return False


@cython.final
@cython.no_gc    # no cycle can go through it
cdef class DueQueue:
    """Pending timers by due time, then by arrival.

    Attributes:
        pending: number of pending timers.
        level_count: number of delay levels.
    """

    def __cinit__(self, int level_count):
        """Start empty.

        Args:
            level_count: number of delay levels, 0 to 64.

        Raises:
            ValueError: level_count is out of range.
        """
        self.cancelled = CancelledTimers()
        self.tree = DueTree(self.cancelled)
        self.levels = DelayLevels(level_count, self.tree, self.cancelled)
        self.level_count = level_count

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

    cdef void _count_pushed(self, int32_t partition) noexcept nogil:
        """REQUIRES: _ensure_counter"""
        self.partition_pending[partition] += 1
        self.pending += 1

    cdef void _count_popped(self, int32_t partition) noexcept nogil:
        self.partition_pending[partition] -= 1
        self.pending -= 1

    # Push

    cdef int push(self, const Timer* timer, int level, int64_t level_offset) except -1 nogil:
        assert 0 <= level <= self.level_count
        assert level_offset >= -1
        assert timer.position >= 0
        if self.cancelled.is_forgotten(timer.partition):
            if level > 0:
                self.levels.use_up(level, level_offset + 1)
            return 0
        self._ensure_counter(timer.partition)
        if level == 0 or level_offset < 0 or not self.levels.push(level, timer, level_offset):
            self.tree.push(timer)
        self._count_pushed(timer.partition)
        if self.is_sweeping:
            self.sweep(SWEEP_CALL_CREDIT)
        return 0

    cdef int64_t level_offset_for(self, int level, int64_t due_ms) noexcept nogil:
        cdef Level* fifo = &self.levels.levels[level]
        return -1 if due_ms < fifo.last.due_ms else fifo.next_offset

    cdef int restore_level(self, int level, int64_t next_offset) except -1:
        assert 1 <= level <= self.level_count
        self.levels.use_up(level, next_offset)
        return 0

    # Pop

    cdef Py_ssize_t pop_due(self, int64_t now_ms, Timer* out, Py_ssize_t limit) except -1 nogil:
        cdef Py_ssize_t count = 0
        cdef Timer bound
        cdef int source
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
            elif source > 0:
                count += self._drain_level(source, now_ms, &bound, out + count, limit - count)
            elif source == OUT_OF_MEMORY and count == 0:
                raise MemoryError("cannot allocate memory for due timers")
            else:
                break
        return count

    cdef int _choose(self, int64_t now_ms, Timer* bound) noexcept nogil:
        """Choose the source of the first timer. No other source has a timer before `bound`."""
        cdef TimerHeap* heap = &self.tree.heap
        cdef Timer best = Timer(INT64_MAX, INT64_MAX, 0, 0)
        cdef int source = FROM_NOWHERE
        cdef uint64_t levels = self.levels.occupied
        cdef TimerList* timers
        cdef int level
        if self.tree.run == NULL and self.tree.unready_ms <= now_ms:
            if heap.count == 0 or heap.timers[0].due_ms >= self.tree.unready_ms:
                if not self.tree.ready(now_ms):
                    return OUT_OF_MEMORY
        # Timers in leaves are due at unready_ms or later, and no id precedes this one.
        bound[0] = Timer(self.tree.unready_ms, -1, -1, 0)
        if self.tree.run != NULL and take_if_before(list_first(self.tree.run), &best, bound):
            source = FROM_RUN
        if heap.count and heap.timers[0].due_ms <= now_ms:
            if take_if_before(&heap.timers[0], &best, bound):
                source = FROM_HEAP
        while levels:
            level = count_trailing_zeros(levels) + 1
            levels &= levels - 1
            timers = &self.levels.levels[level].timers
            if timers.min_due_ms <= now_ms:
                if take_if_before(list_first(timers), &best, bound):
                    source = level
        return source

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
            self._count_popped(timer.partition)
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
            self._count_popped(timer.partition)
            out[count] = timer
            count += 1
        return count

    cdef Py_ssize_t _drain_level(
        self, int level, int64_t now_ms, const Timer* bound, Timer* out, Py_ssize_t limit
    ) noexcept nogil:
        cdef TimerList* timers = &self.levels.levels[level].timers
        cdef Py_ssize_t count = 0
        cdef Timer timer
        while timers.count and count < limit:
            timer = list_first(timers)[0]
            if timer.partition != GAP and (timer.due_ms > now_ms or is_before(bound, &timer)):
                break
            self.levels.drop_first(level)
            if timer.partition == GAP or self.cancelled.claim(
                timer.position, timer.record_index, timer.partition
            ):
                continue
            self._count_popped(timer.partition)
            out[count] = timer
            count += 1
        self.levels.advance(level)
        return count

    cdef int unpop(self, const Timer* timers, Py_ssize_t count) except -1 nogil:
        cdef Py_ssize_t i
        # This comes first: it may raise MemoryError, and nothing has changed then.
        self.tree.put_back(timers, count)
        for i in range(count):
            if not self.cancelled.is_forgotten(timers[i].partition):
                self._count_pushed(timers[i].partition)
        return 0

    cdef bint keep(self, const Timer* timer) except -1 nogil:
        if self.cancelled.is_forgotten(timer.partition):
            return False
        self._count_pushed(timer.partition)
        return True

    cdef bint take_kept(self, const Timer* timer) noexcept nogil:
        if self.cancelled.claim(timer.position, timer.record_index, timer.partition):
            return False
        self._count_popped(timer.partition)
        return True

    cdef int64_t next_due_ms(self) noexcept nogil:
        cdef int64_t due_ms = min(self.tree.min_due_ms(), self.levels.min_due_ms())
        return due_ms if self.pending and due_ms < INT64_MAX else -1

    # Cancel

    cdef int cancel(
        self, int64_t position, int32_t record_index, int32_t partition
    ) except -1 nogil:
        assert 0 <= partition < self.partition_capacity
        assert self.partition_pending[partition] > 0    # the caller ensures that it is pending
        if not self.cancelled.cancel(position, record_index):
            return 0
        self._count_popped(partition)
        self._consider_sweep()
        return 1

    cdef int forget_partition(self, int32_t partition) except -1 nogil:
        cdef int64_t count = 0
        if partition < self.partition_capacity:
            count = self.partition_pending[partition]
        self.cancelled.forget(partition, count)
        if count:
            self.partition_pending[partition] = 0
            self.pending -= count
        self._consider_sweep()
        return 0

    cdef void _consider_sweep(self) noexcept nogil:
        cdef int64_t cancelled = self.cancelled.cancelled_count + self.cancelled.orphan_count
        if not self.is_sweeping and cancelled > SWEEP_COUNT_MIN and cancelled > self.pending:
            self.is_sweeping = True
            self.is_sweeping_levels = True
            self.sweep_credit = 0
            self.levels.begin_sweep()
        if self.is_sweeping:
            self.sweep(SWEEP_CALL_CREDIT)

    cdef bint sweep(self, int64_t budget) noexcept nogil:
        cdef int64_t examined
        # A step processes a whole chunk, usually more than the budget. The next calls repay the
        # excess.
        self.sweep_credit += budget
        while self.is_sweeping and self.sweep_credit > 0:
            if self.is_sweeping_levels:
                examined = self.levels.sweep_step()
                if examined < 0:
                    self.is_sweeping_levels = False
                    self.tree.begin_sweep()
            else:
                examined = self.tree.sweep_step()
                if examined < 0:
                    self.is_sweeping = False
            self.sweep_credit -= max(examined, 1)
        return self.is_sweeping

    # For metrics and the admin API

    @property
    def next_due(self):
        """A time before which no timer is due, epoch ms, kept timers excepted; -1 if empty."""
        return self.next_due_ms()

    @property
    def memory_bytes(self):
        """Memory of the timers and of the ids of cancelled ones, bytes."""
        return (
            self.tree.pool.allocated_bytes
            + self.cancelled.allocated_bytes
            + self.partition_capacity * <int64_t>sizeof(int64_t)
            + (self.level_count + 1) * <int64_t>sizeof(Level)
        )

    @property
    def cancelled_count(self):
        """Number of cancelled timers whose entries are still in memory."""
        return self.cancelled.cancelled_count + self.cancelled.orphan_count

    def pending_of(self, int32_t partition):
        """Number of pending timers of one partition handle."""
        if 0 <= partition < self.partition_capacity:
            return self.partition_pending[partition]
        return 0

    cdef int _check_level(self, int level) except -1:
        if not 1 <= level <= self.level_count:
            raise IndexError(f"level {level} is out of range: use 1 to {self.level_count}")
        return 0

    def level_head_offset(self, int level):
        """Level offset of the first timer of a level that is neither popped nor cancelled.

        It is the next offset if there is none. Timers of the level that were pushed out of order or
        put back are not considered.

        Args:
            level: 1 to level_count.

        Raises:
            IndexError: no such level.
        """
        self._check_level(level)
        self.levels.trim(level)
        return self.levels.levels[level].head_offset

    def level_next_offset(self, int level):
        """Level offset of the next timer of a level.

        Args:
            level: 1 to level_count.

        Raises:
            IndexError: no such level.
        """
        self._check_level(level)
        return self.levels.levels[level].next_offset

    # The same functions for tests and benchmarks

    def level_offset(self, int level, int64_t due_ms):
        """Level offset for a timer; -1 if it is due before the last one pushed to the level."""
        self._check_level(level)
        return self.level_offset_for(level, due_ms)

    def restore_level_offset(self, int level, int64_t next_offset):
        """Continue a level's offsets at `next_offset`, unless they are higher already."""
        self._check_level(level)
        self.restore_level(level, next_offset)

    def push_timer(
        self,
        int64_t due_ms,
        int64_t position,
        int32_t record_index,
        int32_t partition,
        int level=0,
        int64_t level_offset=-1,
    ):
        """Add a pending timer.

        Args:
            due_ms: epoch ms, 0 or later.
            position: first half of its id, 0 or more.
            record_index: second half.
            partition: partition handle, 0 or more.
            level: 1 to level_count, or 0 for any due time.
            level_offset: the result of level_offset(), or -1.

        Raises:
            ValueError: due_ms is outside 1970 to 10889.
            MemoryError: nothing has changed.
        """
        cdef Timer timer = Timer(due_ms, position, record_index, partition)
        self.push(&timer, level, level_offset)

    def pop(self, int64_t now_ms, Py_ssize_t limit):
        """Pop up to `limit` timers that are due, as (due, position, index, partition)."""
        cdef const Timer* timers
        cdef Py_ssize_t i
        packed = self.pop_packed(now_ms, limit)
        timers = <const Timer*><const char*>packed
        return [
            (timers[i].due_ms, timers[i].position, timers[i].record_index, timers[i].partition)
            for i in range(len(packed) // <Py_ssize_t>sizeof(Timer))
        ]

    def unpop_timers(self, timers):
        """Put popped timers back, given as `pop` returns them."""
        cdef Timer* packed
        cdef Py_ssize_t i
        timers = list(timers)
        packed = <Timer*>malloc(len(timers) * sizeof(Timer) + 1)
        if packed == NULL:
            raise MemoryError
        try:
            for i in range(len(timers)):
                due_ms, position, record_index, partition = timers[i]
                packed[i] = Timer(due_ms, position, record_index, partition)
            self.unpop(packed, len(timers))
        finally:
            free(packed)

    def cancel_timer(self, int64_t position, int32_t record_index, int32_t partition):
        """Cancel a pending timer; False if it was cancelled already."""
        return self.cancel(position, record_index, partition) == 1

    def forget(self, int32_t partition):
        """Cancel all timers of a partition, including those pushed later."""
        self.forget_partition(partition)

    def sweep_some(self, int64_t budget):
        """Sweep about `budget` entries if a sweep is in progress; return whether work is left."""
        return self.sweep(budget)

    def push_packed(self, timers):
        """Add timers from an array of struct Timer, len % 24 == 0, in native byte order."""
        cdef Borrowed octets = Borrowed(timers)
        cdef const Timer* timer = <const Timer*>octets.p
        cdef Py_ssize_t i
        assert octets.size % sizeof(Timer) == 0
        with nogil:
            for i in range(octets.size // <Py_ssize_t>sizeof(Timer)):
                self.push(&timer[i], 0, -1)

    def cancel_packed(self, timers):
        """Cancel the timers in an array of struct Timer, len % 24 == 0."""
        cdef Borrowed octets = Borrowed(timers)
        cdef const Timer* timer = <const Timer*>octets.p
        cdef Py_ssize_t i
        assert octets.size % sizeof(Timer) == 0
        with nogil:
            for i in range(octets.size // <Py_ssize_t>sizeof(Timer)):
                self.cancel(timer[i].position, timer[i].record_index, timer[i].partition)

    def pop_packed(self, int64_t now_ms, Py_ssize_t limit):
        """Pop up to `limit` timers that are due, as an array of struct Timer."""
        cdef Timer* out
        cdef Py_ssize_t count
        if not 0 <= limit <= POP_LIMIT_MAX:
            raise ValueError(f"limit {limit} is out of range: use 0 to {POP_LIMIT_MAX}")
        out = <Timer*>malloc(limit * sizeof(Timer) + 1)
        if out == NULL:
            raise MemoryError
        try:
            with nogil:
                count = self.pop_due(now_ms, out, limit)
            return PyBytes_FromStringAndSize(<const char*>out, count * sizeof(Timer))
        finally:
            free(out)
