from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.buffer cimport Buf
from _core.log.frames cimport FrameHeader
from _core.log.view cimport LogView
from _core.queue.partition cimport Partition

cdef struct Found:
    int64_t pos
    int32_t size
    const uint8_t* frame
    int64_t first_offset      # FIND_LOST: first offset of the lost range
    int64_t next_offset       # FIND_LOST: offset to look up next

cdef enum FindResult:
    FIND_NONE = 0             # no such record
    FIND_FOUND
    FIND_COLD                 # a thread must read `place` first
    FIND_LOST                 # the record was lost to damage
    FIND_TOO_LARGE            # the frame exceeds the room

cdef enum:
    UNLIMITED = 0x7FFFFFFF

cdef class FrameFinder:
    cdef LogView view
    cdef readonly object place
    cdef readonly dict header
    cdef readonly int64_t first_offset
    cdef readonly int64_t next_offset
    cdef int find(
        self, Partition partition, int64_t offset, Found* found, int64_t room
    ) except -1

cdef class UnitScan:
    cdef readonly int32_t topic_id
    cdef readonly int32_t partition
    cdef readonly int64_t first
    cdef readonly int64_t stop
    cdef readonly int64_t reached
    cdef Buf units
    cdef bint is_unordered
    cdef void _put(self, const FrameHeader* h) noexcept nogil
    cdef void _fill(
        self, int64_t stop, int64_t pos, int32_t size, int64_t tags_code
    ) noexcept nogil
    cdef void _take(self, const FrameHeader* h) noexcept nogil
    cdef int64_t _walk(self, const uint8_t* data, int64_t size, int64_t pos) noexcept nogil
