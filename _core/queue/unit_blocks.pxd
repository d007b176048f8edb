from libc.stdint cimport int32_t, int64_t, uint8_t

cdef class UnitBlocks:
    cdef dict blocks              # key -> bytes, in order of last use, the latest at the end
    cdef readonly int64_t size_max
    cdef readonly int64_t size
    cdef public object load
    # The block used last, which serves most lookups.
    cdef int64_t last_key
    cdef bytes last
    # Returns 1 and sets `unit`, or 0 if a thread must read it first. Units below `saved` are in
    # files.
    cdef int find(
        self, int32_t handle, int64_t offset, int64_t saved, const uint8_t** unit
    ) except -1
    cdef int _keep(self, int64_t key, bytes data) except -1
