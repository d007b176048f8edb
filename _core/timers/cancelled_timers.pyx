"""The set of cancelled timers whose entries are still in a list.

To remove an entry from the middle of a packed list, one would have to search for it. Instead, this
set records the id of a cancelled timer, and the partitions of a deleted topic. When the entry is
popped or swept later, it is claimed: the entry and its id in this set are removed together.

The ids are in an open-addressing hash table with linear probing, 16 bytes a slot, at most 70 %
full, without tombstones. The table is split into 256 shards by hash. Each shard grows by half on
its own, so that the broker never stalls while millions of ids are moved.

Layer 0: no I/O, no clock.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

cdef enum:
    SHARD_CAPACITY_MIN = 8
    PARTITION_MAX = 1 << 28    # a higher handle is a bug; bounds the bitmap

assert sizeof(TimerId) == 16


cdef inline uint64_t hash_id(int64_t position, int32_t record_index) noexcept nogil:
    # The broker chooses the ids, so a fixed mixer suffices (SplitMix64's finalizer).
    cdef uint64_t h = <uint64_t>position * 0x9E3779B97F4A7C15ULL
    h ^= <uint64_t>record_index * 0xC2B2AE3D27D4EB4FULL
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ULL
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBULL
    return h ^ (h >> 31)


cdef inline uint32_t shard_index(uint64_t h) noexcept nogil:
    return <uint32_t>(h >> 56)


cdef inline uint32_t home_slot(uint64_t h, uint32_t capacity) noexcept nogil:
    """The slot where probing begins: the low half of the hash, scaled to the capacity."""
    return <uint32_t>(((h & 0xFFFFFFFFULL) * capacity) >> 32)


cdef inline uint32_t find_slot(
    const IdShard* shard, uint64_t h, int64_t position, int32_t record_index
) noexcept nogil:
    """The slot that holds the id, or the free slot for it. REQUIRES: the shard has a free slot."""
    cdef uint32_t i = home_slot(h, shard.capacity)
    cdef const TimerId* slot
    while shard.slots[i].is_taken:
        slot = &shard.slots[i]
        if slot.position == position and slot.record_index == record_index:
            break
        i = i + 1 if i + 1 < shard.capacity else 0
    return i


cdef void free_slot(IdShard* shard, uint32_t hole) noexcept nogil:
    """Empty a slot, and move later ids back into the hole so that no probe ends too early."""
    cdef uint32_t i = hole
    cdef uint32_t home
    while True:
        i = i + 1 if i + 1 < shard.capacity else 0
        if not shard.slots[i].is_taken:
            break
        home = home_slot(
            hash_id(shard.slots[i].position, shard.slots[i].record_index), shard.capacity
        )
        # An id whose home is cyclically after the hole stays: its probe never visits the hole.
        if (hole < home <= i) if hole <= i else (hole < home or home <= i):
            continue
        shard.slots[hole] = shard.slots[i]
        hole = i
    shard.slots[hole].is_taken = 0
    shard.count -= 1


@cython.final
cdef class CancelledTimers:
    """Ids of cancelled timers and handles of forgotten partitions.

    Attributes:
        cancelled_count: cancelled timers not claimed yet.
        orphan_count: timers of forgotten partitions not claimed yet.
        allocated_bytes: memory allocated, not counting this object itself.
    """

    def __dealloc__(self):
        cdef int i
        for i in range(ID_SHARDS):
            free(self.shards[i].slots)
        free(self.forgotten)

    cdef int cancel(self, int64_t position, int32_t record_index) except -1 nogil:
        cdef uint64_t h = hash_id(position, record_index)
        cdef IdShard* shard = &self.shards[shard_index(h)]
        cdef uint32_t i
        if (<uint64_t>shard.count + 1) * 10 > <uint64_t>shard.capacity * 7:
            if not self._resize(
                shard, max(shard.capacity + (shard.capacity >> 1), SHARD_CAPACITY_MIN)
            ):
                raise MemoryError("cannot allocate the ids of cancelled timers")
        i = find_slot(shard, h, position, record_index)
        if shard.slots[i].is_taken:
            return 0
        shard.slots[i] = TimerId(position, record_index, 1)
        shard.count += 1
        self.cancelled_count += 1
        return 1

    cdef bint holds(self, int64_t position, int32_t record_index) noexcept nogil:
        cdef uint64_t h = hash_id(position, record_index)
        cdef IdShard* shard = &self.shards[shard_index(h)]
        if shard.count == 0:
            return False
        return shard.slots[find_slot(shard, h, position, record_index)].is_taken != 0

    cdef bint _discard(self, int64_t position, int32_t record_index) noexcept nogil:
        cdef uint64_t h = hash_id(position, record_index)
        cdef IdShard* shard = &self.shards[shard_index(h)]
        cdef uint32_t i
        if shard.count == 0:
            return False
        i = find_slot(shard, h, position, record_index)
        if not shard.slots[i].is_taken:
            return False
        free_slot(shard, i)
        self.cancelled_count -= 1
        if shard.count == 0:
            self.allocated_bytes -= <int64_t>shard.capacity * <int64_t>sizeof(TimerId)
            free(shard.slots)
            shard.slots = NULL
            shard.capacity = 0
        elif shard.capacity > SHARD_CAPACITY_MIN and shard.count < shard.capacity // 6:
            # It is a third full then, which is far from both growing and shrinking again.
            self._resize(shard, shard.capacity >> 1)
        return True

    cdef bint _resize(self, IdShard* shard, uint32_t capacity) noexcept nogil:
        cdef IdShard grown
        cdef TimerId* entry
        cdef uint32_t i
        cdef uint64_t h
        grown.slots = <TimerId*>calloc(capacity, sizeof(TimerId))
        if grown.slots == NULL:
            return False
        grown.capacity = capacity
        grown.count = shard.count
        for i in range(shard.capacity):
            entry = &shard.slots[i]
            if entry.is_taken:
                h = hash_id(entry.position, entry.record_index)
                grown.slots[find_slot(&grown, h, entry.position, entry.record_index)] = entry[0]
        self.allocated_bytes += (<int64_t>capacity - shard.capacity) * <int64_t>sizeof(TimerId)
        free(shard.slots)
        shard[0] = grown
        return True

    cdef int forget(self, int32_t partition, int64_t timer_count) except -1 nogil:
        cdef int64_t size = (partition >> 3) + 1
        cdef uint8_t* grown
        assert 0 <= partition < PARTITION_MAX
        assert timer_count >= 0
        if size > self.forgotten_bytes:
            size = max(size, self.forgotten_bytes + (self.forgotten_bytes >> 2))
            grown = <uint8_t*>realloc(self.forgotten, size)
            if grown == NULL:
                raise MemoryError("cannot allocate the set of forgotten partitions")
            memset(grown + self.forgotten_bytes, 0, size - self.forgotten_bytes)
            self.allocated_bytes += size - self.forgotten_bytes
            self.forgotten = grown
            self.forgotten_bytes = size
        self.forgotten[partition >> 3] |= 1 << (partition & 7)
        self.orphan_count += timer_count
        return 0

    cdef bint is_forgotten(self, int32_t partition) noexcept nogil:
        if partition >> 3 >= self.forgotten_bytes:
            return False
        return self.forgotten[partition >> 3] >> (partition & 7) & 1

    cdef bint claim(
        self, int64_t position, int32_t record_index, int32_t partition
    ) noexcept nogil:
        # Check ids first: a timer that was cancelled before its partition was forgotten is not
        # counted as an orphan.
        if self.cancelled_count and self._discard(position, record_index):
            return True
        if self.forgotten_bytes and self.is_forgotten(partition):
            if self.orphan_count:
                self.orphan_count -= 1
            return True
        return False
