"""What became of each timer that a part of the log accepted, in 13 bytes each.

Carry frames hold timers again. Each copy has 13 bytes as well, and an entry in `Copies`.

Layer 0: no I/O.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from _core.bytes.buffer cimport append, extend_zero, release
from _core.tables.copies cimport Copies, Copy, Since, since_of

OUTCOMES = ("pending", "delivered", "cancelled", "replaced", "deleted")
IS_COPY = OUTCOME_IS_COPY


cdef class TimerOutcomes:
    """The timers in the frames of a log, with their states.

    Attributes:
        count: number of timers, copies included.
        copies: the timers in carry frames.
    """

    def __cinit__(self):
        """Know no timer."""
        self.copies = Copies()

    def __dealloc__(self):
        release(&self.positions)
        release(&self.firsts)
        release(&self.topics)
        release(&self.indexes)
        release(&self.outcomes)

    cdef int add(self, int64_t accept_pos, int32_t index, int32_t topic_id) except -1:
        """Add a timer that a frame accepts. REQUIRES: it comes after all others in the log."""
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

    cdef int add_copy(
        self, int64_t pos, int64_t accept_pos, int32_t index, int32_t topic_id
    ) except -1:
        """Add a timer that a carry frame at `pos` holds. REQUIRES: as `add`."""
        cdef int64_t number = self.count, original = self._number_of(accept_pos, index)
        self.add(pos, index, topic_id)
        self.copies.add(pos, accept_pos, index, number, original)
        if self.copies.at(self.copies.count - 1).home != number:
            self.outcomes.data[number * OUTCOME_SIZE] = OUTCOME_IS_COPY
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
        """Note that the pending timers of a topic were deleted with it. Looks at all timers."""
        cdef const int32_t* topics = <const int32_t*>self.topics.data
        cdef int64_t i
        cdef uint8_t* outcome
        for i in range(self.count):
            if topics[i] != topic_id:
                continue
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

    def is_row_at(self, int64_t pos, int64_t accept_pos, int32_t index):
        """Return whether the frame at `pos` is the first that holds a timer, of those known."""
        cdef int64_t number = self._home_of(accept_pos, index)
        cdef int64_t frame = self._frame_at_or_after(pos)
        cdef int64_t frames = self.positions.size // 8
        cdef const int64_t* firsts = <const int64_t*>self.firsts.data
        if frame == frames or (<int64_t*>self.positions.data)[frame] != pos:
            return False
        return firsts[frame] <= number < (
            firsts[frame + 1] if frame + 1 < frames else self.count
        )

    cdef uint8_t* _find(self, int64_t accept_pos, int32_t index) noexcept nogil:
        """The outcome of a timer; NULL if it is not known."""
        cdef int64_t number = self._home_of(accept_pos, index)
        return self.outcomes.data + number * OUTCOME_SIZE if number >= 0 else NULL

    cdef int64_t _home_of(self, int64_t accept_pos, int32_t index) noexcept nogil:
        """The number of a timer where it was accepted, or else in its first copy; -1 for none."""
        cdef int64_t number = self._number_of(accept_pos, index), place
        if number < 0 and self.copies.count:
            place = self.copies.find(accept_pos, index)
            if place >= 0:
                number = self.copies.at(place).home
        return number

    cdef int64_t _number_of(self, int64_t accept_pos, int32_t index) noexcept nogil:
        """The number of a timer in the frame that accepted it; -1 if it is not known."""
        cdef int64_t frame = self._frame_at_or_after(accept_pos)
        cdef int64_t frames = self.positions.size // 8, low, high, middle
        cdef const int32_t* indexes = <const int32_t*>self.indexes.data
        if frame == frames or (<int64_t*>self.positions.data)[frame] != accept_pos:
            return -1
        low = (<int64_t*>self.firsts.data)[frame]
        high = (<int64_t*>self.firsts.data)[frame + 1] if frame + 1 < frames else self.count
        while low < high:
            middle = (low + high) // 2
            if indexes[middle] < index:
                low = middle + 1
            else:
                high = middle
        if low < self.count and indexes[low] == index:
            return low
        return -1

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

    def between(
        self, int64_t start, int64_t end, tuple read not None=(0, 0, 0, 0),
        int64_t held_from=INT64_MAX
    ):
        """Encode the timers in frames from `start` to before `end`.

        Args:
            start, end: log positions.
            read: what was read before, see `Copies.left_out`.
            held_from: a timer with a copy at or after this log position counts as pending.

        Returns:
            OUTCOME_SIZE bytes for each, in order: the state by its place in OUTCOMES, and since
            when in epoch ms, an i64 in the byte order of the machine; 0 while it is pending. A
            copy that does not stand for its timer has OUTCOME_IS_COPY in its state as well.
        """
        cdef Since since = since_of(read)
        cdef int64_t frames = self.positions.size // 8
        cdef int64_t first = self._frame_at_or_after(start), behind = self._frame_at_or_after(end)
        cdef int64_t place
        cdef const Copy* copy
        cdef const Copy* newest
        cdef uint8_t* outcome
        if first >= behind:
            return b""
        first = (<int64_t*>self.firsts.data)[first]
        behind = (<int64_t*>self.firsts.data)[behind] if behind < frames else self.count
        found = PyBytes_FromStringAndSize(
            <const char*>self.outcomes.data + first * OUTCOME_SIZE, (behind - first) * OUTCOME_SIZE
        )
        place = self.copies.first_at(start)
        while place < self.copies.count and self.copies.at(place).number < behind:
            copy = self.copies.at(place)
            outcome = <uint8_t*><char*>found + (copy.number - first) * OUTCOME_SIZE
            memcpy(outcome, self.outcomes.data + copy.home * OUTCOME_SIZE, OUTCOME_SIZE)
            newest = self.copies.at(self.copies.find(copy.origin, copy.index))
            if newest.pos >= held_from:
                outcome[0] = OUTCOME_PENDING
            if not self.copies.is_taken(copy, &since):
                outcome[0] |= OUTCOME_IS_COPY
            place += 1
        place = self.copies.first_at(held_from)
        while place < self.copies.count:
            copy = self.copies.at(place)
            if first <= copy.home < behind:
                outcome = <uint8_t*><char*>found + (copy.home - first) * OUTCOME_SIZE
                outcome[0] = outcome[0] & OUTCOME_IS_COPY
            place += 1
        return found
