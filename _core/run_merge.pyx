"""Merges runs: rows of many files in, those that still say something out, in the same order.

    settled in any of them       neither row of the timer goes on; a settled row without its timer
                                 does, until it meets the run that has it
    an id in more than one       the newest counts
    of a topic that is gone      left out
    an id that is forgotten      left out, if no older run could bring back what it named before

It works on blocks that its caller reads and writes, and on one thread.

Layer 0: no I/O, no clock.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from _core.id_index cimport DELIVERED, PENDING
from _core.layout cimport *
from _core.octets cimport load_i32, load_i64
from _core.run_rows cimport RowKey, is_key_before, is_key_equal, key_of_row, size_of_row

# What `_merge` may stop at, beside a source whose block is used up.
cdef enum:
    STOP_DONE = -1
    STOP_FULL = -2

cdef enum:
    PARTITION_MAX = 1 << 28       # as in the due queue

cdef int64_t DUE_MS_END = 1LL << 48


cdef bint is_row_sound(int kind, const uint8_t* row, Py_ssize_t left) noexcept nogil:
    """Whether a row is whole and says nothing that nobody would write."""
    if kind == RUN_IDS:
        return (
            left >= RUN_ID_SIZE
            and load_i32(row + RUN_ID_AT_TOPIC_ID) >= 0
            and load_i64(row + RUN_ID_AT_ACCEPT_POS) >= 0
            and 0 <= load_i32(row + RUN_ID_AT_PARTITION) < PARTITION_MAX
            and PENDING <= row[RUN_ID_AT_STATE] <= DELIVERED
            and (row[RUN_ID_AT_STATE] == PENDING) == (load_i64(row + RUN_ID_AT_FORGET_TIME) == 0)
        )
    if left < RUN_SETTLED_SIZE or load_i64(row + RUN_TIMER_AT_ACCEPT_POS) < 0:
        return False
    if row[RUN_TIMER_AT_KIND] == RUN_ROW_SETTLED:
        return True
    return (
        row[RUN_TIMER_AT_KIND] == RUN_ROW_PENDING
        and left >= RUN_TIMER_SIZE
        and 0 <= load_i64(row + RUN_TIMER_AT_DUE) < DUE_MS_END
        and load_i64(row + RUN_TIMER_AT_LEVEL_OFFSET) >= -1
        and load_i32(row + RUN_TIMER_AT_TOPIC_ID) >= 0
        and 0 <= load_i32(row + RUN_TIMER_AT_PARTITION) < PARTITION_MAX
        # A body that was carried elsewhere is what a later version writes.
        and load_i64(row + RUN_TIMER_AT_BODY_POS) == load_i64(row + RUN_TIMER_AT_ACCEPT_POS)
    )


cdef Py_ssize_t find_unsound(
    int kind, const uint8_t* rows, Py_ssize_t size, RowKey* last, bint is_first, int64_t* count
) noexcept nogil:
    """Place of the first row that is none or out of order, -1 if all are right; `last` goes on."""
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


cdef class RowCheck:
    """Checks the rows of one run, block by block.

    Attributes:
        rows: how many there were so far.
    """

    cdef readonly int64_t rows
    cdef int kind
    cdef RowKey last

    def __cinit__(self, int kind):
        """Begin before the first block of a run of that kind."""
        self.kind = kind

    def find_unsound(self, const uint8_t[::1] block not None):
        """Place in the block of the first row that is not whole, not possible or out of order.

        Returns:
            The place, bytes; -1 if every row is right. After another answer the check is over.
        """
        cdef Py_ssize_t at
        if block.shape[0] == 0:
            return -1
        with nogil:
            at = find_unsound(
                self.kind, &block[0], block.shape[0], &self.last, self.rows == 0, &self.rows
            )
        return at


@cython.final
cdef class RunMerge:
    """One merge; blocks that are given to it were checked by `RowCheck`.

    Attributes:
        kind: RUN_TIMERS or RUN_IDS.
        out_rows: rows in what `take` will answer.
    """

    def __cinit__(
        self, int kind, *, Py_ssize_t source_count, topics not None, bint is_whole, int64_t now_ms
    ):
        """Begin.

        Args:
            kind: RUN_TIMERS or RUN_IDS.
            source_count: runs, numbered from 0, the oldest.
            topics: ids of the topics that exist.
            is_whole: no older runs are left out.
            now_ms: epoch ms; ids to be forgotten by then are.
        """
        cdef Py_ssize_t i
        self.kind = kind
        self.is_whole = is_whole
        self.now_ms = now_ms
        self.blocks = [None] * source_count
        self.source_count = source_count
        self.sources = <MergeSource*>calloc(source_count + 1, sizeof(MergeSource))
        self.topics = <int32_t*>malloc((len(topics) + 1) * sizeof(int32_t))
        self.out = <uint8_t*>malloc(RUN_BLOCK_SIZE_MAX)
        if self.sources == NULL or self.topics == NULL or self.out == NULL:
            raise MemoryError("no memory to merge runs")
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
        """Copy a row that no newer one is about. REQUIRES: room for RUN_ID_SIZE bytes."""
        cdef int size = size_of_row(self.kind, row)
        cdef int64_t forget_at_ms
        if self.kind == RUN_IDS:
            if not self._is_topic_known(load_i32(row + RUN_ID_AT_TOPIC_ID)):
                return
            forget_at_ms = load_i64(row + RUN_ID_AT_FORGET_TIME)
            if self.is_whole and forget_at_ms and forget_at_ms <= self.now_ms:
                return
        elif size == RUN_SETTLED_SIZE:
            if self.is_whole:
                return
        elif not self._is_topic_known(load_i32(row + RUN_TIMER_AT_TOPIC_ID)):
            return
        memcpy(self.out + self.out_size, row, size)
        self.out_size += size
        self.out_rows += 1

    cdef void _merge_equal(self, const RowKey* key) noexcept nogil:
        """Take the rows with that key, one of each run that has it, and let one go on or none."""
        cdef const uint8_t* newest = NULL
        cdef MergeSource* source
        cdef bint has_pending = False, has_settled = False
        cdef Py_ssize_t i
        for i in range(self.source_count):
            source = &self.sources[i]
            if source.row < source.end and is_key_equal(&source.key, key):
                newest = source.row
                has_pending |= newest[RUN_TIMER_AT_KIND] == RUN_ROW_PENDING
                has_settled |= newest[RUN_TIMER_AT_KIND] == RUN_ROW_SETTLED
                self._step(source)
        if self.kind == RUN_IDS or not (has_pending and has_settled):
            self._emit(newest)

    cdef Py_ssize_t _merge(self) noexcept nogil:
        """Go on until a source's block is used up or the output is full; which, or STOP_*."""
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
            # Alone up to the bound: runs are of different times, so there are mostly many.
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
        """Give a source its next block; an empty one says that there are no more.

        Args:
            source: its number.
            block: rows that `RowCheck` found right, after those that it had before.
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
        """Go on without the GIL until something is needed.

        Returns:
            The number of the source that has to be fed; -1: all is done; -2: the output is full.
            `take` what is there after either of the latter.
        """
        cdef Py_ssize_t stop
        with nogil:
            stop = self._merge()
        return stop

    def take(self):
        """The rows that came out so far, and forget them; at most RUN_BLOCK_SIZE_MAX bytes."""
        cdef Py_ssize_t size = self.out_size
        self.out_size = 0
        self.out_rows = 0
        return PyBytes_FromStringAndSize(<const char*>self.out, size)
