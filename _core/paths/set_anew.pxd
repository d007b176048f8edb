from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.buffer cimport Buf
from _core.paths.due_records cimport Due

cdef class SetAnew:
    cdef readonly int32_t count
    cdef Buf entries
    cdef Buf names            # the ids and the rules
    cdef Buf held
    cdef Buf tail             # of the record that is written
    cdef int64_t base_timestamp
    cdef int64_t max_timestamp
    cdef int64_t max_due_ms
    # Starts a frame.
    cdef void begin(self) noexcept nogil
    # Adds the next occurrence of a timer; `index` is that of the entry that completes this one.
    cdef int add(self, const Due* due, int32_t index) except -1
    cdef int _write_next(self, const Due* due) except -1
    # Completes the held batch.
    cdef int finish(self, int32_t epoch) except -1
    # Sets the places in the entries of the tables, which begin at `tables_pos` of the frame at
    # `frame_pos`: those of ids and rules count from `names_pos`, those of records from `held_pos`.
    cdef void place(
        self, uint8_t* entries, int64_t frame_pos, int64_t names_pos, int64_t held_pos
    ) noexcept nogil
