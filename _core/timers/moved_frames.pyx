"""Where the pending timers of freed accept frames are now: accept position -> carry frame.

A timer's id is the position of its accept frame, and an index. When that frame is about to be
freed, its pending timers are carried to a later frame; the id stays. All timers of one accept frame
that are carried stand in one carry frame, so an entry for each frame is enough.

An entry whose place is before the start of the log is dead: what was pending there has been carried
again, and has changed the entry. Dead entries are dropped when their shard would grow.

The entries are in an open-addressing hash table with linear probing, 16 bytes a slot, at most 70 %
full. It is split into 256 shards by hash; each grows by half on its own, so that no call takes
long.

Layer 0: no I/O, no clock.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

cdef enum:
    SHARD_CAPACITY_MIN = 8

assert sizeof(MovedFrame) == 16


cdef inline uint64_t hash_position(int64_t position) noexcept nogil:
    # The broker chooses positions, so a fixed mixer suffices (SplitMix64's finalizer).
    cdef uint64_t h = <uint64_t>position * 0x9E3779B97F4A7C15ULL
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ULL
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBULL
    return h ^ (h >> 31)


cdef inline MovedFrame* find_slot(
    MovedFrame* slots, uint32_t capacity, int64_t accept_pos
) noexcept nogil:
    """The slot of a frame, or the free slot for it. REQUIRES: there is a free slot."""
    cdef uint64_t h = hash_position(accept_pos)
    cdef uint32_t i = <uint32_t>(((h & 0xFFFFFFFFULL) * capacity) >> 32)
    while slots[i].place and slots[i].accept_pos != accept_pos:
        i = i + 1 if i + 1 < capacity else 0
    return &slots[i]


cdef inline int shard_index(int64_t accept_pos) noexcept nogil:
    return <int>(hash_position(accept_pos) >> 56)


@cython.final
cdef class MovedFrames:
    """The frames whose pending timers were carried.

    Attributes:
        start: log position at which the log begins; raise it when its head is freed.
        count: number of entries, including dead ones that are not dropped yet.
    """

    def __dealloc__(self):
        cdef int i
        for i in range(MOVED_SHARDS):
            free(self.shards[i].slots)

    cdef int put(self, int64_t accept_pos, int64_t place) except -1:
        cdef MovedShard* shard = &self.shards[shard_index(accept_pos)]
        cdef MovedFrame* slot
        assert place > 0
        if (<uint64_t>shard.count + 1) * 10 > <uint64_t>shard.capacity * 7:
            self._make_room(shard)
        slot = find_slot(shard.slots, shard.capacity, accept_pos)
        if slot.place == 0:
            shard.count += 1
            self.count += 1
        slot[0] = MovedFrame(accept_pos, place)
        self.limit = max(self.limit, accept_pos + 1)
        return 0

    cdef int put_saved(self, int64_t accept_pos, int64_t place) except -1:
        cdef const MovedFrame* found = self._find(accept_pos)
        return 0 if found != NULL and found.place > place else self.put(accept_pos, place)

    cdef int _make_room(self, MovedShard* shard) except -1:
        """Drop dead entries, and grow so that less than half of the slots are taken."""
        cdef uint32_t live = 0, capacity, i
        cdef MovedFrame* slots
        for i in range(shard.capacity):
            live += shard.slots[i].place >= max(self.start, 1)
        capacity = max(2 * (live + 1), SHARD_CAPACITY_MIN)
        slots = <MovedFrame*>calloc(capacity, sizeof(MovedFrame))
        if slots == NULL:
            raise MemoryError("cannot allocate the places of carried timers")
        for i in range(shard.capacity):
            if shard.slots[i].place >= max(self.start, 1):
                find_slot(slots, capacity, shard.slots[i].accept_pos)[0] = shard.slots[i]
        free(shard.slots)
        self.count -= shard.count - live
        shard.slots = slots
        shard.capacity = capacity
        shard.count = live
        return 0

    cdef const MovedFrame* _find(self, int64_t accept_pos) noexcept nogil:
        cdef MovedShard* shard = &self.shards[shard_index(accept_pos)]
        if accept_pos >= self.limit or shard.count == 0:
            return NULL
        return find_slot(shard.slots, shard.capacity, accept_pos)

    cdef bint holds(self, int64_t accept_pos) noexcept nogil:
        cdef const MovedFrame* found = self._find(accept_pos)
        return found != NULL and found.place != 0

    cdef int64_t place_of(self, int64_t accept_pos) noexcept nogil:
        cdef const MovedFrame* found = self._find(accept_pos)
        if found != NULL and found.place >= max(self.start, 1):
            return found.place
        return accept_pos if accept_pos >= self.start else -1

    def place(self, int64_t accept_pos):
        """The log position of the frame that holds what is pending of an accept frame, or -1."""
        return self.place_of(accept_pos)

    @property
    def memory_bytes(self):
        """Memory of the table in bytes."""
        cdef int64_t slots = 0
        cdef int i
        for i in range(MOVED_SHARDS):
            slots += self.shards[i].capacity
        return slots * <int64_t>sizeof(MovedFrame)
