from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from _core.timers.due_queue cimport Timer
from _core.timers.id_index cimport NameSlot
from _core.timers.run_rows cimport RowKey

cdef enum:
    ROWS_PUSHED = 0
    ROWS_COMPLETED = 1
    ROWS_NAMED = 2

# Rows of one size, in chunks so that growing never moves them.
cdef struct Rows:
    uint8_t** chunks
    int64_t count
    int64_t chunk_count
    int64_t chunk_capacity
    int64_t row_size
    int kind               # ROWS_*

cdef struct PushedTimer:
    int64_t due_ms
    int64_t position
    int64_t level_offset
    int64_t body_pos
    int32_t record_index
    int32_t topic_id
    int32_t partition      # its index in the topic
    int32_t level

cdef struct CompletedTimer:
    int64_t due_ms         # -1: not known, a frame of an older latermq completed it
    int64_t position
    int32_t record_index

# A sort entry: the key of a row and its index.
cdef struct SortRef:
    RowKey key
    uint32_t at

# The due time of a row, and its place in the order of ids.
cdef struct DueRef:
    int64_t due_ms
    uint32_t at

cdef struct SortedRows:
    SortRef* refs
    int64_t count
    int64_t next           # the first row that is not in a block yet

cdef class TimerMemtable:
    cdef Rows pushed
    cdef Rows completed
    cdef Rows named        # NameSlot, with the partition's index instead of its handle
    cdef bint is_sorted
    cdef public int64_t older_bytes
    cdef readonly int64_t unplaced    # completed timers whose due times are not known
    cdef SortedRows sorted_pushed
    cdef SortedRows sorted_completed
    cdef SortedRows sorted_named
    cdef SortedRows due_pushed         # the same rows in the order of the TimerLog
    cdef SortedRows due_completed
    cdef int push(
        self, const Timer* timer, int32_t topic_id, int32_t partition, int level,
        int64_t level_offset, int64_t body_pos
    ) except -1
    # Adds a timer that a carry frame at `body_pos` holds; `entry` is that of its table.
    cdef int push_carried(
        self, const uint8_t* entry, int32_t topic_id, int32_t partition, int64_t body_pos
    ) except -1
    # due_ms: -1 if it is not known.
    cdef int complete(self, int64_t position, int32_t record_index, int64_t due_ms) except -1
    # Adds a change of an id: `slot` as it is in the index now. `partition` is an index in the
    # topic, which replaces the handle.
    cdef int name(self, const NameSlot* slot, int32_t partition) except -1
    cdef int64_t row_bytes(self) noexcept nogil
    cdef bint _sort_all(self) noexcept nogil
    cdef void _free_refs(self) noexcept nogil
    cdef void _free_all(self) noexcept nogil
    cdef bint _is_new(self, const SortRef* ref) noexcept nogil
    cdef Py_ssize_t _fill_timers(
        self, int kind, SortedRows* pushed, SortedRows* completed, uint8_t* out, Py_ssize_t size
    ) noexcept nogil
    cdef Py_ssize_t _fill_ids(self, uint8_t* out, Py_ssize_t size) noexcept nogil
