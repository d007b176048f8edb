"""The memtable: changes of timers and ids since the last checkpoint, which become the next runs.

    event loop: push, complete, name -> [checkpoint swaps memtables] -> thread: sort -> next_block

The event loop adds a row for each timer pushed or carried, each timer completed and each change of
an id, in the order of the log. At a checkpoint it replaces the memtable by a new one, and a thread
sorts the old one and writes its rows as blocks of a run file. A timer that was pushed and completed
within one memtable yields no row, and an id only its last change.

A row takes 56 bytes for a timer, 24 for a completed timer and 48 for a change of an id. While it is
sorted and written it takes 32 more, and a row of a timer twice as many: it is sorted by arrival,
and by due time for the TimerLog.

Layer 0: no I/O, no clock. Used by one thread at a time.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from _core.timers.due_queue cimport Timer
from _core.timers.id_index cimport DELIVERED, STATE_BITS, NameSlot, due_ms_of, level_of
from _core.bytes.layout cimport *
from _core.bytes.octets cimport load_i32, load_i64, store_u32, store_u64
from _core.timers.run_rows cimport RowKey, is_key_before, is_key_equal, size_of_completed

cdef enum:
    CHUNK_BITS = 12
    CHUNK_ROWS = 1 << CHUNK_BITS
    INSERTION_COUNT = 16          # up to this count, insertion sort is used
    RADIX_BITS = 11
    RADIX = 1 << RADIX_BITS       # counters that stay in the processor's first cache

# A block has room for a row of each kind.
assert RUN_BLOCK_SIZE_MAX >= RUN_TIMER_SIZE + RUN_COMPLETED_DUE_SIZE


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
            raise MemoryError("cannot allocate rows for the next checkpoint")
        rows.chunks = grown
        rows.chunk_capacity = capacity
    chunk = <uint8_t*>malloc(CHUNK_ROWS * rows.row_size)
    if chunk == NULL:
        raise MemoryError("cannot allocate rows for the next checkpoint")
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


# Sort: stable, so that the last of equal keys is the newest

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
    """REQUIRES: `scratch` has room for half of `refs`. O(count) if `refs` is in order already."""
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
    cdef const CompletedTimer* completed
    cdef const PushedTimer* pushed
    if rows.kind == ROWS_NAMED:
        slot = <const NameSlot*>row_at(rows, i)
        return RowKey(0, slot.hash_high, slot.hash_low, slot.topic_id)
    if rows.kind == ROWS_COMPLETED:
        completed = <const CompletedTimer*>row_at(rows, i)
        return RowKey(0, <uint64_t>completed.position, <uint32_t>completed.record_index, 0)
    pushed = <const PushedTimer*>row_at(rows, i)
    return RowKey(0, <uint64_t>pushed.position, <uint32_t>pushed.record_index, 0)


cdef inline int64_t due_of(const Rows* rows, int64_t i) noexcept nogil:
    """REQUIRES: rows of pushed or completed timers, whose first field is the due time."""
    return (<const int64_t*>row_at(rows, i))[0]


cdef bint sort_rows(const Rows* rows, SortedRows* out) noexcept nogil:
    """Returns False if there is no memory."""
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


cdef void radix_pass(
    const DueRef* refs, DueRef* out, int64_t count, int64_t first_ms, int shift
) noexcept nogil:
    """Sort by some bits of the due time; equal ones keep their order."""
    cdef int64_t ends[RADIX]
    cdef int64_t i, sum = 0, digit
    memset(ends, 0, sizeof(ends))
    for i in range(count):
        ends[((refs[i].due_ms - first_ms) >> shift) & (RADIX - 1)] += 1
    for i in range(RADIX):
        sum += ends[i]
        ends[i] = sum - ends[i]
    for i in range(count):
        digit = ((refs[i].due_ms - first_ms) >> shift) & (RADIX - 1)
        out[ends[digit]] = refs[i]
        ends[digit] += 1


cdef bint sort_by_due(const Rows* rows, const SortedRows* by_id, SortedRows* out) noexcept nogil:
    """Sort rows that are sorted by id by due time, then by id. False if there is no memory.

    A radix sort: the due times are in no order, and a merge sort would compare each of a million
    rows twenty times.
    """
    cdef int64_t count = by_id.count, first_ms = INT64_MAX, last_ms = INT64_MIN, i
    cdef DueRef* refs
    cdef DueRef* other
    cdef int shift = 0
    if count == 0:
        return True
    refs = <DueRef*>malloc(count * sizeof(DueRef))
    other = <DueRef*>malloc(count * sizeof(DueRef))
    out.refs = <SortRef*>malloc(count * sizeof(SortRef))
    if refs == NULL or other == NULL or out.refs == NULL:
        free(refs)
        free(other)
        return False
    for i in range(count):
        refs[i] = DueRef(due_of(rows, by_id.refs[i].at), <uint32_t>i)
        first_ms = min(first_ms, refs[i].due_ms)
        last_ms = max(last_ms, refs[i].due_ms)
    while shift < 64 and (last_ms - first_ms) >> shift:
        radix_pass(refs, other, count, first_ms, shift)
        refs, other = other, refs
        shift += RADIX_BITS
    for i in range(count):
        out.refs[i] = by_id.refs[refs[i].at]
        out.refs[i].key.due_ms = refs[i].due_ms
    free(refs)
    free(other)
    out.count = count
    return True


cdef inline void skip_repeats(SortedRows* rows) noexcept nogil:
    """Skip to the last of equal keys: a timer has a row for each frame that held it."""
    while rows.next + 1 < rows.count and is_key_equal(
        &rows.refs[rows.next].key, &rows.refs[rows.next + 1].key
    ):
        rows.next += 1


cdef void store_completed(int kind, uint8_t* out, const RowKey* key) noexcept nogil:
    memset(out, 0, size_of_completed(kind))
    store_u64(out + RUN_COMPLETED_AT_ACCEPT_POS, key.high)
    store_u32(out + RUN_COMPLETED_AT_INDEX, key.low)
    out[RUN_COMPLETED_AT_KIND] = RUN_ROW_COMPLETED
    if kind == RUN_DUE:
        out[RUN_COMPLETED_AT_KIND] = RUN_ROW_COMPLETED_DUE
        store_u64(out + RUN_COMPLETED_DUE_AT_DUE, <uint64_t>key.due_ms)


cdef void store_pending(uint8_t* out, const PushedTimer* timer) noexcept nogil:
    memset(out, 0, RUN_TIMER_SIZE)
    store_u64(out + RUN_TIMER_AT_ACCEPT_POS, timer.position)
    store_u32(out + RUN_TIMER_AT_INDEX, timer.record_index)
    out[RUN_TIMER_AT_KIND] = RUN_ROW_PENDING
    out[RUN_TIMER_AT_LEVEL] = <uint8_t>timer.level
    store_u64(out + RUN_TIMER_AT_DUE, timer.due_ms)
    store_u64(out + RUN_TIMER_AT_LEVEL_OFFSET, timer.level_offset)
    store_u32(out + RUN_TIMER_AT_TOPIC_ID, timer.topic_id)
    store_u32(out + RUN_TIMER_AT_PARTITION, timer.partition)
    store_u64(out + RUN_TIMER_AT_BODY_POS, timer.body_pos)


@cython.final
@cython.no_gc    # it holds no objects
cdef class TimerMemtable:
    """Rows for the next runs of timers, of the TimerLog and of ids.

    Attributes:
        is_sorted: whether `sort` was called. No row may be added then.
        older_bytes: memory of older memtables that no run has yet either; its owner says so.
        unplaced: number of completed timers whose due times are not known: a frame of an older
            latermq completed them. With any, it has no rows for the TimerLog.
    """

    def __cinit__(self):
        self.pushed.row_size = sizeof(PushedTimer)
        self.pushed.kind = ROWS_PUSHED
        self.completed.row_size = sizeof(CompletedTimer)
        self.completed.kind = ROWS_COMPLETED
        self.named.row_size = sizeof(NameSlot)
        self.named.kind = ROWS_NAMED

    def __dealloc__(self):
        self._free_all()

    # On the event loop, in the order of the log

    cdef int push(
        self, const Timer* timer, int32_t topic_id, int32_t partition, int level,
        int64_t level_offset, int64_t body_pos
    ) except -1:
        assert not self.is_sorted
        (<PushedTimer*>new_row(&self.pushed))[0] = PushedTimer(
            timer.due_ms, timer.position, level_offset, body_pos, timer.record_index, topic_id,
            partition, level,
        )
        return 0

    cdef int push_carried(
        self, const uint8_t* entry, int32_t topic_id, int32_t partition, int64_t body_pos
    ) except -1:
        cdef Timer timer
        timer.due_ms = load_i64(entry + TIMER_AT_DUE)
        timer.position = load_i64(entry + TIMER_AT_ACCEPT_POS)
        timer.record_index = load_i32(entry + TIMER_AT_INDEX)
        return self.push(
            &timer, topic_id, partition, entry[TIMER_AT_LEVEL],
            load_i64(entry + TIMER_AT_LEVEL_OFFSET), body_pos,
        )

    cdef int complete(self, int64_t position, int32_t record_index, int64_t due_ms) except -1:
        assert not self.is_sorted
        (<CompletedTimer*>new_row(&self.completed))[0] = CompletedTimer(
            due_ms, position, record_index
        )
        self.unplaced += due_ms < 0
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

    def add_timers(self, TimerMemtable newer not None):
        """Append a copy of the rows of timers of the next memtable, which stays as it is.

        No thread may be using either of them. O(rows of `newer`).

        Args:
            newer: a memtable that is not released.

        Raises:
            MemoryError: this memtable is incomplete; discard it.
        """
        assert not self.is_sorted
        append_rows(&self.pushed, &newer.pushed)
        append_rows(&self.completed, &newer.completed)
        self.unplaced += newer.unplaced

    def add_ids(self, TimerMemtable newer not None):
        """Append a copy of the rows of ids of the next memtable; otherwise as `add_timers`."""
        assert not self.is_sorted
        append_rows(&self.named, &newer.named)

    def add_due(self, TimerMemtable newer not None, int64_t from_ms, int64_t until_ms):
        """As `add_timers`, of timers that are due in an interval; epoch ms.

        What completes timers whose due times are not known is left out: their ids are noted.
        """
        cdef int64_t i
        assert not self.is_sorted
        for i in range(newer.pushed.count):
            if from_ms <= due_of(&newer.pushed, i) < until_ms:
                memcpy(new_row(&self.pushed), row_at(&newer.pushed, i), self.pushed.row_size)
        for i in range(newer.completed.count):
            if from_ms <= due_of(&newer.completed, i) < until_ms:
                memcpy(
                    new_row(&self.completed), row_at(&newer.completed, i),
                    self.completed.row_size,
                )

    def absorb(self, TimerMemtable newer not None):
        """Append the rows of the next memtable. Rows may be added to this memtable again.

        No thread may be using either of them. O(rows of `newer`).

        Args:
            newer: the memtable that followed this one, not sorted. It is empty afterwards.

        Raises:
            MemoryError: some rows of `newer` are in both memtables; the process must stop.
        """
        assert not newer.is_sorted
        self._free_refs()
        self.is_sorted = False
        append_rows(&self.pushed, &newer.pushed)
        append_rows(&self.completed, &newer.completed)
        append_rows(&self.named, &newer.named)
        self.unplaced += newer.unplaced
        newer._free_all()

    def add_rows(self, bytes rows not None):
        """Add pending timers of a whole merge: those of a TimerLog that is written anew.

        Args:
            rows: as `RunMerge.take` returns them for RUN_TIMERS.

        Raises:
            MemoryError: some rows were added; discard this memtable.
        """
        cdef const uint8_t* row = <const uint8_t*><const char*>rows
        cdef const uint8_t* end = row + len(rows)
        assert not self.is_sorted
        while row < end:
            (<PushedTimer*>new_row(&self.pushed))[0] = PushedTimer(
                load_i64(row + RUN_TIMER_AT_DUE), load_i64(row + RUN_TIMER_AT_ACCEPT_POS),
                load_i64(row + RUN_TIMER_AT_LEVEL_OFFSET), load_i64(row + RUN_TIMER_AT_BODY_POS),
                load_i32(row + RUN_TIMER_AT_INDEX), load_i32(row + RUN_TIMER_AT_TOPIC_ID),
                load_i32(row + RUN_TIMER_AT_PARTITION), row[RUN_TIMER_AT_LEVEL],
            )
            row += RUN_TIMER_SIZE

    # On a thread

    cdef bint _sort_all(self) noexcept nogil:
        return (
            sort_rows(&self.pushed, &self.sorted_pushed)
            and sort_rows(&self.completed, &self.sorted_completed)
            and sort_rows(&self.named, &self.sorted_named)
            and sort_by_due(&self.pushed, &self.sorted_pushed, &self.due_pushed)
            and sort_by_due(&self.completed, &self.sorted_completed, &self.due_completed)
        )

    cdef void _free_refs(self) noexcept nogil:
        free(self.sorted_pushed.refs)
        free(self.sorted_completed.refs)
        free(self.sorted_named.refs)
        free(self.due_pushed.refs)
        free(self.due_completed.refs)
        memset(&self.sorted_pushed, 0, sizeof(SortedRows))
        memset(&self.sorted_completed, 0, sizeof(SortedRows))
        memset(&self.sorted_named, 0, sizeof(SortedRows))
        memset(&self.due_pushed, 0, sizeof(SortedRows))
        memset(&self.due_completed, 0, sizeof(SortedRows))

    cdef void _free_all(self) noexcept nogil:
        self._free_refs()
        free_rows(&self.pushed)
        free_rows(&self.completed)
        free_rows(&self.named)

    cdef bint _is_new(self, const SortRef* ref) noexcept nogil:
        """Whether a row of `pushed` is that of the accept frame: no older run has the timer."""
        cdef const PushedTimer* timer = <const PushedTimer*>row_at(&self.pushed, ref.at)
        return timer.body_pos == timer.position

    cdef Py_ssize_t _fill_timers(
        self, int kind, SortedRows* pushed, SortedRows* completed, uint8_t* out, Py_ssize_t size
    ) noexcept nogil:
        """Write rows of at most `size` bytes, without timers that were accepted and completed.

        A timer that was carried and completed may have an older row in a run: its completion stays.
        Returns the number of bytes.
        """
        cdef int completed_size = size_of_completed(kind)
        cdef const PushedTimer* timer
        cdef const SortRef* ref
        cdef Py_ssize_t used = 0
        cdef bint is_new, is_equal, has_pushed
        while used + RUN_TIMER_SIZE <= size:
            skip_repeats(completed)
            if completed.next < completed.count:
                ref = &completed.refs[completed.next]
                has_pushed = pushed.next < pushed.count
                is_equal = has_pushed and is_key_equal(&ref.key, &pushed.refs[pushed.next].key)
                if is_equal or not has_pushed or is_key_before(
                    &ref.key, &pushed.refs[pushed.next].key
                ):
                    is_new = False
                    if is_equal:
                        # Its first row says whether a run before this memtable has it.
                        is_new = self._is_new(&pushed.refs[pushed.next])
                        skip_repeats(pushed)
                    if not is_new:
                        store_completed(kind, out + used, &ref.key)
                        used += completed_size
                    completed.next += 1
                    pushed.next += is_equal
                    continue
            elif pushed.next == pushed.count:
                break
            skip_repeats(pushed)
            timer = <const PushedTimer*>row_at(&self.pushed, pushed.refs[pushed.next].at)
            pushed.next += 1
            store_pending(out + used, timer)
            used += RUN_TIMER_SIZE
        return used

    cdef Py_ssize_t _fill_ids(self, uint8_t* out, Py_ssize_t size) noexcept nogil:
        cdef SortedRows* named = &self.sorted_named
        cdef const NameSlot* slot
        cdef const SortRef* ref
        cdef Py_ssize_t used = 0
        cdef uint32_t state
        while used + RUN_ID_SIZE <= size and named.next < named.count:
            skip_repeats(named)    # the last change counts
            ref = &named.refs[named.next]
            named.next += 1
            slot = <const NameSlot*>row_at(&self.named, ref.at)
            memset(out + used, 0, RUN_ID_SIZE)
            store_u64(out + used + RUN_ID_AT_HASH_HIGH, slot.hash_high)
            store_u32(out + used + RUN_ID_AT_HASH_LOW, slot.hash_low)
            store_u32(out + used + RUN_ID_AT_TOPIC_ID, slot.topic_id)
            store_u64(out + used + RUN_ID_AT_ACCEPT_POS, max(slot.position, 0))
            store_u64(out + used + RUN_ID_AT_DUE, due_ms_of(slot))
            store_u64(out + used + RUN_ID_AT_COMPLETED_POS, slot.completed_pos)
            store_u32(out + used + RUN_ID_AT_INDEX, slot.record_index)
            store_u32(out + used + RUN_ID_AT_PARTITION, slot.partition_state >> STATE_BITS)
            state = slot.partition_state & ((1 << STATE_BITS) - 1)
            out[used + RUN_ID_AT_STATE] = <uint8_t>state
            out[used + RUN_ID_AT_LEVEL] = <uint8_t>level_of(slot)
            out[used + RUN_ID_AT_HAS_OFFSET] = state == DELIVERED and slot.position >= 0
            used += RUN_ID_SIZE
        return used

    def sort(self):
        """Sort the rows into the order of a run, and restart at the first block of each kind.

        No row may be added afterwards. O(n log n) without the GIL, O(n) if they are in order.

        Raises:
            MemoryError: nothing has changed; the caller may try again.
        """
        cdef bint has_memory
        if not self.is_sorted:
            with nogil:
                has_memory = self._sort_all()
                if not has_memory:
                    self._free_refs()
            if not has_memory:
                raise MemoryError("cannot allocate memory to sort the rows of a checkpoint")
            self.is_sorted = True
        self.sorted_pushed.next = self.sorted_completed.next = self.sorted_named.next = 0
        self.due_pushed.next = self.due_completed.next = 0

    def next_block(self, int kind):
        """Encode the next rows of a run file.

        Args:
            kind: RUN_TIMERS, RUN_DUE if nothing is unplaced, or RUN_IDS.

        Returns:
            The rows, at most RUN_BLOCK_SIZE_MAX bytes; empty after the last ones.
        """
        cdef uint8_t* out
        cdef Py_ssize_t used
        assert self.is_sorted
        assert kind != RUN_DUE or self.unplaced == 0
        out = <uint8_t*>malloc(RUN_BLOCK_SIZE_MAX)
        if out == NULL:
            raise MemoryError("cannot allocate a block of a run")
        with nogil:
            if kind == RUN_TIMERS:
                used = self._fill_timers(
                    kind, &self.sorted_pushed, &self.sorted_completed, out, RUN_BLOCK_SIZE_MAX
                )
            elif kind == RUN_DUE:
                used = self._fill_timers(
                    kind, &self.due_pushed, &self.due_completed, out, RUN_BLOCK_SIZE_MAX
                )
            else:
                used = self._fill_ids(out, RUN_BLOCK_SIZE_MAX)
        try:
            return PyBytes_FromStringAndSize(<const char*>out, used)
        finally:
            free(out)

    def release(self):
        """Free the memory now, without the GIL. The object must not be used afterwards."""
        with nogil:
            self._free_all()

    def row_count(self, int kind):
        """Number of rows of that kind, including those that cancel each other out."""
        if kind != RUN_IDS:
            return self.pushed.count + self.completed.count
        return self.named.count

    @property
    def memory_bytes(self):
        """Memory of the rows in bytes, not counting the memory for sorting."""
        return self.row_bytes()

    cdef int64_t row_bytes(self) noexcept nogil:
        return (
            self.pushed.chunk_count * self.pushed.row_size
            + self.completed.chunk_count * self.completed.row_size
            + self.named.chunk_count * self.named.row_size
        ) << CHUNK_BITS
