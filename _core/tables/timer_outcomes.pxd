from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.buffer cimport Buf
from _core.tables.copies cimport Copies

# In the order of OUTCOMES, which has their names.
cdef enum:
    OUTCOME_PENDING = 0
    OUTCOME_DELIVERED
    OUTCOME_CANCELLED
    OUTCOME_REPLACED
    OUTCOME_DELETED

cdef enum:
    OUTCOME_SIZE = 9
    OUTCOME_IS_COPY = 0x80       # a bit of the state: the row of the timer is elsewhere


cdef class TimerOutcomes:
    cdef Buf positions           # i64: position of each frame with timers, ascending
    cdef Buf firsts              # i64: number of the first timer of each such frame
    cdef Buf topics              # i32: id of the topic that each timer is delivered to
    cdef Buf indexes             # i32: index of each timer
    cdef Buf outcomes            # u8 state and i64 instant of each timer
    cdef readonly Copies copies  # those in carry frames; they have numbers like all others
    cdef readonly int64_t count
    cdef int add(self, int64_t accept_pos, int32_t index, int32_t topic_id) except -1
    cdef int add_copy(
        self, int64_t pos, int64_t accept_pos, int32_t index, int32_t topic_id
    ) except -1
    cdef void forget_topic(self, int32_t topic_id, int64_t since_ms) noexcept nogil
    cdef int complete(
        self, int64_t accept_pos, int32_t index, int state, int64_t since_ms
    ) except -1
    cdef int64_t _home_of(self, int64_t accept_pos, int32_t index) noexcept nogil
    cdef int64_t _number_of(self, int64_t accept_pos, int32_t index) noexcept nogil
    cdef uint8_t* _find(self, int64_t accept_pos, int32_t index) noexcept nogil
    cdef int64_t _frame_at_or_after(self, int64_t pos) noexcept nogil
