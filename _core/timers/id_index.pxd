from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from _core.timers.id_filter cimport FilterView

# States of a named timer.
cpdef enum:
    PENDING = 1
    CANCELLED = 2
    DELIVERED = 3

cdef enum:
    SHARD_BITS = 10
    NAME_SHARDS = 1 << SHARD_BITS
    STATE_BITS = 2            # low bits of NameSlot.partition_state
    LEVEL_BITS = 8            # high bits of NameSlot.due_level
    ABSENT = 1 << 31          # NameSlot.partition_state of an id that no run has

cdef struct NamedTimer:
    int64_t position          # of its accept frame; once delivered, the offset; -1: unknown
    int32_t record_index      # once delivered: its `delivered_mark`
    int32_t partition         # in-process handle, 0 <= partition < 2^29
    int64_t due_ms
    int64_t completed_pos     # log position after the frame that completed it; 0 while pending
    int32_t state
    int32_t level             # delay level, 0: none; of a pending timer only
    bint recurs               # as far as is known: not of one that a start found in a run

# Tells the timers of an id apart once they are delivered, 0 to 2^31 - 1.
cpdef int32_t delivered_mark(int64_t accept_pos, int32_t index) noexcept nogil

cdef struct NameSlot:         # 48 bytes
    uint64_t hash_high
    uint32_t hash_low
    int32_t topic_id
    int64_t position          # as in NamedTimer
    int64_t due_level         # due_ms, and the delay level in the highest 8 bits
    int64_t completed_pos
    int32_t record_index
    uint32_t partition_state  # recurs << 31 | partition << 2 | state; 0 if the slot is free

# The in-process handle of the partition of a slot.
cdef inline int32_t partition_of(const NameSlot* slot) noexcept nogil:
    return <int32_t>((slot.partition_state & 0x7FFFFFFF) >> STATE_BITS)

cdef inline int64_t due_ms_of(const NameSlot* slot) noexcept nogil:
    return <int64_t>(<uint64_t>slot.due_level << LEVEL_BITS) >> LEVEL_BITS

cdef inline int level_of(const NameSlot* slot) noexcept nogil:
    return <int>(<uint64_t>slot.due_level >> (64 - LEVEL_BITS))

# A due time has 56 bits, in which it may be negative: of a record that was delivered at once.
cdef inline int64_t due_level_of(int64_t due_ms, int level) noexcept nogil:
    cdef int64_t end = <int64_t>1 << (63 - LEVEL_BITS)
    cdef uint64_t due = <uint64_t>max(min(due_ms, end - 1), -end)
    return <int64_t>(<uint64_t>level << (64 - LEVEL_BITS) | due << LEVEL_BITS >> LEVEL_BITS)

cdef struct NameShard:
    NameSlot* slots
    uint32_t capacity
    uint32_t count

# A lookup key: the topic and the hashed name.
cdef struct NameKey:
    uint64_t hash_high
    uint32_t hash_low
    int32_t topic_id

cdef struct NameTable:
    NameShard shards[NAME_SHARDS]
    int64_t count
    int64_t completed_count
    int64_t slot_count

cdef class IdIndex:
    cdef uint64_t key[2]
    cdef readonly int64_t forget_pos     # timers that were completed below it are forgotten
    cdef NameTable* now
    cdef NameTable* before
    cdef readonly bint is_whole
    cdef readonly bint is_held
    cdef readonly int64_t generation
    cdef list filters
    cdef FilterView* views               # those of the filters
    cdef Py_ssize_t view_count
    cdef int64_t saved_count
    cdef int64_t saved_completed
    cdef uint8_t* forgotten              # one bit per topic id
    cdef int64_t forgotten_bytes
    cdef const NameSlot* touched         # slot of the last put or successful complete
    cdef uint32_t cursor_shard
    cdef uint32_t cursor_slot
    # In all of these functions the id has `size` bytes, 1 to 255, and topic_id >= 0.
    # Whether the id is known: neither expired nor of a forgotten topic. Of an id that is not
    # certain, the answer may be wrong.
    cdef bint find(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size, NamedTimer* out
    ) noexcept nogil
    # Whether `find` needs no run to be read.
    cdef bint is_certain(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size
    ) noexcept nogil
    # What a row of the id begins with, 16 bytes.
    cdef bytes key_bytes(self, int32_t topic_id, const uint8_t* name, Py_ssize_t size)
    # Inserts or overwrites.
    cdef int put(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size, const NamedTimer* timer
    ) except -1 nogil
    # Notes that a timer was cancelled or delivered, as `done` says, if the id still names that
    # timer and it was not delivered before. Returns 1 if so. `offset`: of the delivery.
    cdef int complete(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size, const NamedTimer* done,
        int64_t offset
    ) except -1 nogil
    # Hides all ids of a topic for good: topic ids are not reused.
    cdef int forget_topic(self, int32_t topic_id) except -1 nogil
    # Whether an entry of the key is in memory, also one of a dead or absent id.
    cdef bint holds(self, const NameKey* key) noexcept nogil
    # The slot of a key, made if there is none. The caller fills it at once and calls close_slot.
    cdef NameSlot* open_slot(self, const NameKey* key) except NULL nogil
    cdef void close_slot(self, const NameSlot* slot) noexcept nogil
    # Notes that no run has an id, whatever the filters say.
    cdef int note_absent(self, const NameKey* key) except -1 nogil
    cdef NameKey _key_of(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size
    ) noexcept nogil
    cdef NameSlot* _slot_in(self, NameTable* table, const NameKey* key) noexcept nogil
    cdef const NameSlot* _known_slot(self, const NameKey* key) noexcept nogil
    cdef bint _may_be_saved(self, const NameKey* key) noexcept nogil
    cdef bint _is_current(self, const NameSlot* slot, const uint8_t* row) noexcept nogil
    cdef void _count_slot(self, const NameSlot* slot, int sign) noexcept nogil
    cdef bint _is_dead(self, const NameSlot* slot) noexcept nogil
    cdef bint _is_topic_forgotten(self, int32_t topic_id) noexcept nogil
    cdef int _make_room(self, NameShard* shard) except -1 nogil
    cdef bint _resize(self, NameShard* shard, uint32_t capacity) noexcept nogil
    cdef void _leave_shard(self, NameShard* shard) noexcept nogil
