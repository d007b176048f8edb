from libc.stdint cimport int64_t

from _core.log.frames cimport FrameHeader
from _core.log.tail cimport FrameBody, LogTail
from _core.queue.partition cimport Partition, Topic
from _core.state.projections cimport Projections

cdef class LogWriter:
    cdef readonly LogTail tail
    cdef readonly Projections projections
    cdef readonly int64_t frame_size_max
    cdef object topic_payload
    # Makes room (ROOM_*) for a frame of `size` bytes, and declares `topic` in its segment. False if
    # the disk is full.
    cdef bint prepare(self, Topic topic, int64_t size, int room, int64_t now_ms) except -1
    # Whether a segment has room for a frame and the declarations of other topics, besides its own.
    cdef bint fits(self, Topic topic, list others, int64_t size) except -1
    # The same for a frame whose timers point to other topics: these are declared as well.
    # REQUIRES: it fits.
    cdef bint prepare_all(
        self, Topic topic, list others, int64_t size, int room, int64_t now_ms
    ) except -1
    # Appends the frame and applies it.
    cdef int append(self, Partition partition, FrameHeader* h, const FrameBody* body) except -1
