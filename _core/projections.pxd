from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.due_queue cimport DueQueue
from _core.frames cimport FrameHeader
from _core.id_index cimport IdIndex
from _core.partition cimport Partition, Topic
from _core.timer_deltas cimport TimerDeltas
from _core.unit_blocks cimport UnitBlocks

# Records up to next_offset become visible once the log is visible up to end_pos.
cdef struct VisibleMark:
    int64_t end_pos
    int64_t next_offset
    int32_t handle

cdef class Projections:
    cdef readonly DueQueue due
    cdef readonly IdIndex ids
    cdef readonly dict topics_by_name
    cdef readonly dict topics_by_id
    cdef readonly dict topics_by_uuid
    cdef readonly list partitions
    cdef readonly UnitBlocks blocks
    cdef readonly int64_t accepted_records
    cdef readonly int64_t accepted_frames
    cdef readonly int64_t timers_accepted
    cdef readonly int64_t timers_cancelled
    cdef readonly int64_t timers_replaced
    cdef readonly int64_t timers_delivered
    cdef public TimerDeltas deltas
    cdef public int64_t applied_pos
    cdef readonly int64_t settled_twice
    cdef readonly int64_t producer_id_seen
    cdef readonly bytes id_key
    cdef int64_t fired_id_memory_ms
    cdef int64_t capture_serial
    cdef list captured           # (topic id, sequences of one partition)
    cdef list uncaptured         # partitions whose producers are to be collected; None: no more
    cdef list lost_ranges
    cdef set dropped             # timers that damage made undeliverable, by id
    cdef VisibleMark* marks
    cdef Py_ssize_t mark_head
    cdef Py_ssize_t mark_count
    cdef Py_ssize_t mark_capacity
    cdef int _add_mark(self, int64_t end_pos, int64_t next_offset, int32_t handle) except -1
    cdef bint _is_lost(self, int64_t pos)
    cdef bint _is_gone(self, int64_t accept_pos, int32_t index)
    cdef int _note_id(self) except -1
    # Applies a frame whose header and tables lie at p in one piece. `live`: it was appended just
    # now, so that the timers of a deliver frame are out of the due queue already.
    cdef int apply(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, bint live
    ) except -1
    cdef int _apply_records(self, Partition partition, const FrameHeader* h) except -1
    cdef int _apply_producer(self, Partition partition, const FrameHeader* h) except -1
    cdef int _apply_timers(
        self, Partition partition, const FrameHeader* h, const uint8_t* p
    ) except -1
    cdef int _apply_timer(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, const uint8_t* entry
    ) except -1
    cdef int _apply_withdrawal(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, const uint8_t* entry
    ) except -1
    cdef int _withdraw_pending(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size, int64_t now_ms
    ) except -1
    cdef int _apply_settled(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, bint live
    ) except -1
