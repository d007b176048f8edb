from libc.stdint cimport int64_t, uint8_t

cdef struct MappedSegment:
    int64_t base
    int64_t size
    const uint8_t* data
    uint8_t* resident         # a Residency per granule

cdef enum:
    GRANULE = 1 << 18         # bytes that are asked about, and read, at a time

cdef enum Residency:
    NOT_KNOWN = 0
    RESIDENT = 1              # in the page cache, by the kernel's word
    MUST_BE_VERIFIED = 2      # not checked yet: only frames that a thread found whole are served

cdef class LogView:
    cdef MappedSegment* segments
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef list buffers         # keeps the mappings alive, in the order of `segments`
    cdef public object probe
    cdef public int64_t hot_from
    cdef set damaged          # positions of frames that failed their check
    cdef list verified_starts # spans of verified frames, ascending and apart
    cdef list verified_ends
    cdef MappedSegment* segment_of(self, int64_t pos, int64_t size) noexcept nogil
    cdef bint is_resident(self, int64_t pos, int64_t size) except -1
    cdef bint _is_verified(self, int64_t pos, int64_t size) except -1
    cdef bint is_damaged(self, int64_t pos) except -1
    cdef const uint8_t* at(self, int64_t pos, int64_t size) noexcept nogil
    cdef object slice(self, int64_t pos, int64_t size)
