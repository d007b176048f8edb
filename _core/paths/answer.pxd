from libc.stdint cimport int64_t

cdef enum:
    REQUEST_TIMED_OUT = 7

# The place of an accepted batch in a Produce response.
cdef struct Mark:
    int64_t end_pos           # log position that must be durable before the response leaves
    int64_t at                # index of its error code; base offset and append time follow

cdef class Answer:
    cdef int64_t end_pos
    cdef bint parked
    cdef list pieces          # buffers that are not sent yet
    cdef bytes marks          # a Mark for each accepted batch; None if it is not a Produce response
    cdef int64_t wait_ms
    cdef int64_t since_ms     # when `time_out` first found it waiting, -1 if it has not
    cdef int traced           # requests that it answers, if they are traced and several
    cdef int64_t take(self, int64_t room, list result) except -1
    cdef int64_t time_out(self, int64_t now_ms, int64_t wait_max_ms, int64_t durable_pos) except -1

cdef int64_t time_out(
    answers, int64_t now_ms, int64_t wait_max_ms, int64_t durable_pos, int64_t* end_pos
) except -1
