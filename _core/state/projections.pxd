from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.timers.due_queue cimport DueQueue
from _core.log.frames cimport FrameHeader
from _core.timers.id_index cimport IdIndex
from _core.queue.partition cimport Partition, Topic
from _core.timers.memtable cimport TimerMemtable
from _core.queue.unit_blocks cimport UnitBlocks

# Records up to next_offset become visible once the log is visible up to end_pos.
cdef struct VisibleMark:
    int64_t end_pos
    int64_t next_offset
    int32_t handle

cdef enum:
    LEVELS_MAX = 255    # a timer entry holds its level in one byte

cdef class Projections:
    cdef readonly DueQueue due
    cdef readonly IdIndex ids
    cdef readonly dict topics_by_name
    cdef Topic found                           # by the last `find_topic`
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
    cdef public TimerMemtable memtable
    cdef public int64_t applied_pos
    cdef public int64_t first_known_pos
    cdef readonly int64_t completed_twice
    cdef readonly int64_t producer_id_seen
    cdef readonly bytes id_key
    cdef int64_t level_next[LEVELS_MAX + 1]    # next offset of each delay level; [0] is not used
    cdef int64_t capture_serial
    cdef list captured           # (topic id, sequences of one partition)
    cdef list uncaptured         # partitions whose producers are not collected yet; None when done
    cdef list lost_ranges
    cdef set dropped             # ids of timers that damage made undeliverable
    cdef VisibleMark* marks
    cdef Py_ssize_t mark_head
    cdef Py_ssize_t mark_count
    cdef Py_ssize_t mark_capacity
    # The live topic of a name of `size` >= 0 bytes, or None.
    cdef Topic find_topic(self, const uint8_t* name, Py_ssize_t size)
    cdef int _add_mark(self, int64_t end_pos, int64_t next_offset, int32_t handle) except -1
    cdef bint _is_lost(self, int64_t pos)
    cdef bint _is_gone(self, int64_t accept_pos, int32_t index)
    cdef int _note_id(self) except -1
    # Applies a frame whose header and tables are contiguous at p. `live`: it was just appended, and
    # the timers of a deliver frame are already popped from the due queue.
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
    cdef int _apply_cancellation(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, const uint8_t* entry
    ) except -1
    cdef int _cancel_pending(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size, int64_t now_ms
    ) except -1
    cdef int _apply_completed(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, bint live
    ) except -1
