from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

cdef enum:
    ID_SHARDS = 256

cdef struct TimerId:      # 16 bytes
    int64_t position
    int32_t record_index
    int32_t is_taken

cdef struct IdShard:
    TimerId* slots
    uint32_t capacity
    uint32_t count

cdef class CancelledTimers:
    cdef readonly int64_t cancelled_count     # cancelled ids not claimed yet
    cdef readonly int64_t orphan_count        # timers of forgotten partitions not claimed yet
    cdef readonly int64_t allocated_bytes
    cdef IdShard shards[ID_SHARDS]
    cdef uint8_t* forgotten                   # one bit per partition handle
    cdef int64_t forgotten_bytes
    # Returns 1 if the id was added, 0 if it was there already.
    cdef int cancel(self, int64_t position, int32_t record_index) except -1 nogil
    # Cancels all timers of a partition. `timer_count` entries of them, not counting timers that are
    # cancelled already, will be claimed one by one.
    cdef int forget(self, int32_t partition, int64_t timer_count) except -1 nogil
    cdef bint is_forgotten(self, int32_t partition) noexcept nogil
    # Whether this timer is cancelled and not claimed yet.
    cdef bint holds(self, int64_t position, int32_t record_index) noexcept nogil
    # Whether this timer is cancelled. If so, its id is removed, because the caller drops the entry.
    cdef bint claim(
        self, int64_t position, int32_t record_index, int32_t partition
    ) noexcept nogil
    cdef bint _discard(self, int64_t position, int32_t record_index) noexcept nogil
    cdef bint _resize(self, IdShard* shard, uint32_t capacity) noexcept nogil
