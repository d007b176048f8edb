"""A k-way merge of sorted runs into one run, without the rows that are obsolete.

    rows of one key                           result
    a pending and a completed timer row       neither, if the pending one is that of the accept
                                              frame; else the completed one
    pending rows alone, of a carried timer    the newest
    a completed row alone                     kept until a merge includes the run with its timer
    an id in several runs                     the newest row
    a row of a topic that no longer exists    dropped
    an expired id                             dropped, unless an older run may hold an earlier row

The caller reads and writes the blocks. Used by one thread.

Layer 0: no I/O, no clock.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from _core.bytes.borrowed cimport Borrowed
from _core.timers.id_index cimport DELIVERED, PENDING
from _core.bytes.layout cimport *
from _core.bytes.octets cimport load_i32, load_i64
from _core.timers.run_rows cimport RowKey, is_key_before, is_key_equal, key_of_row, size_of_row

# Why `_merge` stops, other than at the end of a source's block.
cdef enum:
    STOP_DONE = -1
    STOP_FULL = -2

cdef enum:
    PARTITION_MAX = 1 << 28       # as in the due queue

cdef int64_t DUE_MS_END = 1LL << 48


cdef bint is_row_sound(int kind, const uint8_t* row, Py_ssize_t left) noexcept nogil:
    """Whether a row is whole and all its fields are valid."""
    if kind == RUN_IDS:
        return (
            left >= RUN_ID_SIZE
            and load_i32(row + RUN_ID_AT_TOPIC_ID) >= 0
            and load_i64(row + RUN_ID_AT_ACCEPT_POS) >= 0
            and 0 <= load_i32(row + RUN_ID_AT_PARTITION) < PARTITION_MAX
            and PENDING <= row[RUN_ID_AT_STATE] <= DELIVERED
            and load_i64(row + RUN_ID_AT_COMPLETED_POS) >= 0
            and (row[RUN_ID_AT_STATE] == PENDING) == (load_i64(row + RUN_ID_AT_COMPLETED_POS) == 0)
        )
    if left < RUN_COMPLETED_SIZE or load_i64(row + RUN_TIMER_AT_ACCEPT_POS) < 0:
        return False
    if row[RUN_TIMER_AT_KIND] == RUN_ROW_COMPLETED:
        return kind == RUN_TIMERS
    if row[RUN_TIMER_AT_KIND] == RUN_ROW_COMPLETED_DUE:
        return (
            kind == RUN_DUE and left >= RUN_COMPLETED_DUE_SIZE
            and 0 <= load_i64(row + RUN_COMPLETED_DUE_AT_DUE) < DUE_MS_END
        )
    return (
        row[RUN_TIMER_AT_KIND] == RUN_ROW_PENDING
        and left >= RUN_TIMER_SIZE
        and 0 <= load_i64(row + RUN_TIMER_AT_DUE) < DUE_MS_END
        and load_i64(row + RUN_TIMER_AT_LEVEL_OFFSET) >= -1
        and load_i32(row + RUN_TIMER_AT_TOPIC_ID) >= 0
        and 0 <= load_i32(row + RUN_TIMER_AT_PARTITION) < PARTITION_MAX
        and load_i64(row + RUN_TIMER_AT_BODY_POS) >= load_i64(row + RUN_TIMER_AT_ACCEPT_POS)
    )


cdef Py_ssize_t find_unsound(
    int kind, const uint8_t* rows, Py_ssize_t size, RowKey* last, bint is_first, int64_t* count
) noexcept nogil:
    """Index of the first row that is invalid or out of order, -1 if none. Updates `last`."""
    cdef Py_ssize_t at = 0
    cdef RowKey key
    while at < size:
        if not is_row_sound(kind, rows + at, size - at):
            return at
        key = key_of_row(kind, rows + at)
        if not is_first and not is_key_before(last, &key):
            return at
        is_first = False
        last[0] = key
        at += size_of_row(kind, rows + at)
        count[0] += 1
    return -1


cdef inline bint is_first_row(const uint8_t* row) noexcept nogil:
    """Whether a row of a pending timer is that of its accept frame: no older run has the timer."""
    return load_i64(row + RUN_TIMER_AT_BODY_POS) == load_i64(row + RUN_TIMER_AT_ACCEPT_POS)


cdef class RowCheck:
    """Checks the rows of one run, block by block.

    Attributes:
        rows: number of rows checked so far.
    """

    cdef readonly int64_t rows
    cdef int kind
    cdef RowKey last

    def __cinit__(self, int kind):
        """Start before the first block of a run of that kind: RUN_TIMERS, RUN_DUE or RUN_IDS."""
        self.kind = kind

    def find_unsound(self, block):
        """Find the first row of a block that is truncated, invalid or out of order.

        Returns:
            Its index in the block, bytes, which ends the check; -1 if all rows are right.
        """
        cdef Borrowed octets = Borrowed(block)
        cdef Py_ssize_t at
        if octets.size == 0:
            return -1
        with nogil:
            at = find_unsound(
                self.kind, octets.p, octets.size, &self.last, self.rows == 0, &self.rows
            )
        return at


@cython.final
cdef class RunMerge:
    """One merge. All blocks fed to it must have passed `RowCheck`.

    Attributes:
        kind: RUN_TIMERS, RUN_DUE or RUN_IDS.
        out_rows: number of rows that `take` will return.
    """

    def __cinit__(
        self, int kind, *, Py_ssize_t source_count, topics not None, bint is_whole,
        int64_t forget_pos
    ):
        """Start a merge.

        Args:
            kind: RUN_TIMERS, RUN_DUE or RUN_IDS.
            source_count: number of runs. Sources are numbered from 0, the oldest run.
            topics: ids of the existing topics.
            is_whole: whether the merge includes all older runs.
            forget_pos: log position; ids of timers that frames below it completed are dropped.
        """
        cdef Py_ssize_t i
        self.kind = kind
        self.is_whole = is_whole
        self.forget_pos = forget_pos
        self.blocks = [None] * source_count
        self.source_count = source_count
        self.sources = <MergeSource*>calloc(source_count + 1, sizeof(MergeSource))
        self.topics = <int32_t*>malloc((len(topics) + 1) * sizeof(int32_t))
        self.out = <uint8_t*>malloc(RUN_BLOCK_SIZE_MAX)
        if self.sources == NULL or self.topics == NULL or self.out == NULL:
            raise MemoryError("cannot allocate memory to merge runs")
        for i, topic_id in enumerate(sorted(topics)):
            self.topics[i] = topic_id
        self.topic_count = len(topics)

    def __dealloc__(self):
        free(self.sources)
        free(self.topics)
        free(self.out)

    cdef bint _is_topic_known(self, int32_t topic_id) noexcept nogil:
        cdef Py_ssize_t low = 0, high = self.topic_count, middle
        while low < high:
            middle = (low + high) // 2
            if self.topics[middle] < topic_id:
                low = middle + 1
            else:
                high = middle
        return low < self.topic_count and self.topics[low] == topic_id

    cdef void _step(self, MergeSource* source) noexcept nogil:
        source.row += size_of_row(self.kind, source.row)
        if source.row < source.end:
            source.key = key_of_row(self.kind, source.row)

    cdef void _emit(self, const uint8_t* row) noexcept nogil:
        """Copy the newest row of a key unless it is obsolete. REQUIRES: room for RUN_ID_SIZE bytes.
        """
        cdef int size = size_of_row(self.kind, row)
        cdef int64_t completed_pos
        if self.kind == RUN_IDS:
            if not self._is_topic_known(load_i32(row + RUN_ID_AT_TOPIC_ID)):
                return
            completed_pos = load_i64(row + RUN_ID_AT_COMPLETED_POS)
            if self.is_whole and completed_pos and completed_pos <= self.forget_pos:
                return
        elif row[RUN_TIMER_AT_KIND] != RUN_ROW_PENDING:
            if self.is_whole:
                return
        elif not self._is_topic_known(load_i32(row + RUN_TIMER_AT_TOPIC_ID)):
            return
        memcpy(self.out + self.out_size, row, size)
        self.out_size += size
        self.out_rows += 1

    cdef void _merge_equal(self, const RowKey* key) noexcept nogil:
        """Consume the rows with that key, one from each run that has it; emit one row or none."""
        cdef const uint8_t* newest = NULL
        cdef const uint8_t* completed = NULL
        cdef MergeSource* source
        cdef bint has_first = False
        cdef Py_ssize_t i
        for i in range(self.source_count):
            source = &self.sources[i]
            if source.row < source.end and is_key_equal(&source.key, key):
                newest = source.row
                if self.kind != RUN_IDS:
                    if newest[RUN_TIMER_AT_KIND] != RUN_ROW_PENDING:
                        completed = newest
                    else:
                        has_first |= is_first_row(newest)
                self._step(source)
        if completed == NULL:
            self._emit(newest)
        elif not has_first:
            # An older run may have the row of the accept frame.
            self._emit(completed)

    cdef Py_ssize_t _merge(self) noexcept nogil:
        """Merge until a source's block is used up or the output is full.

        Returns the number of the source, or STOP_*.
        """
        cdef MergeSource* source
        cdef MergeSource* first
        cdef RowKey bound
        cdef Py_ssize_t i
        cdef bint has_bound
        while True:
            first = NULL
            has_bound = False
            for i in range(self.source_count):
                source = &self.sources[i]
                if source.is_ended:
                    continue
                if source.row == source.end:
                    return i
                if first == NULL or is_key_before(&source.key, &first.key):
                    if first != NULL:
                        bound = first.key
                        has_bound = True
                    first = source
                elif not has_bound or is_key_before(&source.key, &bound):
                    bound = source.key
                    has_bound = True
            if first == NULL:
                return STOP_DONE
            # Copy all rows of `first` up to the bound. There are usually many, because runs cover
            # different times.
            while not has_bound or is_key_before(&first.key, &bound):
                if self.out_size + RUN_ID_SIZE > RUN_BLOCK_SIZE_MAX:
                    return STOP_FULL
                self._emit(first.row)
                self._step(first)
                if first.row == first.end:
                    return first - self.sources
            if is_key_equal(&first.key, &bound):
                if self.out_size + RUN_ID_SIZE > RUN_BLOCK_SIZE_MAX:
                    return STOP_FULL
                self._merge_equal(&bound)

    def feed(self, Py_ssize_t source, bytes block not None):
        """Give a source its next block. An empty block ends the source.

        Args:
            source: number of the source.
            block: its next rows, checked by `RowCheck`.
        """
        cdef MergeSource* into = &self.sources[source]
        assert 0 <= source < self.source_count
        assert into.row == into.end and not into.is_ended
        self.blocks[source] = block
        into.row = <const uint8_t*><const char*>block
        into.end = into.row + len(block)
        into.is_ended = len(block) == 0
        if not into.is_ended:
            into.key = key_of_row(self.kind, into.row)

    def run(self):
        """Merge without the GIL until the caller must act.

        Returns:
            The number of a source to `feed`; -1 if the merge is done; -2 if the output is full. In
            the last two cases `take` the rows.
        """
        cdef Py_ssize_t stop
        with nogil:
            stop = self._merge()
        return stop

    def take(self):
        """Return the merged rows and clear the output; at most RUN_BLOCK_SIZE_MAX bytes."""
        cdef Py_ssize_t size = self.out_size
        self.out_size = 0
        self.out_rows = 0
        return PyBytes_FromStringAndSize(<const char*>self.out, size)
