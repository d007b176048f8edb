from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.batch cimport Batch
from _core.buffer cimport Buf
from _core.due_queue cimport Timer
from _core.frames cimport FrameHeader
from _core.log_view cimport LogView
from _core.log_writer cimport LogWriter
from _core.partition cimport Partition, Topic
from _core.tags cimport TagSum

cdef enum:
    LATENESS_BOUNDS = 13

# Where a due timer's record lies.
cdef struct Due:
    const uint8_t* tail       # key, value, headers
    int64_t tail_size
    const uint8_t* name       # user's id
    int name_size
    int attributes
    int64_t timestamp
    int32_t next              # next of the same partition in this chunk, -1 = last

cdef enum LocateResult:
    LOCATED = 0
    LOCATE_COLD = 1
    LOCATE_DAMAGED = 2

cdef class DeliverPath:
    cdef readonly LogWriter writer
    cdef readonly LogView view
    cdef Timer* timers
    cdef Due* found
    cdef int32_t* group_of    # by partition handle: index of its last timer in the chunk, -1 = none
    cdef Py_ssize_t group_capacity
    cdef Py_ssize_t chunk_max
    cdef int64_t batch_size_max
    cdef Buf batch
    cdef Buf tables
    cdef Buf names
    cdef TagSum tags          # of the records of one frame
    cdef readonly list cold
    cdef list blocks          # that what was found lies in
    cdef int64_t user         # see `LogView.user`
    cdef Py_ssize_t delivered
    cdef readonly int64_t frames
    cdef readonly bint disk_full
    cdef readonly int64_t damaged_timers
    cdef int64_t lateness_counts[LATENESS_BOUNDS + 1]
    cdef readonly int64_t lateness_sum_ms
    cdef int _locate(self, const Timer* timer, Due* due) except -1
    cdef Py_ssize_t _locate_all(self, Py_ssize_t count) except -2
    cdef list _group(self, Py_ssize_t count)
    cdef int32_t _gather_run(
        self, Topic topic, int32_t first, int64_t now_ms, Batch* b, FrameHeader* h
    ) except -2
    cdef int32_t _deliver_run(self, Partition partition, int32_t first, int64_t now_ms) except -2
    cdef void _note_lateness(self, int64_t late_ms) noexcept nogil
