from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from _core.log.frames cimport FrameHeader
from _core.log.window cimport LogWindow
from _core.queue.partition cimport Topic
from _core.state.projections cimport Projections

cdef class LogScan:
    cdef readonly Projections projections
    cdef readonly int64_t pos           # everything before it is processed
    cdef readonly int32_t epoch
    cdef readonly int64_t frames
    cdef readonly int64_t last_pos
    cdef readonly uint32_t last_crc
    cdef readonly list damage           # (from, to, fault)
    cdef readonly str tail_fault        # the fault at `pos`, once done
    cdef readonly bint done
    cdef readonly bint has_leftovers
    cdef readonly bint newer_version
    cdef readonly list lost_ranges               # (from, to), shared with the projections
    cdef readonly dict unknown                   # topic id -> highest partition
    cdef readonly uint32_t salt         # 0 = not known yet
    cdef list verdicts                  # (from, to) of those not passed yet
    cdef dict topics                    # topic id -> payload for topics whose frame was lost
    cdef object control
    cdef object written
    cdef dict ranges                    # by segment: ranges that may hold written bytes
    cdef readonly int64_t garbage_end
    cdef list segments                  # (base, size), ascending
    cdef Py_ssize_t segment
    cdef int64_t watermark              # allocation watermark: only zeros after it, -1 = unknown
    cdef int64_t own_from              # marks of frames below it are another node's
    cdef int64_t known_flushed          # highest known flushed position, -1 = none
    cdef bint has_looked_ahead
    cdef LogWindow window
    cdef str why_unreadable             # reason for the latest frame that could not be read
    cdef int64_t base
    cdef int64_t size
    cdef int _enter(self, Py_ssize_t segment) except -1
    cdef int _apply(self, const FrameHeader* h, const uint8_t* p) except -1
    cdef bint _is_own(self, const FrameHeader* h) noexcept nogil
    cdef int _pass_over(self, int64_t start, int64_t end) except -1
    cdef int64_t _behind_verdicts(self, int64_t pos)
    cdef Topic _topic_of(self, const FrameHeader* h)
    cdef bint _declare(self, int32_t topic_id, const FrameHeader* h) except -1
    cdef int _declare_targets(self, const FrameHeader* h, const uint8_t* p) except -1
    cdef int _at_fault(self, str fault) except -1
    cdef int _add_damage(self, int64_t start, int64_t end, str fault) except -1
    cdef int _check_at(self, int64_t pos, int64_t base, int64_t end, FrameHeader* h) except -1
    cdef int _check_as(
        self, int64_t pos, int64_t named, int64_t base, int64_t end, FrameHeader* h
    ) except -1
    cdef int64_t _old_end(self, int64_t pos, int64_t base, int64_t end) except -1
    cdef bint _is_zero(self, int64_t pos, int64_t base, int64_t end) except -1
    cdef int _note_garbage(self) except -1
    cdef bint _seek_valid(self, FrameHeader* h) except -1
    cdef list _written_in(self, Py_ssize_t segment)
    cdef int64_t _find_valid(self, Py_ssize_t segment, int64_t pos, FrameHeader* h) except -2
    cdef int64_t _highest_mark(self, Py_ssize_t segment, int64_t pos) except -2
