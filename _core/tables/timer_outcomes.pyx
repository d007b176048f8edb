"""What became of each timer that a part of the log accepted, in 13 bytes each.

Layer 0: no I/O.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from _core.bytes.buffer cimport append, extend_zero, release

OUTCOMES = ("pending", "delivered", "cancelled", "replaced", "deleted")


cdef class TimerOutcomes:
    """The timers of a log by accept position and index, ascending, with their states.

    Attributes:
        count: number of timers.
    """

    def __dealloc__(self):
        release(&self.positions)
        release(&self.firsts)
        release(&self.topics)
        release(&self.indexes)
        release(&self.outcomes)

    cdef int add(self, int64_t accept_pos, int32_t index, int32_t topic_id) except -1:
        """Add a pending timer. REQUIRES: it comes after all others in the order of timer ids."""
        cdef int64_t* positions = <int64_t*>self.positions.data
        cdef Py_ssize_t frames = self.positions.size // 8
        if frames == 0 or positions[frames - 1] != accept_pos:
            append(&self.positions, &accept_pos, 8)
            append(&self.firsts, &self.count, 8)
            append(&self.topics, &topic_id, 4)
        append(&self.indexes, &index, 4)
        extend_zero(&self.outcomes, OUTCOME_SIZE)
        self.count += 1
        return 0

    cdef int complete(
        self, int64_t accept_pos, int32_t index, int state, int64_t since_ms
    ) except -1:
        """Note what became of a timer; a timer that is not known is ignored."""
        cdef uint8_t* outcome = self._find(accept_pos, index)
        if outcome != NULL:
            outcome[0] = <uint8_t>state
            memcpy(outcome + 1, &since_ms, 8)
        return 0

    cdef void forget_topic(self, int32_t topic_id, int64_t since_ms) noexcept nogil:
        """Note that the pending timers of a topic were deleted with it. Looks at all frames."""
        cdef const int32_t* topics = <const int32_t*>self.topics.data
        cdef const int64_t* firsts = <const int64_t*>self.firsts.data
        cdef int64_t frames = self.topics.size // 4, frame, i
        cdef uint8_t* outcome
        for frame in range(frames):
            if topics[frame] != topic_id:
                continue
            for i in range(firsts[frame], firsts[frame + 1] if frame + 1 < frames else self.count):
                outcome = self.outcomes.data + i * OUTCOME_SIZE
                if outcome[0] == OUTCOME_PENDING:
                    outcome[0] = OUTCOME_DELETED
                    memcpy(outcome + 1, &since_ms, 8)

    def outcome(self, int64_t accept_pos, int32_t index):
        """Look a timer up.

        Returns:
            (state, since when in epoch ms), or None if it is not known; see `between`.
        """
        cdef const uint8_t* outcome = self._find(accept_pos, index)
        cdef int64_t since_ms
        if outcome == NULL:
            return None
        memcpy(&since_ms, outcome + 1, 8)
        return OUTCOMES[outcome[0]], since_ms

    cdef uint8_t* _find(self, int64_t accept_pos, int32_t index) noexcept nogil:
        """The outcome of a timer; NULL if it is not known."""
        cdef int64_t frame = self._frame_at_or_after(accept_pos)
        cdef int64_t frames = self.positions.size // 8, low, high, middle
        cdef const int32_t* indexes = <const int32_t*>self.indexes.data
        if frame == frames or (<int64_t*>self.positions.data)[frame] != accept_pos:
            return NULL
        low = (<int64_t*>self.firsts.data)[frame]
        high = (<int64_t*>self.firsts.data)[frame + 1] if frame + 1 < frames else self.count
        while low < high:
            middle = (low + high) // 2
            if indexes[middle] < index:
                low = middle + 1
            else:
                high = middle
        if low < self.count and indexes[low] == index:
            return self.outcomes.data + low * OUTCOME_SIZE
        return NULL

    cdef int64_t _frame_at_or_after(self, int64_t pos) noexcept nogil:
        """Number of the first frame at or after a log position."""
        cdef const int64_t* positions = <const int64_t*>self.positions.data
        cdef int64_t low = 0, high = self.positions.size // 8, middle
        while low < high:
            middle = (low + high) // 2
            if positions[middle] < pos:
                low = middle + 1
            else:
                high = middle
        return low

    def between(self, int64_t start, int64_t end):
        """Encode the timers that frames from `start` to before `end` accepted.

        Returns:
            OUTCOME_SIZE bytes for each, in order: the state by its place in OUTCOMES, and since
            when in epoch ms, an i64 in the byte order of the machine; 0 while it is pending.
        """
        cdef int64_t frames = self.positions.size // 8
        cdef int64_t first = self._frame_at_or_after(start), behind = self._frame_at_or_after(end)
        if first >= behind:
            return b""
        first = (<int64_t*>self.firsts.data)[first]
        behind = (<int64_t*>self.firsts.data)[behind] if behind < frames else self.count
        return PyBytes_FromStringAndSize(
            <const char*>self.outcomes.data + first * OUTCOME_SIZE, (behind - first) * OUTCOME_SIZE
        )
