from libc.stdint cimport int32_t, int64_t

from _core.queue.partition cimport Topic
from _core.state.projections cimport Projections
from _core.timers.due_queue cimport Timer

cdef class HeldBack:
    cdef Projections projections
    cdef dict holds           # by topic: its HeldTimers, of which `DueQueue.held` is the list
    cdef list turn            # topics that may still release in this turn; the next one is last
    cdef Py_ssize_t passed    # cancelled timers that were passed over in this turn
    cdef bint is_paused(self, int32_t handle) except -1
    # Whether a due timer of that partition must be held back.
    cdef bint holds_back(self, int32_t handle) except -1
    # Holds back a timer that was popped: it stays pending.
    cdef int hold(self, const Timer* timer) except -1
    # Begins a turn, in which `take` releases timers. Returns whether any are held.
    cdef bint begin_turn(self) except -1
    # Releases a timer; it is a popped one then. False if no other may go in this turn.
    cdef bint take(self, Timer* timer, int64_t now_ms) except -1
    cdef bint _take_of(self, Topic topic, Timer* timer, int64_t now_ms) except -1
    cdef int _forget(self, Topic topic) except -1
