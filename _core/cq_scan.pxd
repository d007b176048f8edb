from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.buffer cimport Buf
from _core.frames cimport FrameHeader
from _core.log_view cimport LogView
from _core.partition cimport Partition

cdef struct Found:
    int64_t pos
    int32_t size
    const uint8_t* frame
    int64_t first_offset      # of FIND_LOST: the first that was lost with it
    int64_t next_offset       # of FIND_LOST: where to look next

cdef enum FindResult:
    FIND_NONE = 0             # there is no such record
    FIND_FOUND
    FIND_COLD                 # `place` must be read by a thread first
    FIND_LOST                 # damage took the record
    FIND_TOO_LARGE            # what it has is more than there is room for

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
    cdef void _fill(
        self, int64_t stop, int64_t pos, int32_t size, int64_t tags_code
    ) noexcept nogil
    cdef void _take(self, const FrameHeader* h) noexcept nogil
    cdef int64_t _walk(self, const uint8_t* data, int64_t size, int64_t pos) noexcept nogil
