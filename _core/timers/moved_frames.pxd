from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    MOVED_SHARDS = 256

cdef struct MovedFrame:       # 16 bytes; place 0: the slot is free
    int64_t accept_pos
    int64_t place

cdef struct MovedShard:
    MovedFrame* slots
    uint32_t capacity
    uint32_t count

cdef class MovedFrames:
    cdef public int64_t start             # log position at which the log begins
    cdef readonly int64_t count           # entries, including dead ones not dropped yet
    cdef int64_t limit                    # above every key
    cdef MovedShard shards[MOVED_SHARDS]
    # Notes that the pending timers of an accept frame are now in the carry frame at `place`.
    cdef int put(self, int64_t accept_pos, int64_t place) except -1
    # The same for a place that a saved state has; a later one may be known already.
    cdef int put_saved(self, int64_t accept_pos, int64_t place) except -1
    # Whether the timers of an accept frame were carried.
    cdef bint holds(self, int64_t accept_pos) noexcept nogil
    # The log position of the frame that has the pending timers of an accept frame; -1 if there is
    # none: damage took it.
    cdef int64_t place_of(self, int64_t accept_pos) noexcept nogil
    cdef const MovedFrame* _find(self, int64_t accept_pos) noexcept nogil
    cdef int _make_room(self, MovedShard* shard) except -1
