from libc.stdint cimport int32_t, int64_t, uint8_t

cdef class UnitBlocks:
    cdef dict blocks              # key -> bytes; what was used last is last
    cdef readonly int64_t size_max
    cdef readonly int64_t size
    cdef public object load
    # The block that was asked for last: most questions are about it.
    cdef int64_t last_key
    cdef bytes last
    # 1 and where the unit is, 0 if a thread must read it first. Units below `saved` are in files.
    cdef int find(
        self, int32_t handle, int64_t offset, int64_t saved, const uint8_t** unit
    ) except -1
    cdef int _keep(self, int64_t key, bytes data) except -1
