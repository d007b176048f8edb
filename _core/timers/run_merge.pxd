from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.timers.run_rows cimport RowKey

cdef struct MergeSource:
    const uint8_t* row     # the next row
    const uint8_t* end     # end of the block
    RowKey key             # of the next row, or of the last one at the end of a block
    bint is_ended

cdef class RunMerge:
    cdef readonly int kind
    cdef bint is_whole
    cdef int64_t forget_pos
    cdef MergeSource* sources
    cdef Py_ssize_t source_count
    cdef list blocks       # the blocks that the sources point into
    cdef int32_t* topics   # ids of the existing topics, ascending
    cdef Py_ssize_t topic_count
    cdef uint8_t* out
    cdef Py_ssize_t out_size
    cdef readonly int64_t out_rows
    cdef bint _is_topic_known(self, int32_t topic_id) noexcept nogil
    cdef void _step(self, MergeSource* source) noexcept nogil
    cdef void _emit(self, const uint8_t* row) noexcept nogil
    cdef void _merge_equal(self, const RowKey* key) noexcept nogil
    cdef Py_ssize_t _merge(self) noexcept nogil
