"""Loads rows of merged runs into the due queue and the id index, with the result of a replay.

A row has a topic id and a partition index; both are mapped to the partition's handle. Pending
timers are loaded in order of arrival, which keeps each leaf of the tree in order.

Layer 0: no I/O, no clock. Used by the event loop thread.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc

from _core.timers.due_queue cimport DueQueue, Timer
from _core.timers.id_index cimport IdIndex, NameKey
from _core.timers.moved_frames cimport MovedFrames
from _core.bytes.layout cimport *
from _core.bytes.octets cimport load_i32, load_i64, load_u32, load_u64
from _core.state.level_queues cimport LEVELS_MAX, LevelQueues
from _core.state.partition_rows cimport PENDING_ROW_SIZE
from _core.state.id_rows cimport name_key_of, put_row
from _core.state.projections cimport Projections

cdef enum:
    NO_HANDLE = -1


@cython.final
cdef class RunLoader:
    """Loads the rows of complete merges. The topics must exist already.

    Attributes:
        timers: number of timers loaded.
        ids: number of ids loaded.
    """

    cdef readonly int64_t timers
    cdef readonly int64_t ids
    cdef Projections projections
    cdef DueQueue due
    cdef MovedFrames moved
    cdef IdIndex index
    cdef LevelQueues levels
    cdef int32_t* topic_ids       # ascending
    cdef int32_t* firsts          # start of each topic's handles in `handles`, and their end
    cdef int32_t* handles
    cdef Py_ssize_t topic_count
    cdef Py_ssize_t last_topic    # result of the previous search

    def __cinit__(self, Projections projections not None):
        """Load into `projections`. Their topics must not change during the load."""
        cdef Py_ssize_t i = 0, used = 0
        topics = sorted(projections.topics_by_id.items())
        total = sum([len(topic.partitions) for _, topic in topics])
        self.projections = projections
        self.due = projections.due
        self.moved = projections.moved
        self.index = projections.ids
        self.levels = projections.levels
        self.topic_ids = <int32_t*>malloc((len(topics) + 1) * sizeof(int32_t))
        self.firsts = <int32_t*>malloc((len(topics) + 1) * sizeof(int32_t))
        self.handles = <int32_t*>malloc((total + 1) * sizeof(int32_t))
        if self.topic_ids == NULL or self.firsts == NULL or self.handles == NULL:
            raise MemoryError("cannot allocate the table of partitions")
        for topic_id, topic in topics:
            self.topic_ids[i] = topic_id
            self.firsts[i] = <int32_t>used
            for partition in topic.partitions:
                self.handles[used] = partition.handle
                used += 1
            i += 1
        self.firsts[i] = <int32_t>used
        self.topic_count = i

    def __dealloc__(self):
        free(self.topic_ids)
        free(self.firsts)
        free(self.handles)

    cdef int32_t _find_handle(self, int32_t topic_id, int32_t partition) noexcept nogil:
        """The handle of a partition, NO_HANDLE if it does not exist. REQUIRES: partition >= 0."""
        cdef Py_ssize_t low = 0, high = self.topic_count, middle
        if self.last_topic >= high or self.topic_ids[self.last_topic] != topic_id:
            while low < high:
                middle = (low + high) // 2
                if self.topic_ids[middle] < topic_id:
                    low = middle + 1
                else:
                    high = middle
            if low == self.topic_count or self.topic_ids[low] != topic_id:
                return NO_HANDLE
            self.last_topic = low
        low = self.firsts[self.last_topic]
        if partition >= self.firsts[self.last_topic + 1] - low:
            return NO_HANDLE
        return self.handles[low + partition]

    cdef bint _read(self, const uint8_t* row, Timer* timer) except -1 nogil:
        """Read a pending timer, and note where its record is. False: its partition is gone."""
        cdef int64_t body_pos
        timer.due_ms = load_i64(row + RUN_TIMER_AT_DUE)
        timer.position = load_i64(row + RUN_TIMER_AT_ACCEPT_POS)
        timer.record_index = load_i32(row + RUN_TIMER_AT_INDEX)
        timer.partition = self._find_handle(
            load_i32(row + RUN_TIMER_AT_TOPIC_ID), load_i32(row + RUN_TIMER_AT_PARTITION)
        )
        if timer.partition == NO_HANDLE:
            return False
        self.timers += 1
        body_pos = load_i64(row + RUN_TIMER_AT_BODY_POS)
        if body_pos != timer.position:
            with gil:
                self.moved.put_saved(timer.position, body_pos)
        return True

    def load_timers(self, bytes rows not None):
        """Push the timers of a block.

        Args:
            rows: pending timers, as `RunMerge.take` returns them in a whole merge.

        Raises:
            MemoryError: some of the timers are in the queue.
        """
        cdef const uint8_t* row = <const uint8_t*><const char*>rows
        cdef const uint8_t* end = row + len(rows)
        cdef Timer timer
        with nogil:
            while row < end:
                if self._read(row, &timer):
                    self.due.push(&timer)
                    self.levels.push(timer.partition, row[RUN_TIMER_AT_LEVEL])
                row += RUN_TIMER_SIZE

    def load_due(self, bytes rows not None):
        """Add the timers of a block whose counts are restored already.

        Args:
            rows: pending timers, as `RunMerge.take` returns them in a whole merge.

        Returns:
            The due time of the last one, epoch ms.

        Raises:
            MemoryError: some of the timers are in the queue.
        """
        cdef const uint8_t* row = <const uint8_t*><const char*>rows
        cdef const uint8_t* end = row + len(rows)
        cdef Timer timer
        timer.due_ms = -1
        with nogil:
            while row < end:
                if self._read(row, &timer):
                    self.due.load(&timer)
                row += RUN_TIMER_SIZE
        return timer.due_ms

    def without_dropped(self, bytes rows not None):
        """Return rows without timers that damage made undeliverable: they are not pending."""
        cdef bytes kept = b""
        cdef Py_ssize_t at
        if not self.projections.dropped:
            return rows
        for at in range(0, len(rows), RUN_TIMER_SIZE):
            accept_pos = int.from_bytes(rows[at:at + 8], "big")
            index = int.from_bytes(rows[at + 8:at + 12], "big")
            if (accept_pos, index) not in self.projections.dropped:
                kept += rows[at:at + RUN_TIMER_SIZE]
        return kept

    def restore_counts(self, bytes rows not None):
        """Restore how many timers are pending, the result of `pending_rows`.

        Raises:
            ValueError: it is not for these topics; some is restored.
        """
        cdef const uint8_t* row = <const uint8_t*><const char*>rows
        cdef const uint8_t* end = row + len(rows)
        cdef int32_t handle, level
        cdef int64_t count
        if len(rows) % PENDING_ROW_SIZE:
            raise ValueError("the counts of pending timers are cut off")
        while row < end:
            level = load_i32(row + 8)
            count = load_i64(row + 12)
            handle = self._find_handle(load_i32(row), max(load_i32(row + 4), 0))
            if handle == NO_HANDLE or count < 1 or not 0 <= level <= LEVELS_MAX:
                raise ValueError("a count of pending timers is of no partition or no level")
            if level:
                self.levels.restore_count(handle, level, count)
            else:
                self.due.restore_count(handle, count)
            row += PENDING_ROW_SIZE

    def load_ids(self, bytes rows not None):
        """Put the ids of a block into the index, but for those that it knows: they are newer.

        Args:
            rows: ids, as `RunMerge.take` returns them.

        Raises:
            MemoryError: some of the ids are in the index.
        """
        cdef const uint8_t* row = <const uint8_t*><const char*>rows
        cdef const uint8_t* end = row + len(rows)
        cdef NameKey key
        cdef int32_t handle
        with nogil:
            while row < end:
                key = name_key_of(row)
                handle = self._find_handle(key.topic_id, load_i32(row + RUN_ID_AT_PARTITION))
                if handle != NO_HANDLE and not self.index.holds(&key):
                    put_row(self.index, &key, row, handle)
                    self.ids += 1
                row += RUN_ID_SIZE

    def carry_ids(self, bytes rows not None):
        """Apply the ids of a carry frame: put them into the index and the memtable.

        Args:
            rows: as in `load_ids`.
        """
        cdef const uint8_t* row = <const uint8_t*><const char*>rows
        cdef const uint8_t* end = row + len(rows)
        cdef NameKey key
        cdef int32_t handle
        while row < end:
            key = name_key_of(row)
            handle = self._find_handle(key.topic_id, load_i32(row + RUN_ID_AT_PARTITION))
            if handle != NO_HANDLE:
                put_row(self.index, &key, row, handle)
                self.projections._note_id()
            row += RUN_ID_SIZE
