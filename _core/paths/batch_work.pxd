from libc.stdint cimport int32_t, int64_t

from _core.bytes.batch cimport Batch
from _core.paths.delay_split cimport BatchSplitter
from _core.queue.partition cimport Partition, Topic

cdef class BatchWork:
    cdef readonly bint is_packed
    cdef readonly bint is_made
    cdef readonly bint is_done
    cdef readonly bint is_split
    cdef str refusal
    cdef object lookup
    cdef BatchSplitter splitter
    cdef Batch batch
    cdef Topic topic
    cdef int32_t partition
    cdef int look
    cdef int64_t now_ms
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
        const Batch* b, Partition partition, int look, int64_t now_ms, int64_t base_ms
    ) except -1
    cdef int look_up(self, object lookup) except -1
