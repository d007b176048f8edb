from libc.stdint cimport int64_t

from _core.bytes.batch cimport Batch
from _core.paths.delay_split cimport BatchSplitter
from _core.queue.partition cimport Topic

cdef class BatchWork:
    cdef readonly bint is_made
    cdef readonly bint is_done
    cdef BatchSplitter splitter
    cdef Batch batch
    cdef Topic topic
    cdef int look
    cdef int64_t now_ms
    cdef int64_t accepted_ms
    cdef int64_t base_ms
    cdef object decompress
    cdef bytes packed
    cdef int64_t size_max
    # The outcome.
    cdef bytes plain          # None once nothing refers to it
    cdef int64_t plain_size
    cdef int fault
    cdef object error         # of `decompress`
    cdef int make(
        self, BatchSplitter splitter, object decompress, bytes packed, int64_t size_max,
        const Batch* b, Topic topic, int look, int64_t now_ms, int64_t accepted_ms,
        int64_t base_ms
    ) except -1
