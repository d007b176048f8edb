from libc.stdint cimport int32_t, int64_t

from _core.bytes.buffer cimport Buf
from _core.paths.answer cimport Answer
from _core.paths.fetch cimport FetchPath
from _core.paths.wide_fetch cimport WideFetch

cdef class ParkedFetch:
    cdef public object session    # Session, None once the connection is closed
    cdef readonly int32_t wait_ms
    cdef readonly list cold
    cdef readonly bint answered
    cdef readonly bint is_unfinished
    cdef public bint was_woken
    cdef public object timer
    cdef public bint is_expired
    cdef Answer answer
    cdef bytes request
    cdef int version
    cdef int32_t correlation
    cdef list partitions
    cdef int64_t enough_pos   # of the log, before which there cannot be enough data
    cdef WideFetch wide       # None if it names few partitions
    cdef bint is_tried        # all of it was looked at before
    cdef int64_t slice_bytes  # of the response
    cdef int finish(self) except -1
    cdef list attempt(self, FetchPath fetch, Buf* out)
    cdef int64_t held_bytes(self) noexcept
    # Notes why it waits, a FetchResult; `path` tried it when the log was visible to `tried_pos`.
    cdef int wait(self, FetchPath path, int result, int64_t min_bytes, int64_t tried_pos) except -1

cdef ParkedFetch new_parked(session, Answer answer, int version, int32_t correlation)
