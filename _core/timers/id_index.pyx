"""The id index: maps a user id to its timer and, for some time after completion, to its outcome.

The ids themselves are not stored. The key of an entry is the topic id and 96 bits of a keyed hash
of the user id (SipHash-2-4 with 128 bits of output). Without the hash key, nobody can construct
colliding ids. By chance, two ids of one topic collide in one of 10^15 topics of ten million ids
each.

The index is an open-addressing hash table with linear probing, 48 bytes a slot, at most 70 % full,
without tombstones. It is split into 1024 shards by hash. Each shard grows by half on its own, so
that the broker never stalls while millions of entries are moved. Expired entries and those of
deleted topics are not found by lookups. They are dropped when their shard grows, or by
`expire_some`. An id expires by the log position of the frame that completed its timer.

A timer that was delivered is not looked up by its timer id any more. Its entry has the offset of
the delivery in place of the position of its accept frame.

Layer 0: no I/O, no clock. Used by the event loop thread.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from _core.bytes.layout cimport (
    RUN_ID_AT_COMPLETED_POS, RUN_ID_AT_HASH_HIGH, RUN_ID_AT_HASH_LOW, RUN_ID_AT_TOPIC_ID,
    RUN_ID_SIZE,
)
from _core.bytes.octets cimport load_i32, load_i64, load_u32, load_u64, store_u32, store_u64
from _core.bytes.siphash cimport load_little_endian, siphash, store_little_endian
from _core.timers.id_filter cimport FilterView, IdFilter, has_key

cdef enum:
    KEY_BYTES = 16
    NAME_BYTES_MAX = 255
    SHARD_CAPACITY_MIN = 6
    SHRINK_CAPACITY_MIN = 24     # smaller shards are not worth the work
    PARTITION_MAX = 1 << 29      # fits 32 bits with the state, and a positive int32
    TOPIC_MAX = 1 << 28          # a higher id is a bug; bounds the bitmap

    MARK_FACTOR = 0x9E3779B1     # odd, 2^32 over the golden ratio: spreads small numbers

assert sizeof(NameSlot) == 48

_STATES = {PENDING: "pending", CANCELLED: "cancelled", DELIVERED: "delivered"}


cpdef int32_t delivered_mark(int64_t accept_pos, int32_t index) noexcept nogil:
    """Return what is kept of a timer id beside the offset of its delivery.

    Args:
        accept_pos: log position of its accept frame, a multiple of 8.
        index: its index in that frame.

    Returns:
        31 bits, which are hardly ever the same for two timers of one user id.
    """
    cdef uint64_t mixed = (<uint64_t>accept_pos >> 3) + <uint64_t>index * <uint64_t>MARK_FACTOR
    return <int32_t>(mixed & 0x7FFFFFFF)


cdef inline uint32_t home_slot(uint64_t hash_high, uint32_t capacity) noexcept nogil:
    """The slot where probing begins: the low half of the word, scaled to the capacity."""
    return <uint32_t>(((hash_high & 0xFFFFFFFFULL) * capacity) >> 32)


cdef inline uint32_t slot_after(const NameShard* shard, uint32_t i) noexcept nogil:
    return i + 1 if i + 1 < shard.capacity else 0


cdef void free_slot(NameShard* shard, uint32_t hole) noexcept nogil:
    """Empty a slot, and move later entries back into the hole so that no probe ends too early."""
    cdef uint32_t i = hole
    cdef uint32_t home
    while True:
        i = slot_after(shard, i)
        if shard.slots[i].partition_state == 0:
            break
        home = home_slot(shard.slots[i].hash_high, shard.capacity)
        # An entry whose home is cyclically after the hole stays: its probe never visits the hole.
        if (hole < home <= i) if hole <= i else (hole < home or home <= i):
            continue
        shard.slots[hole] = shard.slots[i]
        hole = i
    shard.slots[hole].partition_state = 0
    shard.count -= 1


cdef NameTable* new_table() except NULL:
    cdef NameTable* table = <NameTable*>calloc(1, sizeof(NameTable))
    if table == NULL:
        raise MemoryError("cannot allocate a table of timer ids")
    return table


cdef void free_table(NameTable* table) noexcept nogil:
    cdef int i
    if table == NULL:
        return
    for i in range(NAME_SHARDS):
        free(table.shards[i].slots)
    free(table)


cdef inline int state_of(const NameSlot* slot) noexcept nogil:
    return <int>(slot.partition_state & ((1 << STATE_BITS) - 1))


@cython.final
cdef class IdIndex:
    """User ids of timers, by topic.

    Attributes:
        forget_pos: log position; ids of timers that frames below it completed have expired.
        is_whole: no id is in the runs alone.
        is_held: `end_save` must not be called: somebody compares rows with the index.
        generation: rises when a table is dropped. What was read from a run before is out of date.
    """

    def __cinit__(self, bytes key not None):
        """Start empty.

        Args:
            key: 16 secret bytes, the key of the hash.

        Raises:
            ValueError: `key` does not have 16 bytes.
        """
        cdef const uint8_t* p = key
        if len(key) != KEY_BYTES:
            raise ValueError(f"the key has {len(key)} bytes, expected {KEY_BYTES}")
        self.key[0] = load_little_endian(p, 8)
        self.key[1] = load_little_endian(p + 8, 8)
        self.now = new_table()
        self.is_whole = True
        self.filters = []

    def __dealloc__(self):
        free_table(self.now)
        free_table(self.before)
        free(self.views)
        free(self.forgotten)

    @property
    def count(self):
        """Number of entries, including expired ones that are not dropped yet.

        If some are in the runs alone, those that are also in memory are counted twice.
        """
        cdef int64_t before = 0 if self.before == NULL else self.before.count
        return self.now.count + before + self.saved_count

    @property
    def completed_count(self):
        """Those of them whose timers were delivered or cancelled."""
        cdef int64_t before = 0 if self.before == NULL else self.before.completed_count
        return self.now.completed_count + before + self.saved_completed

    cdef NameKey _key_of(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size
    ) noexcept nogil:
        cdef uint8_t message[4 + NAME_BYTES_MAX]
        cdef uint64_t words[2]
        # The topic is also in the key. Hashing it spreads equal ids of many topics over the table.
        store_little_endian(message, <uint32_t>topic_id, 4)
        memcpy(message + 4, name, size)
        siphash(self.key, message, 4 + size, words)
        return NameKey(words[0], <uint32_t>words[1], topic_id)

    cdef NameSlot* _slot_in(self, NameTable* table, const NameKey* key) noexcept nogil:
        """The slot that holds the key, or the free slot for it; NULL if the shard has no slots."""
        cdef NameShard* shard = &table.shards[key.hash_high >> (64 - SHARD_BITS)]
        cdef NameSlot* slot
        cdef uint32_t i
        if shard.capacity == 0:
            return NULL
        i = home_slot(key.hash_high, shard.capacity)
        while True:
            slot = &shard.slots[i]
            if slot.partition_state == 0 or (
                slot.hash_high == key.hash_high
                and slot.hash_low == key.hash_low
                and slot.topic_id == key.topic_id
            ):
                return slot
            i = slot_after(shard, i)

    cdef const NameSlot* _known_slot(self, const NameKey* key) noexcept nogil:
        """The newest entry of a key in memory; NULL if there is none. It may be an absent one."""
        cdef NameSlot* slot = self._slot_in(self.now, key)
        if slot != NULL and slot.partition_state != 0:
            return slot
        if self.before == NULL:
            return NULL
        slot = self._slot_in(self.before, key)
        return NULL if slot == NULL or slot.partition_state == 0 else slot

    cdef bint holds(self, const NameKey* key) noexcept nogil:
        return self._known_slot(key) != NULL

    cdef bint _is_topic_forgotten(self, int32_t topic_id) noexcept nogil:
        if topic_id >> 3 >= self.forgotten_bytes:
            return False
        return self.forgotten[topic_id >> 3] >> (topic_id & 7) & 1

    cdef bint _is_dead(self, const NameSlot* slot) noexcept nogil:
        return (
            slot.completed_pos != 0 and slot.completed_pos <= self.forget_pos
        ) or self._is_topic_forgotten(slot.topic_id)

    # Size

    cdef int _make_room(self, NameShard* shard) except -1 nogil:
        """Make room for one more entry: drop dead entries, or grow. May move entries."""
        cdef uint32_t i, alive = 0
        cdef uint32_t capacity = shard.capacity
        if (<uint64_t>shard.count + 1) * 10 <= <uint64_t>capacity * 7:
            return 0
        for i in range(capacity):
            if shard.slots[i].partition_state != 0:
                alive += not self._is_dead(&shard.slots[i])
        # Grow a shard that stays half full, or the same work would be due again too soon.
        if (<uint64_t>alive + 1) * 2 > capacity:
            capacity = max(capacity + (capacity >> 1), SHARD_CAPACITY_MIN)
        if not self._resize(shard, capacity):
            raise MemoryError("cannot allocate timer ids")
        return 0

    cdef bint _resize(self, NameShard* shard, uint32_t capacity) noexcept nogil:
        """Move the live entries of a shard of `now` to a new array. False if there is no memory;
        nothing has changed.
        """
        cdef NameShard moved
        cdef NameSlot* slot
        cdef uint32_t i, at
        moved.slots = <NameSlot*>calloc(capacity, sizeof(NameSlot))
        if moved.slots == NULL:
            return False
        moved.capacity = capacity
        moved.count = 0
        for i in range(shard.capacity):
            slot = &shard.slots[i]
            if slot.partition_state == 0:
                continue
            if self._is_dead(slot):
                self._count_slot(slot, -1)
                continue
            at = home_slot(slot.hash_high, capacity)
            while moved.slots[at].partition_state != 0:
                at = slot_after(&moved, at)
            moved.slots[at] = slot[0]
            moved.count += 1
        self.now.count -= shard.count - moved.count
        self.now.slot_count += <int64_t>capacity - shard.capacity
        free(shard.slots)
        shard[0] = moved
        return True

    # Entries

    cdef void _count_slot(self, const NameSlot* slot, int sign) noexcept nogil:
        """Count what a slot of `now` holds: -1 before it changes, 1 after it."""
        if slot.completed_pos:
            self.now.completed_count += sign

    cdef NameSlot* open_slot(self, const NameKey* key) except NULL nogil:
        cdef NameShard* shard = &self.now.shards[key.hash_high >> (64 - SHARD_BITS)]
        cdef NameSlot* slot = self._slot_in(self.now, key)
        if slot == NULL or slot.partition_state == 0:
            self._make_room(shard)
            slot = self._slot_in(self.now, key)
            shard.count += 1
            self.now.count += 1
            memset(slot, 0, sizeof(NameSlot))
        else:
            self._count_slot(slot, -1)
        slot.hash_high = key.hash_high
        slot.hash_low = key.hash_low
        slot.topic_id = key.topic_id
        return slot

    cdef void close_slot(self, const NameSlot* slot) noexcept nogil:
        self._count_slot(slot, 1)
        self.touched = slot

    cdef bint find(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size, NamedTimer* out
    ) noexcept nogil:
        cdef NameKey key = self._key_of(topic_id, name, size)
        cdef const NameSlot* slot = self._known_slot(&key)
        if slot == NULL or state_of(slot) == 0 or self._is_dead(slot):
            return False
        out.position = slot.position
        out.record_index = slot.record_index
        out.partition = partition_of(slot)
        out.due_ms = due_ms_of(slot)
        out.level = level_of(slot)
        out.completed_pos = slot.completed_pos
        out.state = state_of(slot)
        out.recurs = slot.partition_state >> 31
        return True

    cdef bint _may_be_saved(self, const NameKey* key) noexcept nogil:
        """Whether a run may have the key."""
        cdef Py_ssize_t i
        for i in range(self.view_count):
            if has_key(&self.views[i], key.hash_high, key.hash_low):
                return True
        return False

    cdef bint is_certain(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size
    ) noexcept nogil:
        cdef NameKey key
        if self.is_whole or self._is_topic_forgotten(topic_id):
            return True
        key = self._key_of(topic_id, name, size)
        return self.holds(&key) or not self._may_be_saved(&key)

    cdef bytes key_bytes(self, int32_t topic_id, const uint8_t* name, Py_ssize_t size):
        cdef NameKey key = self._key_of(topic_id, name, size)
        cdef uint8_t packed[RUN_ID_AT_TOPIC_ID + 4]
        store_u64(packed + RUN_ID_AT_HASH_HIGH, key.hash_high)
        store_u32(packed + RUN_ID_AT_HASH_LOW, key.hash_low)
        store_u32(packed + RUN_ID_AT_TOPIC_ID, <uint32_t>key.topic_id)
        return packed[:RUN_ID_AT_TOPIC_ID + 4]

    cdef int note_absent(self, const NameKey* key) except -1 nogil:
        cdef NameSlot* slot = self.open_slot(key)
        slot.partition_state = ABSENT
        self.close_slot(slot)
        return 0

    cdef int put(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size, const NamedTimer* timer
    ) except -1 nogil:
        cdef NameKey key
        cdef NameSlot* slot
        assert 1 <= size <= NAME_BYTES_MAX
        assert topic_id >= 0
        assert 0 <= timer.partition < PARTITION_MAX
        assert PENDING <= timer.state <= DELIVERED
        assert (timer.state == PENDING) == (timer.completed_pos == 0)
        key = self._key_of(topic_id, name, size)
        slot = self.open_slot(&key)
        slot.position = timer.position
        slot.due_level = due_level_of(timer.due_ms, timer.level)
        slot.completed_pos = timer.completed_pos
        slot.record_index = timer.record_index
        slot.partition_state = (
            <uint32_t>timer.recurs << 31 | <uint32_t>timer.partition << STATE_BITS
            | <uint32_t>timer.state
        )
        self.close_slot(slot)
        return 0

    cdef int complete(
        self, int32_t topic_id, const uint8_t* name, Py_ssize_t size, const NamedTimer* done,
        int64_t offset
    ) except -1 nogil:
        cdef NameKey key
        cdef const NameSlot* known
        cdef NameSlot* slot
        cdef NameSlot found
        assert 1 <= size <= NAME_BYTES_MAX
        assert done.state == CANCELLED or done.state == DELIVERED
        assert done.completed_pos > 0
        key = self._key_of(topic_id, name, size)
        known = self._known_slot(&key)
        memset(&found, 0, sizeof(found))
        if known != NULL:
            if known.position != done.position or known.record_index != done.record_index:
                return 0
            if state_of(known) == DELIVERED or state_of(known) == 0:
                return 0  # its position is an offset, or no id of that name was ever saved
            found = known[0]
        elif self.is_whole or not self._may_be_saved(&key):
            return 0
        else:
            # Its row is in a run. It names this timer: what replaces a timer completes it first.
            found.position = done.position
            found.record_index = done.record_index
            found.due_level = due_level_of(done.due_ms, 0)
            found.partition_state = <uint32_t>done.partition << STATE_BITS
        if done.state == DELIVERED:
            found.position = offset
            found.record_index = delivered_mark(done.position, done.record_index)
        slot = self.open_slot(&key)
        slot.position = found.position
        slot.record_index = found.record_index
        slot.due_level = found.due_level
        slot.completed_pos = done.completed_pos
        slot.partition_state = (
            found.partition_state >> STATE_BITS << STATE_BITS | <uint32_t>done.state
        )
        self.close_slot(slot)
        return 1

    cdef int forget_topic(self, int32_t topic_id) except -1 nogil:
        cdef int64_t size = (topic_id >> 3) + 1
        cdef uint8_t* grown
        assert 0 <= topic_id < TOPIC_MAX
        if size > self.forgotten_bytes:
            size = max(size, self.forgotten_bytes + (self.forgotten_bytes >> 2))
            grown = <uint8_t*>realloc(self.forgotten, size)
            if grown == NULL:
                raise MemoryError("cannot allocate the set of deleted topics")
            memset(grown + self.forgotten_bytes, 0, size - self.forgotten_bytes)
            self.forgotten = grown
            self.forgotten_bytes = size
        self.forgotten[topic_id >> 3] |= 1 << (topic_id & 7)
        return 0

    # What the runs have

    def begin_save(self):
        """Begin a new table if there is one: the checkpoint that begins saves what this one has.

        Returns:
            False if the table of an earlier checkpoint is still there.
        """
        if self.before != NULL:
            return False
        self.before, self.now = self.now, new_table()
        self.cursor_shard = self.cursor_slot = 0
        self.touched = NULL
        return True

    def end_save(self, list filters not None, int64_t rows, int64_t completed_rows):
        """Drop the table of the last `begin_save`: the runs have all that it has.

        Args:
            filters: those of all runs of ids.
            rows, completed_rows: what the runs have, and how many of these of completed timers.
        """
        assert not self.is_held
        self.note_saved(filters, rows, completed_rows)
        free_table(self.before)
        self.before = NULL
        self.generation += 1

    def note_saved(self, list filters not None, int64_t rows, int64_t completed_rows):
        """Know the runs that have all ids but those in memory; the arguments of `end_save`."""
        cdef Py_ssize_t i
        cdef FilterView* views = <FilterView*>calloc(len(filters) + 1, sizeof(FilterView))
        if views == NULL:
            raise MemoryError("cannot allocate the filters of timer ids")
        for i in range(len(filters)):
            views[i] = (<IdFilter?>filters[i]).view
        free(self.views)
        self.views, self.view_count = views, len(filters)
        self.filters = filters  # they own the words
        self.saved_count, self.saved_completed = rows, completed_rows
        self.is_whole = False

    def become_whole(self):
        """Forget the runs: all that they have is in memory."""
        self.view_count = self.saved_count = self.saved_completed = 0
        self.filters = []
        self.is_whole = True

    def hold(self, bint is_held):
        """Keep all changes from now on in memory, or no longer."""
        self.is_held = is_held

    def uncertain(self, int32_t topic_id, bytes user_id not None):
        """Return the key of an id if a run must be read to know it, 16 bytes; else None.

        Args:
            topic_id: topic of the id.
            user_id: 1 to 255 bytes.
        """
        cdef const uint8_t* name = <const uint8_t*><const char*>user_id
        if self.is_certain(topic_id, name, len(user_id)):
            return None
        return self.key_bytes(topic_id, name, len(user_id))

    def named(self, int32_t topic_id, bytes user_id not None):
        """Look up the timer that an id names.

        Args:
            topic_id: topic of the id.
            user_id: 1 to 255 bytes.

        Returns:
            (state, due in epoch ms, partition handle, position, index), or None if the id is
            unknown or has expired: as `named_timer`, but for the handle.
        """
        cdef NamedTimer known
        if not self.find(topic_id, <const uint8_t*><const char*>user_id, len(user_id), &known):
            return None
        return (
            _STATES[known.state], known.due_ms, known.partition, known.position,
            known.record_index,
        )

    cdef bint _is_current(self, const NameSlot* slot, const uint8_t* row) noexcept nogil:
        """Whether a row of the runs says what is known now, of a completed timer."""
        cdef int64_t completed_pos = load_i64(row + RUN_ID_AT_COMPLETED_POS)
        if completed_pos <= self.forget_pos or completed_pos == 0:
            return False
        if slot == NULL:
            return not self.is_whole and not self._is_topic_forgotten(
                load_i32(row + RUN_ID_AT_TOPIC_ID)
            )
        return completed_pos == slot.completed_pos and not self._is_dead(slot)

    def current_rows(self, bytes rows not None):
        """Return the rows of an id run that say what the index says now, of completed timers only.

        Args:
            rows: whole rows, as `RunMerge.take` returns them. If some ids are in the runs alone,
                the index was held when the runs were opened.
        """
        cdef const uint8_t* row = <const uint8_t*><const char*>rows
        cdef const uint8_t* end = row + len(rows)
        cdef bytes found = PyBytes_FromStringAndSize(NULL, len(rows))
        cdef uint8_t* out = <uint8_t*><char*>found
        cdef const NameSlot* slot
        cdef NameKey key
        cdef Py_ssize_t used = 0
        with nogil:
            while row + RUN_ID_SIZE <= end:
                key = NameKey(
                    load_u64(row + RUN_ID_AT_HASH_HIGH), load_u32(row + RUN_ID_AT_HASH_LOW),
                    load_i32(row + RUN_ID_AT_TOPIC_ID),
                )
                slot = self._known_slot(&key)
                if self._is_current(slot, row):
                    memcpy(out + used, row, RUN_ID_SIZE)
                    used += RUN_ID_SIZE
                row += RUN_ID_SIZE
        return found[:used]

    def forget_below(self, int64_t pos):
        """Let the ids of timers expire that frames below log position `pos` completed.

        A lower position than before changes nothing. O(1).
        """
        self.forget_pos = max(self.forget_pos, pos)

    def expire_some(self, Py_ssize_t budget):
        """Examine the next `budget` slots, drop expired entries, and return their number."""
        cdef int64_t count_before = self.now.count
        cdef NameShard* shard
        cdef int shards_left = NAME_SHARDS
        while budget > 0 and shards_left > 0:
            shard = &self.now.shards[self.cursor_shard]
            while budget > 0 and self.cursor_slot < shard.capacity:
                budget -= 1
                if shard.slots[self.cursor_slot].partition_state != 0 and self._is_dead(
                    &shard.slots[self.cursor_slot]
                ):
                    self._count_slot(&shard.slots[self.cursor_slot], -1)
                    free_slot(shard, self.cursor_slot)    # another entry may move to this slot
                    self.now.count -= 1
                else:
                    self.cursor_slot += 1
            if self.cursor_slot >= shard.capacity:
                self._leave_shard(shard)
                shards_left -= 1
        return count_before - self.now.count

    cdef void _leave_shard(self, NameShard* shard) noexcept nogil:
        """Shrink the shard if it is mostly unused, and advance to the next shard."""
        if shard.capacity > 0 and shard.count == 0:
            self.now.slot_count -= shard.capacity
            free(shard.slots)
            shard.slots = NULL
            shard.capacity = 0
        elif shard.capacity >= SHRINK_CAPACITY_MIN and shard.count < shard.capacity >> 2:
            self._resize(shard, shard.capacity >> 1)
        self.cursor_shard = (self.cursor_shard + 1) & (NAME_SHARDS - 1)
        self.cursor_slot = 0

    @property
    def memory_bytes(self):
        """Memory of the tables and filters, bytes."""
        cdef int64_t slots = self.now.slot_count
        cdef int64_t tables = 1
        if self.before != NULL:
            slots += self.before.slot_count
            tables = 2
        return (
            slots * <int64_t>sizeof(NameSlot) + tables * NAME_SHARDS * <int64_t>sizeof(NameShard)
            + self.forgotten_bytes + sum([(<IdFilter>each).size for each in self.filters])
        )
