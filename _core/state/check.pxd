from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.layout cimport COMPLETED_ENTRY_SIZE, FRAME_HEADER_SIZE
from _core.log.frames cimport FrameHeader
from _core.state.scan cimport LogScan
from _core.queue.partition cimport Partition
from _core.state.projections cimport Projections
from _core.timers.cancelled_timers cimport CancelledTimers

cdef inline const uint8_t* completed_entry(const uint8_t* frame, int32_t i) noexcept nogil:
    return frame + FRAME_HEADER_SIZE + <int64_t>i * COMPLETED_ENTRY_SIZE


cdef class CheckedProjections(Projections):
    cdef readonly int64_t fault_count
    cdef list faults                    # (log position, expected, found)
    # Ids of pending timers, in the table used for cancelled ones, 16 bytes each. Those of deleted
    # topics stay in it.
    cdef CancelledTimers waiting
    cdef int fault(self, int64_t pos, str expected, str found) except -1

cdef class LogCheck(LogScan):
    cdef CheckedProjections checked
    cdef public bint keeps_positions
    cdef list positions                 # positions of frames, until they are taken
    cdef set declared                   # topics declared so far in this segment
    cdef int64_t declared_base
    cdef int32_t last_epoch
    cdef int64_t last_mark
    cdef bint _has_damage_here(self)
    cdef int _check_order(self, const FrameHeader* h) except -1
    cdef int _check_targets(self, const FrameHeader* h, const uint8_t* p) except -1
    cdef int _check_held(self, const FrameHeader* h, const uint8_t* p) except -1
    cdef int _check_deliver_times(self, const FrameHeader* h, const uint8_t* p) except -1
    cdef bint _check_carried(
        self, Partition partition, const FrameHeader* h, const uint8_t* p
    ) except -1
    cdef bint _check_records(
        self, Partition partition, const FrameHeader* h, const uint8_t* p
    ) except -1
