from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

cdef enum:
    ID_SHARDS = 256

cdef struct TimerId:      # 16 bytes
    int64_t phys_offset
    int32_t record_index
    int32_t is_taken

cdef struct IdShard:
    TimerId* slots
    uint32_t capacity
    uint32_t count

cdef class WithdrawnTimers:
    cdef readonly int64_t cancelled_count     # cancelled ids not claimed yet
    cdef readonly int64_t orphan_count        # timers of forgotten partitions not claimed yet
    cdef readonly int64_t allocated_bytes
    cdef IdShard shards[ID_SHARDS]
    cdef uint8_t* forgotten                   # one bit for each partition handle
    cdef int64_t forgotten_bytes
    # 1 if added, 0 if it was there.
    cdef int cancel(self, int64_t phys_offset, int32_t record_index) except -1 nogil
    # The partition's `timer_count` timers, cancelled ones not counted, will be claimed one by one.
    cdef int forget(self, int32_t partition, int64_t timer_count) except -1 nogil
    cdef bint is_forgotten(self, int32_t partition) noexcept nogil
    # Whether this timer was cancelled and not claimed yet.
    cdef bint holds(self, int64_t phys_offset, int32_t record_index) noexcept nogil
    # Whether this timer is withdrawn; what told so is dropped, as the caller drops the timer.
    cdef bint claim(
        self, int64_t phys_offset, int32_t record_index, int32_t partition
    ) noexcept nogil
    cdef bint _discard(self, int64_t phys_offset, int32_t record_index) noexcept nogil
    cdef bint _resize(self, IdShard* shard, uint32_t capacity) noexcept nogil
