from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.timers.due_queue cimport DueQueue, Timer
from _core.log.frames cimport FrameHeader
from _core.timers.id_index cimport IdIndex, NamedTimer
from _core.queue.partition cimport Partition, Topic
from _core.queue.producer_state cimport ProducerTable
from _core.timers.cancelled_timers cimport CancelledTimers
from _core.timers.due_charges cimport DueCharges
from _core.timers.memtable cimport TimerMemtable
from _core.timers.moved_frames cimport MovedFrames
from _core.queue.unit_blocks cimport UnitBlocks
from _core.state.level_queues cimport LevelQueues
from _core.state.producer_capture cimport ProducerCapture
from _core.state.visible_marks cimport VisibleMarks

cdef class Projections:
    cdef readonly DueQueue due
    cdef readonly IdIndex ids
    cdef readonly LevelQueues levels
    cdef readonly MovedFrames moved
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
    cdef readonly int64_t partitions_removed      # in this process
    cdef readonly int64_t held_bytes
    cdef public TimerMemtable memtable
    cdef public object id_source
    cdef DueCharges canceller         # of the client whose batch is applied; may be None
    cdef public int64_t applied_pos
    cdef public int64_t first_known_pos
    cdef readonly int64_t completed_twice
    cdef readonly ProducerTable producers
    cdef readonly int64_t producer_id_seen
    cdef readonly bytes id_key
    cdef readonly ProducerCapture captured
    cdef list lost_ranges
    cdef readonly set dropped    # ids of timers that damage made undeliverable
    cdef CancelledTimers settled # timers completed while others are carried; None: nothing is
    cdef VisibleMarks marks
    cdef int64_t at_once_offset   # of the record with an id that `_apply_timers` meets
    cdef int64_t visible_pos  # of the log, up to which records may be fetched
    # The live topic of a name of `size` >= 0 bytes, or None.
    cdef Topic find_topic(self, const uint8_t* name, Py_ssize_t size)
    cdef bint _is_lost(self, int64_t pos)
    cdef bint _is_known(self, int64_t accept_pos)
    cdef bint _is_gone(self, int64_t accept_pos, int32_t index)
    cdef bint find_id(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size, NamedTimer* out
    ) except -1
    cdef int _note_id(self) except -1
    # Applies a frame whose header and tables are contiguous at p. `live`: it was just appended, and
    # the timers of a deliver frame are already popped from the due queue.
    cdef int apply(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, bint live
    ) except -1
    cdef int _apply_records(self, Partition partition, const FrameHeader* h) except -1
    cdef int _apply_carried_records(
        self, Partition partition, const FrameHeader* h
    ) except -1
    cdef int _apply_producer(self, Partition partition, const FrameHeader* h) except -1
    cdef int _apply_timers(
        self, Partition partition, const FrameHeader* h, const uint8_t* p
    ) except -1
    cdef int _apply_timer(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, const uint8_t* entry
    ) except -1
    cdef int _apply_carried_timers(
        self, Partition partition, const FrameHeader* h, const uint8_t* p
    ) except -1
    cdef Partition _target_of(self, Partition home, const uint8_t* entry)
    cdef int _make_pending(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, const uint8_t* entry,
        Timer* timer,
    ) except -1
    cdef int _push_accepted(
        self, Partition target, const FrameHeader* h, const uint8_t* p, const uint8_t* entry,
        Timer* timer,
    ) except -1
    cdef int _note_settled(self, int64_t accept_pos, int32_t index) except -1
    cdef int _apply_cancellation(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, const uint8_t* entry
    ) except -1
    cdef int _cancel_pending(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size, int64_t now_ms
    ) except -1
    # Makes the next occurrence of a timer pending.
    cdef int _set_anew(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, const uint8_t* entry
    ) except -1
    cdef int _apply_completed(
        self, Partition partition, const FrameHeader* h, const uint8_t* p, bint live
    ) except -1
    cdef int _complete_queued(self, Partition partition, const uint8_t* entry, bint live) except -1
    cdef void _complete_level(self, Partition partition, const uint8_t* entry) noexcept
