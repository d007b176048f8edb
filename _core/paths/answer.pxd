from libc.stdint cimport int32_t, int64_t

from _core.bytes.buffer cimport Buf

cdef enum:
    REQUEST_TIMED_OUT = 7

# The place of an accepted batch in a Produce response.
cdef struct Mark:
    int64_t end_pos           # log position that must be durable before the response leaves
    bint is_local             # on this machine; otherwise also where a sync pair needs it
    int64_t at                # index of its error code; base offset and append time follow

cdef class Reply:
    cdef readonly list pieces
    cdef readonly int64_t end_pos
    cdef readonly int64_t wait_ms
    cdef readonly object late
    cdef readonly int64_t kept_bytes

# Log positions up to which responses may leave: those that need this machine alone, and all others.
cdef struct Durable:
    int64_t pos
    int64_t local_pos

# What waits too long, and which error a batch gets then.
cdef struct Patience:
    Durable durable
    int64_t now_ms            # monotonic
    int64_t wait_max_ms
    int error
    int local_error           # of a batch that needs this machine alone

# The errors are still to be set.
cdef Patience patience_of(
    int64_t durable_pos, int64_t local_pos, int64_t now_ms, int64_t wait_max_ms
) noexcept

# What was timed out at once.
cdef struct TimedOut:
    int64_t batches           # of Produce requests, with `error`
    int64_t local_batches     # with `local_error`
    int64_t late              # other responses
    int64_t grown_bytes       # by which these grew
    int64_t end_pos           # the end of all of them, in the log

cdef class Answer:
    cdef int64_t end_pos      # what must be durable first, also on the slave of a sync pair
    cdef int64_t local_pos    # what must be durable first on this machine
    cdef bint parked
    cdef object late          # returns the response to send instead once it waited too long
    cdef int64_t kept_bytes   # that `late` holds
    cdef list pieces          # buffers that are not sent yet
    cdef int64_t slice_bytes  # of them that are slices of the frame cache
    cdef bytes marks          # a Mark for each accepted batch; None if it is not a Produce response
    cdef int64_t wait_ms
    cdef int64_t since_ms     # when `time_out` first found it waiting, -1 if it has not
    cdef int traced           # requests that it answers, if they are traced and several
    cdef int set_reply(self, Reply reply) except -1
    cdef bint may_leave(self, const Durable* durable) noexcept
    cdef bint is_late(self, const Patience* patience) noexcept
    cdef int64_t take(self, int64_t room, list result) except -1
    cdef int time_out(self, const Patience* patience, TimedOut* found) except -1
    cdef int _time_out_batches(self, const Patience* patience, TimedOut* found) except -1

# Begins a response: room for its size, and its header.
cdef int begin_answer(Buf* out, int32_t correlation, bint flexible) except -1

# What a queue of responses holds.
cdef struct Queued:
    int64_t bytes
    int64_t slice_bytes
    int waiting

cdef Queued count_queued(answers) except *

cdef TimedOut time_out(answers, const Patience* patience) except *


cdef class ResponseSlot:
    cdef readonly object session # Session, once the slot is in its queue
    cdef readonly bint answered
    cdef Answer answer
    cdef Reply reply             # set if `complete` came before the slot was in a session
    cdef int wait(self, object session, Answer answer) except -1
