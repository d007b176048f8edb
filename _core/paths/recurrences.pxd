from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.batch cimport Slice
from _core.bytes.buffer cimport Buf
from _core.paths.delay_ask cimport DelayAsk
from _core.paths.due_records cimport Due

cdef enum:
    SCHEDULES_MAX = 16        # different ones of one batch

cdef class Recurrences:
    cdef readonly object rules        # computes instants; None: nothing can recur
    cdef int64_t count                # calls since `begin`
    cdef int64_t computed             # of them, those that computed instants
    cdef dict known                   # what this batch, or this round of delivery, asked before
    cdef list encoded                 # the rules of this batch
    cdef str message                  # what is wrong with a schedule
    # Starts a batch, or a round of delivery.
    cdef void begin(self) noexcept nogil
    # The work of this batch so far, bytes.
    cdef int64_t work(self) noexcept nogil
    # Sets the due time and the rule of a record that recurs. Returns SPLIT_OK or a SplitFault.
    cdef int resolve(self, DelayAsk* ask, int64_t now_ms) except -1 nogil
    # Appends the rule of a record, and returns its size.
    cdef int append_rule(self, const DelayAsk* ask, Buf* out) except -1 nogil
    # Decides what follows a recurring timer that is due. False if this round has computed enough.
    cdef bint decide(self, Due* due, int64_t due_ms, int64_t now_ms) except -1
    cdef int _resolve(self, DelayAsk* ask, int64_t now_ms) except -1
    cdef int _forget(self) except -1
    cdef int _append_rule(self, int number, Buf* out) except -1
    cdef int _refuse(self, str message) except -1
