from libc.stdint cimport int32_t, int64_t

from _core.queue.partition cimport Topic
from _core.state.projections cimport Projections
from _core.log.view cimport LogView
from _core.timers.due_queue cimport Timer
from _core.timers.held_timers cimport HeldTimers

cdef class HeldBack:
    cdef Projections projections
    cdef LogView view
    cdef readonly set cold    # positions of frames that blocked topics need, as of the last turn
    cdef list turn            # topics that may still release in this turn; the next one is last
    cdef Py_ssize_t passed    # cancelled timers that were passed over in this turn
    cdef bint is_paused(self, int32_t handle) except -1
    # Whether a due timer of that partition must be held back.
    cdef bint holds_back(self, int32_t handle) except -1
    # Holds back a timer that was popped: it stays pending. One of a deleted topic is dropped.
    cdef int hold(self, const Timer* timer) except -1
    # Begins a turn, in which timers are released. Returns whether any are held.
    cdef bint begin_turn(self) except -1
    # The next timer that may go now; False if no other may go in this turn. It must be released,
    # dropped or blocked before the next call finds another one.
    cdef bint peek(self, Timer* timer, int64_t now_ms) except -1
    # Releases the timer of `peek`: it is a popped one then.
    cdef int release(self, const Timer* timer, int64_t now_ms) except -1
    # The same, but it does not count for the bounds of its topic.
    cdef int drop(self, const Timer* timer) except -1
    # Its topic releases nothing more in this turn: the record must be read first. Notes where.
    cdef int block(self) except -1
    cdef bint _find_next(self, Topic topic, HeldTimers held, Timer* timer, int64_t now_ms) except -1
