"""What has happened to timers and their ids since the last checkpoint: the rows of its next run.

The event loop adds a row for each timer pushed, each one settled and each change of an id, in the
order of the log. At a checkpoint it puts a new object in the place of this one, and a thread takes
this one: sorts it and asks for the rows as blocks of a run file. Timers that came and went within
one object cancel each other out, and of an id only the last change is left.

Memory is 40 bytes for a timer, 16 for a settled one, 48 for a change of an id; while it is being
sorted and written 24 more for each.

Layer 0: no I/O, no clock. Used by one thread at a time.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from _core.due_queue cimport Timer
from _core.id_index cimport STATE_BITS, NameSlot
from _core.layout cimport *
from _core.octets cimport store_u32, store_u64
from _core.run_rows cimport RowKey, is_key_before, is_key_equal

cdef enum:
    CHUNK_BITS = 12
    CHUNK_ROWS = 1 << CHUNK_BITS
    INSERTION_COUNT = 16          # fewer are sorted by insertion

# A settled row and its neighbours fit, whatever they are.
assert RUN_BLOCK_SIZE_MAX >= RUN_TIMER_SIZE + RUN_SETTLED_SIZE


# Rows

cdef inline uint8_t* row_at(const Rows* rows, int64_t i) noexcept nogil:
    """REQUIRES: i < count."""
    return rows.chunks[i >> CHUNK_BITS] + (i & (CHUNK_ROWS - 1)) * rows.row_size


cdef int add_chunk(Rows* rows) except -1:
    cdef int64_t capacity
    cdef uint8_t** grown
    cdef uint8_t* chunk
    if rows.chunk_count == rows.chunk_capacity:
        capacity = rows.chunk_capacity * 2 if rows.chunk_capacity else 16
        grown = <uint8_t**>realloc(rows.chunks, capacity * sizeof(uint8_t*))
        if grown == NULL:
            raise MemoryError("no memory for the rows of the next checkpoint")
        rows.chunks = grown
        rows.chunk_capacity = capacity
    chunk = <uint8_t*>malloc(CHUNK_ROWS * rows.row_size)
    if chunk == NULL:
        raise MemoryError("no memory for the rows of the next checkpoint")
    rows.chunks[rows.chunk_count] = chunk
    rows.chunk_count += 1
    return 0


cdef inline uint8_t* new_row(Rows* rows) except NULL:
    if rows.count == rows.chunk_count << CHUNK_BITS:
        add_chunk(rows)
    rows.count += 1
    return row_at(rows, rows.count - 1)


cdef int append_rows(Rows* rows, const Rows* newer) except -1:
    cdef int64_t i
    assert rows.row_size == newer.row_size
    for i in range(newer.count):
        memcpy(new_row(rows), row_at(newer, i), rows.row_size)
    return 0


cdef void free_rows(Rows* rows) noexcept nogil:
    cdef int64_t i
    for i in range(rows.chunk_count):
        free(rows.chunks[i])
    free(rows.chunks)
    rows.chunks = NULL
    rows.count = rows.chunk_count = rows.chunk_capacity = 0


# Sort: stable, so that of equal keys the last is the newest

cdef void insertion_sort(SortRef* refs, int64_t count) noexcept nogil:
    cdef int64_t i, at
    cdef SortRef ref
    for i in range(1, count):
        ref = refs[i]
        at = i
        while at > 0 and is_key_before(&ref.key, &refs[at - 1].key):
            refs[at] = refs[at - 1]
            at -= 1
        refs[at] = ref


cdef void merge_sort(SortRef* refs, int64_t count, SortRef* scratch) noexcept nogil:
    """`scratch` has room for half of them. What is in order already costs one comparison each."""
    cdef int64_t half = count // 2, left = 0, right = half, out = 0
    if count <= INSERTION_COUNT:
        insertion_sort(refs, count)
        return
    merge_sort(refs, half, scratch)
    merge_sort(refs + half, count - half, scratch)
    if not is_key_before(&refs[half].key, &refs[half - 1].key):
        return
    memcpy(scratch, refs, half * sizeof(SortRef))
    while left < half:
        if right < count and is_key_before(&refs[right].key, &scratch[left].key):
            refs[out] = refs[right]
            right += 1
        else:
            refs[out] = scratch[left]
            left += 1
        out += 1


cdef RowKey key_of(const Rows* rows, int64_t i) noexcept nogil:
    cdef const NameSlot* slot
    cdef const SettledTimer* settled
    cdef const PushedTimer* pushed
    if rows.row_size == sizeof(NameSlot):
        slot = <const NameSlot*>row_at(rows, i)
        return RowKey(slot.hash_high, slot.hash_low, slot.topic_id)
    if rows.row_size == sizeof(SettledTimer):
        settled = <const SettledTimer*>row_at(rows, i)
        return RowKey(<uint64_t>settled.phys_offset, <uint32_t>settled.record_index, 0)
    pushed = <const PushedTimer*>row_at(rows, i)
    return RowKey(<uint64_t>pushed.phys_offset, <uint32_t>pushed.record_index, 0)


assert sizeof(NameSlot) != sizeof(PushedTimer) != sizeof(SettledTimer) != sizeof(NameSlot)


cdef bint sort_rows(const Rows* rows, SortedRows* out) noexcept nogil:
    """False without memory."""
    cdef SortRef* scratch
    cdef int64_t i
    if rows.count == 0:
        return True
    out.refs = <SortRef*>malloc(rows.count * sizeof(SortRef))
    scratch = <SortRef*>malloc((rows.count // 2 + 1) * sizeof(SortRef))
    if out.refs == NULL or scratch == NULL:
        free(scratch)
        return False
    for i in range(rows.count):
        out.refs[i].key = key_of(rows, i)
        out.refs[i].at = <uint32_t>i
    merge_sort(out.refs, rows.count, scratch)
    free(scratch)
    out.count = rows.count
    return True


cdef inline void skip_repeats(SortedRows* rows) noexcept nogil:
    """Go on to the last of equal keys. No whole log has two rows of one timer."""
    while rows.next + 1 < rows.count and is_key_equal(
        &rows.refs[rows.next].key, &rows.refs[rows.next + 1].key
    ):
        rows.next += 1


@cython.final
@cython.no_gc    # it holds no objects
cdef class TimerDeltas:
    """Rows for the next timer run and the next id run.

    Attributes:
        is_sorted: `sort` was called; no row may be added any more.
    """

    def __cinit__(self):
        self.pushed.row_size = sizeof(PushedTimer)
        self.settled.row_size = sizeof(SettledTimer)
        self.named.row_size = sizeof(NameSlot)

    def __dealloc__(self):
        self._free_all()

    # On the loop, in the order of the log

    cdef int push(
        self, const Timer* timer, int32_t topic_id, int32_t partition, int level,
        int64_t level_offset
    ) except -1:
        assert not self.is_sorted
        (<PushedTimer*>new_row(&self.pushed))[0] = PushedTimer(
            timer.due_ms, timer.phys_offset, level_offset, timer.record_index, topic_id, partition,
            level,
        )
        return 0

    cdef int settle(self, int64_t phys_offset, int32_t record_index) except -1:
        assert not self.is_sorted
        (<SettledTimer*>new_row(&self.settled))[0] = SettledTimer(phys_offset, record_index)
        return 0

    cdef int name(self, const NameSlot* slot, int32_t partition) except -1:
        cdef NameSlot* row
        assert not self.is_sorted
        row = <NameSlot*>new_row(&self.named)
        row[0] = slot[0]
        row.partition_state = (
            <uint32_t>partition << STATE_BITS | (slot.partition_state & ((1 << STATE_BITS) - 1))
        )
        return 0

    def absorb(self, TimerDeltas newer not None):
        """Add the rows of deltas that were gathered next; rows may be added to these again.

        Nothing may be under way with either. O(rows of the newer ones).

        Args:
            newer: not sorted; of no use afterwards.

        Raises:
            MemoryError: some of the rows are here twice over; the process must stop.
        """
        assert not newer.is_sorted
        self._free_refs()
        self.is_sorted = False
        append_rows(&self.pushed, &newer.pushed)
        append_rows(&self.settled, &newer.settled)
        append_rows(&self.named, &newer.named)
        newer._free_all()

    # On a thread

    cdef bint _sort_all(self) noexcept nogil:
        return (
            sort_rows(&self.pushed, &self.sorted_pushed)
            and sort_rows(&self.settled, &self.sorted_settled)
            and sort_rows(&self.named, &self.sorted_named)
        )

    cdef void _free_refs(self) noexcept nogil:
        free(self.sorted_pushed.refs)
        free(self.sorted_settled.refs)
        free(self.sorted_named.refs)
        memset(&self.sorted_pushed, 0, sizeof(SortedRows))
        memset(&self.sorted_settled, 0, sizeof(SortedRows))
        memset(&self.sorted_named, 0, sizeof(SortedRows))

    cdef void _free_all(self) noexcept nogil:
        self._free_refs()
        free_rows(&self.pushed)
        free_rows(&self.settled)
        free_rows(&self.named)

    cdef Py_ssize_t _fill_timers(self, uint8_t* out, Py_ssize_t size) noexcept nogil:
        """Rows for at most `size` bytes; how many bytes. A timer that came and went is left out."""
        cdef SortedRows* pushed = &self.sorted_pushed
        cdef SortedRows* settled = &self.sorted_settled
        cdef const PushedTimer* timer
        cdef const SortRef* ref
        cdef Py_ssize_t used = 0
        while used + RUN_TIMER_SIZE <= size:
            skip_repeats(settled)
            skip_repeats(pushed)
            if settled.next < settled.count:
                ref = &settled.refs[settled.next]
                if pushed.next == pushed.count or is_key_before(
                    &ref.key, &pushed.refs[pushed.next].key
                ):
                    memset(out + used, 0, RUN_SETTLED_SIZE)
                    store_u64(out + used + RUN_SETTLED_AT_ACCEPT_POS, ref.key.high)
                    store_u32(out + used + RUN_SETTLED_AT_INDEX, ref.key.low)
                    out[used + RUN_SETTLED_AT_KIND] = RUN_ROW_SETTLED
                    used += RUN_SETTLED_SIZE
                    settled.next += 1
                    continue
                if is_key_equal(&ref.key, &pushed.refs[pushed.next].key):
                    settled.next += 1
                    pushed.next += 1
                    continue
            elif pushed.next == pushed.count:
                break
            timer = <const PushedTimer*>row_at(&self.pushed, pushed.refs[pushed.next].at)
            pushed.next += 1
            memset(out + used, 0, RUN_TIMER_SIZE)
            store_u64(out + used + RUN_TIMER_AT_ACCEPT_POS, timer.phys_offset)
            store_u32(out + used + RUN_TIMER_AT_INDEX, timer.record_index)
            out[used + RUN_TIMER_AT_KIND] = RUN_ROW_PENDING
            out[used + RUN_TIMER_AT_LEVEL] = <uint8_t>timer.level
            store_u64(out + used + RUN_TIMER_AT_DUE, timer.due_ms)
            store_u64(out + used + RUN_TIMER_AT_LEVEL_OFFSET, timer.level_offset)
            store_u32(out + used + RUN_TIMER_AT_TOPIC_ID, timer.topic_id)
            store_u32(out + used + RUN_TIMER_AT_PARTITION, timer.partition)
            store_u64(out + used + RUN_TIMER_AT_BODY_POS, timer.phys_offset)
            used += RUN_TIMER_SIZE
        return used

    cdef Py_ssize_t _fill_ids(self, uint8_t* out, Py_ssize_t size) noexcept nogil:
        cdef SortedRows* named = &self.sorted_named
        cdef const NameSlot* slot
        cdef const SortRef* ref
        cdef Py_ssize_t used = 0
        while used + RUN_ID_SIZE <= size and named.next < named.count:
            skip_repeats(named)    # the last change counts
            ref = &named.refs[named.next]
            named.next += 1
            slot = <const NameSlot*>row_at(&self.named, ref.at)
            memset(out + used, 0, RUN_ID_SIZE)
            store_u64(out + used + RUN_ID_AT_HASH_HIGH, slot.hash_high)
            store_u32(out + used + RUN_ID_AT_HASH_LOW, slot.hash_low)
            store_u32(out + used + RUN_ID_AT_TOPIC_ID, slot.topic_id)
            store_u64(out + used + RUN_ID_AT_ACCEPT_POS, slot.phys_offset)
            store_u64(out + used + RUN_ID_AT_DUE, slot.due_ms)
            store_u64(out + used + RUN_ID_AT_FORGET_TIME, slot.forget_at_ms)
            store_u32(out + used + RUN_ID_AT_INDEX, slot.record_index)
            store_u32(out + used + RUN_ID_AT_PARTITION, slot.partition_state >> STATE_BITS)
            out[used + RUN_ID_AT_STATE] = slot.partition_state & ((1 << STATE_BITS) - 1)
            used += RUN_ID_SIZE
        return used

    def sort(self):
        """Put the rows in the order of a run, and begin (again) with the first block of each kind.

        No row may be added from here on. O(n log n) without the GIL, O(n) for what is in order.

        Raises:
            MemoryError: nothing has changed; it may be tried again.
        """
        cdef bint has_memory
        if not self.is_sorted:
            with nogil:
                has_memory = self._sort_all()
                if not has_memory:
                    self._free_refs()
            if not has_memory:
                raise MemoryError("no memory to sort the rows of a checkpoint")
            self.is_sorted = True
        self.sorted_pushed.next = self.sorted_settled.next = self.sorted_named.next = 0

    def next_block(self, int kind):
        """The next rows of a run file of that kind, encoded; at most RUN_BLOCK_SIZE_MAX bytes.

        Args:
            kind: RUN_TIMERS or RUN_IDS.

        Returns:
            The rows; empty behind the last ones.
        """
        cdef uint8_t* out
        cdef Py_ssize_t used
        assert self.is_sorted
        out = <uint8_t*>malloc(RUN_BLOCK_SIZE_MAX)
        if out == NULL:
            raise MemoryError("no memory for a block of a run")
        with nogil:
            if kind == RUN_TIMERS:
                used = self._fill_timers(out, RUN_BLOCK_SIZE_MAX)
            else:
                used = self._fill_ids(out, RUN_BLOCK_SIZE_MAX)
        try:
            return PyBytes_FromStringAndSize(<const char*>out, used)
        finally:
            free(out)

    def release(self):
        """Give the memory back now, without the GIL; the object is of no use after it."""
        with nogil:
            self._free_all()

    def row_count(self, int kind):
        """Rows of that kind of run, before those are left out that cancel each other out."""
        if kind == RUN_TIMERS:
            return self.pushed.count + self.settled.count
        return self.named.count

    # What tests and benchmarks need of the functions above.

    def push_timer(
        self, int64_t due_ms, int64_t phys_offset, int32_t record_index, *, int32_t topic_id,
        int32_t partition, int level=0, int64_t level_offset=-1
    ):
        """A timer was accepted; see `DueQueue.push_timer`, but for the partition's index."""
        cdef Timer timer = Timer(due_ms, phys_offset, record_index, 0)
        self.push(&timer, topic_id, partition, level, level_offset)

    def settle_timer(self, int64_t phys_offset, int32_t record_index):
        """A timer was delivered or withdrawn."""
        self.settle(phys_offset, record_index)

    def name_timer(
        self, uint64_t hash_high, uint32_t hash_low, int32_t topic_id, *, int64_t phys_offset,
        int32_t partition=0, int64_t due_ms=0, int64_t forget_at_ms=0, int state=1
    ):
        """An id, given as its hash, names the first timer of that batch now."""
        cdef NameSlot slot = NameSlot(
            hash_high, hash_low, topic_id, phys_offset, due_ms, forget_at_ms, 0, state
        )
        self.name(&slot, partition)

    @property
    def memory_bytes(self):
        """Memory of the rows, bytes; without what sorting takes."""
        return (
            self.pushed.chunk_count * self.pushed.row_size
            + self.settled.chunk_count * self.settled.row_size
            + self.named.chunk_count * self.named.row_size
        ) << CHUNK_BITS
