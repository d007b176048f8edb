from libc.stdint cimport int32_t, int64_t

from _core.bytes.batch cimport Batch
from _core.bytes.buffer cimport Buf
from _core.bytes.tags cimport TagSum
from _core.log.frames cimport FrameHeader
from _core.log.tail cimport FrameBody
from _core.paths.due_records cimport Due
from _core.paths.recurrences cimport Recurrences
from _core.paths.set_anew cimport SetAnew
from _core.queue.lateness cimport Lateness
from _core.queue.partition cimport Partition, Topic
from _core.state.writer cimport LogWriter
from _core.timers.due_queue cimport Timer

cdef class DeliverFrames:
    cdef LogWriter writer
    cdef Recurrences recurrences
    cdef SetAnew anew
    cdef int64_t batch_size_max
    cdef Buf batch
    cdef Buf tables
    cdef Buf names
    cdef TagSum tags          # of the records of one frame
    cdef Buf passed_over      # int32_t: indexes of those of the run that are not delivered
    cdef const Timer* timers  # of the chunk
    cdef const Due* found
    # Since `begin`:
    cdef bint disk_full
    # Of the last run: the timers left over are due after one that it has set anew.
    cdef bint is_overtaken
    # Of the last partition: the first due time of a timer that is set anew; INT64_MAX = of none.
    cdef int64_t anew_due_ms
    cdef Py_ssize_t delivered
    cdef int64_t late_ms_max
    # Since the start:
    cdef int64_t frames
    cdef int64_t moved_count
    cdef Lateness late
    cdef list ended           # (topic, id) of recurring timers that came for the last time
    # Starts a chunk.
    cdef void begin(self) noexcept nogil
    # Starts a partition.
    cdef void begin_partition(self) noexcept nogil
    # Appends one deliver frame for timers from `first` on, which `found[i].next` links; returns the
    # next timer, or -1. If the disk is full, sets `disk_full`, and returns the first timer that is
    # still due.
    cdef int32_t deliver_run(
        self, Partition partition, const Timer* timers, const Due* found, int32_t first,
        int64_t now_ms
    ) except -2
    cdef int32_t _gather(
        self, Topic topic, int32_t first, int64_t now_ms, Batch* b, FrameHeader* h
    ) except -2
    cdef int _add(
        self, Topic topic, int32_t i, int64_t now_ms, Batch* b, FrameHeader* h
    ) except -1
    cdef int _complete(self, int32_t i, int32_t topic_id) except -1
    cdef int _begin_tables(self) except -1
    cdef int _set_anew(self, int32_t i, int32_t index) except -1
    cdef int _finish_tables(self) except -1
    cdef int _set_tables(self, FrameHeader* h, FrameBody* body) except -1
    cdef bint _append_delivery(
        self, Partition partition, Batch* b, FrameHeader* h, int64_t now_ms
    ) except -1
    cdef int _move(self, Partition partition, int64_t now_ms) except -1
    cdef int _note_ended(self, Topic topic, const Due* due) except -1
    cdef void _note_lateness(self, Topic topic, int64_t late_ms) noexcept
