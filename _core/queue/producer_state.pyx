"""The last batches of idempotent producers, their encoding, and who of them is idle longest.

Each partition has a dict of its producers. `ProducerTable` links those of all partitions in the
order of their last batches, so that the one that is idle longest is found and forgotten at once,
however many there are.

Layer 0: no I/O.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport qsort

from _core.bytes.buffer cimport Buf, release, reserve
from _core.bytes.octets cimport (
    load_i16,
    load_i32,
    load_i64,
    load_u32,
    store_u16,
    store_u32,
    store_u64,
)


cdef class ProducerState:
    """The last batches of one producer on one partition, which Kafka's idempotence requires.

    Attributes:
        epoch: producer epoch.
        last_ms: store time of its last batch, epoch ms.
        last_pos: log position after the frame of that batch.
    """

    @property
    def last_sequence(self):
        """The last sequence number of its last batch."""
        return self.batches[self.newest].last


cdef bytes encode_producers(dict producers, int32_t index):
    """Encode the sequences of a partition's producers as in a carry frame (docs/FORMAT.md)."""
    cdef Buf out
    cdef uint8_t* p
    cdef ProducerState state
    cdef Sequenced* batch
    cdef int i
    out.data = NULL
    out.size = out.capacity = 0
    try:
        p = reserve(&out, SEQUENCES_HEAD_SIZE)
        store_u32(p, index)
        store_u32(p + 4, len(producers))
        out.size = SEQUENCES_HEAD_SIZE
        for producer_id, known in producers.items():
            state = <ProducerState>known
            p = reserve(&out, PRODUCER_SIZE + state.count * SEQUENCE_SIZE)
            store_u64(p, <int64_t>producer_id)
            store_u16(p + 8, state.epoch)
            p[10] = state.count
            p[11] = 0
            store_u64(p + 12, state.last_pos)
            p += PRODUCER_SIZE
            for i in range(state.count):
                # Oldest first. In a full ring, the oldest follows the newest.
                batch = &state.batches[
                    (state.newest + 1 + REMEMBERED_BATCHES - state.count + i)
                    % REMEMBERED_BATCHES
                ]
                store_u32(p, batch.first)
                store_u32(p + 4, batch.last)
                store_u64(p + 8, batch.answer)
                store_u64(p + 16, batch.store_time_ms)
                p += SEQUENCE_SIZE
            out.size += PRODUCER_SIZE + state.count * SEQUENCE_SIZE
        return PyBytes_FromStringAndSize(<const char*>out.data, out.size)
    finally:
        release(&out)


cdef struct Placed:
    int64_t last_pos
    PyObject* state


cdef int _compare(const void* one, const void* other) noexcept nogil:
    cdef int64_t first = (<const Placed*>one).last_pos
    cdef int64_t second = (<const Placed*>other).last_pos
    return (first > second) - (first < second)


cdef class ProducerTable:
    """The producers of all partitions, in the order of their last batches.

    Attributes:
        count: producers, each counted on each of its partitions.
        count_max: before one more is noted, the one that is idle longest is forgotten.
    """

    def __cinit__(self):
        self.partitions = {}
        self.count_max = INT64_MAX
        self.is_sorted = True

    cdef int note(
        self, dict producers, int32_t handle, int64_t producer_id, int16_t epoch,
        const Sequenced* batch
    ) except -1:
        """Note a batch of a producer of the partition with this handle and these producers."""
        cdef ProducerState state = <ProducerState>producers.get(producer_id)
        if state is None:
            while self.count >= self.count_max:
                self._remove(self._first())
            state = self._add(producers, handle, producer_id)
            state.epoch = epoch
        else:
            self._unlink(state)
            if epoch != state.epoch:
                state.epoch = epoch
                state.count = 0
                state.newest = -1
        _append(state, batch)
        self._link(state)
        return 0

    cdef int restore(
        self, dict producers, int32_t handle, bytes payload, int64_t end_pos
    ) except -1:
        """Restore what `encode_producers` encoded; it replaces known producers.

        It forgets none: the next `note` does, once all are restored.
        """
        cdef const uint8_t* p = <const uint8_t*><const char*>payload
        cdef Py_ssize_t left = len(payload)
        cdef Sequenced batch
        cdef ProducerState state
        cdef int64_t producer_id, last_pos, count
        cdef int i, batches
        cdef bint is_new
        if left < SEQUENCES_HEAD_SIZE:
            raise ValueError(
                f"producer state has {left} bytes, expected at least {SEQUENCES_HEAD_SIZE}"
            )
        count = load_u32(p + 4)
        p += SEQUENCES_HEAD_SIZE
        left -= SEQUENCES_HEAD_SIZE
        while count:
            if left < PRODUCER_SIZE or left < PRODUCER_SIZE + p[10] * SEQUENCE_SIZE:
                raise ValueError(f"producer state is truncated: {count} producers in {left} bytes")
            batches = p[10]
            producer_id = load_i64(p)
            last_pos = load_i64(p + 12)
            state = <ProducerState>producers.get(producer_id)
            # What a broker carries for itself keeps its place, so that nothing must be sorted.
            if state is not None and (not batches or state.last_pos != last_pos):
                self._remove(state)
                state = None
            if batches:
                is_new = state is None
                if is_new:
                    state = self._add(producers, handle, producer_id)
                state.count = 0
                state.newest = -1
                state.epoch = load_i16(p + 8)
                for i in range(batches):
                    batch.first = load_i32(p + PRODUCER_SIZE + i * SEQUENCE_SIZE)
                    batch.last = load_i32(p + PRODUCER_SIZE + i * SEQUENCE_SIZE + 4)
                    batch.answer = load_i64(p + PRODUCER_SIZE + i * SEQUENCE_SIZE + 8)
                    batch.store_time_ms = load_i64(p + PRODUCER_SIZE + i * SEQUENCE_SIZE + 16)
                    batch.end_pos = end_pos
                    _append(state, &batch)
                state.last_pos = last_pos
                if is_new:
                    self._link(state)
            p += PRODUCER_SIZE + batches * SEQUENCE_SIZE
            left -= PRODUCER_SIZE + batches * SEQUENCE_SIZE
            count -= 1
        if left:
            raise ValueError(f"{left} bytes after the last producer")
        return 0

    @property
    def oldest_pos(self):
        """Log position after the last batch of the one that is idle longest.

        INT64_MAX if there is none.
        """
        return INT64_MAX if self.oldest == NULL else self._first().last_pos

    @property
    def oldest_handle(self):
        """The handle of its partition; -1 if there is none."""
        return -1 if self.oldest == NULL else self._first().handle

    def forget_below(self, int64_t pos, int64_t count_max):
        """Forget producers whose last batch ends at or below a log position, longest idle first.

        Args:
            pos: log position.
            count_max: forget at most this many.

        Returns:
            How many were forgotten. O(that many), after those that a start restores are sorted.
        """
        cdef int64_t forgotten = 0
        cdef ProducerState state
        while forgotten < count_max and self.oldest != NULL:
            state = self._first()
            if state.last_pos > pos:
                break
            self._remove(state)
            forgotten += 1
        return forgotten

    def forget_partition(self, int32_t handle):
        """Forget the producers of a partition that is deleted. O(producers)."""
        cdef dict producers = self.partitions.get(handle)
        if producers is not None:
            for state in list(producers.values()):
                self._remove(<ProducerState>state)

    cdef ProducerState _add(self, dict producers, int32_t handle, int64_t producer_id):
        """Add a producer without batches; `_link` it next."""
        cdef ProducerState state = ProducerState()
        state.newest = -1
        state.producer_id = producer_id
        state.handle = handle
        if not producers:
            self.partitions[handle] = producers
        producers[producer_id] = state
        self.count += 1
        return state

    cdef int _remove(self, ProducerState state) except -1:
        cdef dict producers = <dict>self.partitions[state.handle]
        self._unlink(state)
        del producers[state.producer_id]
        if not producers:
            del self.partitions[state.handle]
        self.count -= 1
        return 0

    cdef void _link(self, ProducerState state) noexcept:
        """Make the producer the newest. It is kept alive by the dict of its partition."""
        if self.newest != NULL:
            if (<ProducerState>self.newest).last_pos > state.last_pos:
                self.is_sorted = False
            (<ProducerState>self.newest).newer = <PyObject*>state
        else:
            self.oldest = <PyObject*>state
        state.older = self.newest
        state.newer = NULL
        self.newest = <PyObject*>state

    cdef void _unlink(self, ProducerState state) noexcept:
        if state.older != NULL:
            (<ProducerState>state.older).newer = state.newer
        else:
            self.oldest = state.newer
        if state.newer != NULL:
            (<ProducerState>state.newer).older = state.older
        else:
            self.newest = state.older
        state.older = state.newer = NULL

    cdef ProducerState _first(self):
        """The producer that is idle longest. REQUIRES: there is one."""
        if not self.is_sorted:
            self._sort()
        return <ProducerState>self.oldest

    cdef int _sort(self) except -1:
        """Sort after a restore, in which the producers of one partition follow another's."""
        cdef Placed* all = <Placed*>PyMem_Malloc(self.count * sizeof(Placed))
        cdef PyObject* each = self.oldest
        cdef int64_t i, count = self.count
        if all == NULL:
            raise MemoryError
        for i in range(count):
            all[i].state = each
            all[i].last_pos = (<ProducerState>each).last_pos
            each = (<ProducerState>each).newer
        qsort(all, count, sizeof(Placed), &_compare)
        self.oldest = self.newest = NULL
        for i in range(count):
            self._link(<ProducerState>all[i].state)
        PyMem_Free(all)
        self.is_sorted = True
        return 0


cdef void _append(ProducerState state, const Sequenced* batch) noexcept:
    """Remember a batch of a producer, and forget the oldest of too many."""
    state.newest = (state.newest + 1) % REMEMBERED_BATCHES
    state.batches[state.newest] = batch[0]
    if state.count < REMEMBERED_BATCHES:
        state.count += 1
    state.last_ms = batch.store_time_ms
    state.last_pos = batch.end_pos
