from libc.stdint cimport int64_t

from _core.frames cimport FrameHeader
from _core.log_tail cimport FrameBody, LogTail
from _core.partition cimport Partition, Topic
from _core.projections cimport Projections

cdef class LogWriter:
    cdef readonly LogTail tail
    cdef readonly Projections projections
    cdef readonly int64_t frame_size_max
    cdef object topic_payload
    # Room for a frame of `size` bytes about `topic`, declared in this segment; False: disk full.
    cdef bint prepare(self, Topic topic, int64_t size, bint reserved, int64_t now_ms) except -1
    # Appends the frame and applies it.
    cdef int append(self, Partition partition, FrameHeader* h, const FrameBody* body) except -1
