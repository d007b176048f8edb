from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.buffer cimport Buf
from _core.log.frames cimport FrameHeader
from _core.paths.due_records cimport Due
from _core.queue.partition cimport Partition, Topic
from _core.state.writer cimport LogWriter

# A timer of a chunk: the entry of the frame that holds it, and its record.
cdef struct Carried:
    const uint8_t* entry
    Due due                   # `due.next`: index of the next timer of its partition, -1 = last

cdef class TimerCarry:
    cdef readonly LogWriter writer
    cdef readonly int64_t carried_timers
    cdef readonly int64_t carried_bytes
    cdef int64_t batch_size_max
    cdef Carried* found
    cdef Py_ssize_t found_capacity
    cdef int32_t* group_of    # by partition handle: index of its last timer in the chunk, -1 = none
    cdef Py_ssize_t group_capacity
    cdef Buf batch
    cdef Buf tables
    cdef Buf names
    cdef Py_ssize_t block_index
    cdef int _reserve(self, Py_ssize_t count) except -1
    cdef Partition _partition_of(self, const uint8_t* row, Topic topic)
    cdef Partition _home_of(self, const uint8_t* frame, Partition target)
    cdef list _other_topics(self, int32_t first, int32_t end)
    cdef bint _is_over(self, const uint8_t* row) except -1
    cdef const uint8_t* _frame_in(self, list blocks, int64_t pos) except? NULL
    cdef list _gather(self, const uint8_t* rows, Py_ssize_t count, list blocks)
    cdef int32_t _run_end(
        self, int32_t first, bint is_lone, int64_t* tables_size
    ) noexcept nogil
    cdef int _encode(
        self, int32_t first, int32_t end, int64_t tables_size, FrameHeader* h
    ) except -1
    cdef void _place_names(self) noexcept nogil
    cdef int32_t _append_run(self, Partition partition, int32_t first, int64_t now_ms) except -3
