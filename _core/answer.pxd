from libc.stdint cimport int64_t

cdef enum:
    REQUEST_TIMED_OUT = 7

# Where in an answer to Produce the outcome of a batch stands that was accepted.
cdef struct Mark:
    int64_t end_pos           # the log is to be durable up to here
    int64_t at                # of its error code; base offset and append time follow

cdef class Answer:
    cdef int64_t end_pos
    cdef bint parked
    cdef list pieces          # those that have not left yet
    cdef bytes marks          # a Mark for each batch that was accepted; None: it is none to Produce
    cdef int64_t wait_ms
    cdef int64_t since_ms     # when `time_out` first saw that it waits; -1 if it did not yet
    cdef int64_t take(self, int64_t room, list result) except -1
    cdef int64_t time_out(self, int64_t now_ms, int64_t wait_max_ms, int64_t durable_pos) except -1

cdef int64_t time_out(
    answers, int64_t now_ms, int64_t wait_max_ms, int64_t durable_pos, int64_t* end_pos
) except -1
