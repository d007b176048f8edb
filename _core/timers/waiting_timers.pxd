# A FIFO array of timers.

from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from _core.timers.due_queue cimport Timer

cdef struct Waiting:
    Timer* timers
    Py_ssize_t start
    Py_ssize_t count
    Py_ssize_t capacity


cdef inline int push_timer(Waiting* waiting, const Timer* timer) except -1:
    cdef Timer* grown
    cdef Py_ssize_t capacity
    if waiting.start + waiting.count == waiting.capacity:
        if waiting.start > waiting.count:
            memmove(waiting.timers, waiting.timers + waiting.start, waiting.count * sizeof(Timer))
            waiting.start = 0
        else:
            capacity = waiting.capacity * 2 + 64
            grown = <Timer*>realloc(waiting.timers, capacity * sizeof(Timer))
            if grown == NULL:
                raise MemoryError("cannot allocate timers that wait for the disk")
            waiting.timers = grown
            waiting.capacity = capacity
    waiting.timers[waiting.start + waiting.count] = timer[0]
    waiting.count += 1
    return 0


cdef inline void drop_first(Waiting* waiting, Py_ssize_t count) noexcept:
    waiting.start += count
    waiting.count -= count
    if waiting.count == 0:
        free(waiting.timers)
        waiting[0] = Waiting(NULL, 0, 0, 0)
