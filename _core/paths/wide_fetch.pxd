from libc.stdint cimport int32_t, int64_t

from _core.bytes.buffer cimport Buf
from _core.paths.fetch cimport FetchAsk, FetchPath
from _core.queue.partition cimport Topic

cdef enum:
    # A request with more topics and partitions is wide; smaller ones have fewer.
    WIDE_MIN_ITEMS = 2048
    WIDE_MIN_BYTES = 32 << 10

cdef class WideFetch:
    cdef FetchPath shared
    cdef FetchPath path           # of its own: between two turns it keeps what it has found
    cdef Buf out                  # the response so far
    cdef FetchAsk ask
    cdef int64_t at               # of the next topic or partition in the request; 0: none is done
    cdef int64_t topics_left
    cdef int64_t partitions_left
    cdef bint in_topic
    cdef Topic topic
    cdef int64_t begun_pos        # up to which the log was visible when this try began
    cdef set topics               # that it watches
    # Does a part of the request; returns a FetchResult. After all but FETCH_UNFINISHED and
    # FETCH_ANSWERED, the next call begins anew.
    cdef int step(
        self, bytes request, int version, int32_t correlation, bint patient, bint is_retry
    ) except -1
    cdef int _topics(self, bytes request, int version) except -1
    cdef int _end(self, int result) except -1
    cdef list pieces(self)
    cdef int64_t held_bytes(self) noexcept
    cdef int unpark(self) except -1
