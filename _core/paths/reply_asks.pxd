from libc.stdint cimport int32_t, int64_t

from _core.bytes.batch cimport Slice
from _core.bytes.buffer cimport Buf

cdef enum:
    REPLY_TOPICS_MAX = 16     # that one batch may name

# A record that asks for a reply.
cdef struct ReplyAsk:
    int32_t index             # in the batch
    int32_t topic             # its number in the batch

cdef class ReplyAsks:
    cdef bint is_open
    cdef frozenset closed_topics
    cdef list topics          # names, as bytes
    cdef Buf asks             # ReplyAsk each, in the order of the records
    cdef int32_t count
    cdef void reset(self) noexcept nogil
    # Notes that record `index` asks for a reply. Returns SPLIT_OK or a SplitFault.
    cdef int note(self, int32_t index, const Slice* name) except -1 nogil
    cdef int _find(self, const Slice* name) except -2
