from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.buffer cimport Buf

# In the order of OUTCOMES, which has their names.
cdef enum:
    OUTCOME_PENDING = 0
    OUTCOME_DELIVERED
    OUTCOME_CANCELLED
    OUTCOME_REPLACED
    OUTCOME_DELETED

cdef enum:
    OUTCOME_SIZE = 9


cdef class TimerOutcomes:
    cdef Buf positions           # i64: position of each frame that accepted timers, ascending
    cdef Buf firsts              # i64: number of the first timer of each such frame
    cdef Buf topics              # i32: topic id of each such frame
    cdef Buf indexes             # i32: index of each timer
    cdef Buf outcomes            # u8 state and i64 instant of each timer
    cdef readonly int64_t count
    cdef int add(self, int64_t accept_pos, int32_t index, int32_t topic_id) except -1
    cdef void forget_topic(self, int32_t topic_id, int64_t since_ms) noexcept nogil
    cdef int complete(
        self, int64_t accept_pos, int32_t index, int state, int64_t since_ms
    ) except -1
    cdef uint8_t* _find(self, int64_t accept_pos, int32_t index) noexcept nogil
    cdef int64_t _frame_at_or_after(self, int64_t pos) noexcept nogil
