from libc.stdint cimport int32_t, int64_t

from _core.timers.due_queue cimport Timer
from _core.paths.deliver_frames cimport DeliverFrames
from _core.paths.held_back cimport HeldBack
from _core.paths.due_records cimport Due, HeldRecords
from _core.log.view cimport LogView
from _core.state.writer cimport LogWriter
from _core.timers.moved_frames cimport MovedFrames
from _core.timers.waiting_timers cimport Waiting

cdef class DeliverPath:
    cdef readonly LogWriter writer
    cdef readonly LogView view
    cdef HeldRecords records
    cdef MovedFrames places
    cdef Timer* timers
    cdef Due* found
    cdef int32_t* group_of    # by partition handle: index of its last timer in the chunk, -1 = none
    cdef Py_ssize_t group_capacity
    cdef Py_ssize_t chunk_max
    cdef DeliverFrames out
    cdef Waiting aside        # cold timers and those after one in its partition, in order
    cdef Waiting unreadable
    cdef readonly HeldBack held_back
    cdef int32_t* held        # by partition handle: number of its timers in `aside`
    cdef Py_ssize_t handle_count
    cdef Py_ssize_t reading   # how many of `aside` are being read
    cdef readonly Py_ssize_t ready    # how many of `aside` have been read
    cdef readonly bint is_reading
    cdef set retried          # positions of unreadable timers that are being retried
    cdef bint is_retried
    cdef Py_ssize_t cursor    # index of the unreadable timer checked last
    cdef readonly int64_t damaged_timers
    cdef int64_t now_ms       # of the current round
    cdef int _begin(self) except -1
    cdef int _locate(self, const Timer* timer, Py_ssize_t i) except -1
    cdef Py_ssize_t _take_due(
        self, Py_ssize_t count, int64_t now_ms, Py_ssize_t limit
    ) except -1
    cdef Py_ssize_t _take_held(
        self, Py_ssize_t count, int64_t now_ms, Py_ssize_t limit
    ) except -1
    cdef int _set_aside(self, const Timer* timer) except -1
    cdef int _note_unreadable(self, const Timer* timer, int result) except -1
    cdef Py_ssize_t _take_aside(self, Py_ssize_t count, Py_ssize_t limit) except -1
    cdef Py_ssize_t _take_unreadable(self, Py_ssize_t count, Py_ssize_t limit) except -1
    cdef int _return_aside(self, set partitions) except -1
    cdef list _kept_of(self, const Waiting* waiting, Py_ssize_t limit)
    cdef list _group(self, Py_ssize_t count)
