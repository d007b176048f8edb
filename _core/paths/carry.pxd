from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.log.frames cimport FrameHeader
from _core.log.view cimport Block
from _core.queue.partition cimport Partition
from _core.state.writer cimport LogWriter

cdef class CarryPath:
    cdef LogWriter writer
    cdef readonly bint is_full
    cdef readonly bint is_refused
    cdef readonly int64_t carried_bytes
    cdef readonly int64_t moved_count
    cdef dict touched             # partitions whose saved units became wrong
    cdef Partition _owner(self, const FrameHeader* h)
    cdef bint _append(
        self, Partition partition, const FrameHeader* h, const uint8_t* frame, int64_t now_ms
    ) except -1
