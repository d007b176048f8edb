"""A 4-ary heap of timers in one packed array.

The next timer to deliver is at index 0, and the children of i are at 4i + 1 to 4i + 4. Compared
with a binary heap, the depth is half, and siblings share cache lines.

Layer 0: no I/O. Header only: these functions are compiled into the modules that cimport them.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport realloc

from _core.timers.timer_list cimport ChunkPool, Timer, is_before
from _core.timers.cancelled_timers cimport CancelledTimers

cdef struct TimerHeap:
    Timer* timers
    int64_t count
    int64_t capacity

cdef enum:
    HEAP_CAPACITY_MIN = 64
    HEAP_SWEEP_STEP = 1024    # bounds the work of one step of a sweep


cdef inline bint heap_resize(ChunkPool* pool, TimerHeap* heap, int64_t capacity) noexcept nogil:
    cdef Timer* moved = <Timer*>realloc(heap.timers, capacity * sizeof(Timer))
    if moved == NULL:
        return False
    pool.allocated_bytes += (capacity - heap.capacity) * <int64_t>sizeof(Timer)
    heap.timers = moved
    heap.capacity = capacity
    return True


cdef inline bint heap_reserve(ChunkPool* pool, TimerHeap* heap, int64_t extra) noexcept nogil:
    """Make room for `extra` more timers. False if there is no memory; nothing has changed then."""
    cdef int64_t needed = heap.count + extra
    if needed <= heap.capacity:
        return True
    needed = max(needed, heap.capacity + (heap.capacity >> 2), HEAP_CAPACITY_MIN)
    return heap_resize(pool, heap, needed)


cdef inline void heap_shrink(ChunkPool* pool, TimerHeap* heap) noexcept nogil:
    """Free memory after a peak, but keep room so that the next push need not grow the heap."""
    if heap.capacity > HEAP_CAPACITY_MIN and heap.count < heap.capacity >> 2:
        heap_resize(pool, heap, max(heap.capacity >> 1, HEAP_CAPACITY_MIN))


cdef inline void heap_sift_up(TimerHeap* heap, int64_t i, Timer timer) noexcept nogil:
    """Put `timer` at its place on the way from i to the root."""
    cdef int64_t parent
    while i > 0:
        parent = (i - 1) >> 2
        if not is_before(&timer, &heap.timers[parent]):
            break
        heap.timers[i] = heap.timers[parent]
        i = parent
    heap.timers[i] = timer


cdef inline void heap_push(TimerHeap* heap, const Timer* timer) noexcept nogil:
    """REQUIRES: room from heap_reserve."""
    heap.count += 1
    heap_sift_up(heap, heap.count - 1, timer[0])


cdef inline void heap_sift_down(TimerHeap* heap, int64_t i, Timer timer) noexcept nogil:
    """Put `timer` at its place in the subtree of i."""
    cdef int64_t child, best, last
    while True:
        best = 4 * i + 1
        if best >= heap.count:
            break
        last = min(best + 4, heap.count)
        for child in range(best + 1, last):
            if is_before(&heap.timers[child], &heap.timers[best]):
                best = child
        if not is_before(&heap.timers[best], &timer):
            break
        heap.timers[i] = heap.timers[best]
        i = best
    heap.timers[i] = timer


cdef inline void heap_drop_first(ChunkPool* pool, TimerHeap* heap) noexcept nogil:
    """REQUIRES: the heap is not empty."""
    heap.count -= 1
    if heap.count:
        heap_sift_down(heap, 0, heap.timers[heap.count])
    heap_shrink(pool, heap)


cdef inline void heap_remove(TimerHeap* heap, int64_t i) noexcept nogil:
    """Remove the timer at i. Another one may take its place."""
    cdef Timer last
    heap.count -= 1
    last = heap.timers[heap.count]
    if i == heap.count:
        return
    if i > 0 and is_before(&last, &heap.timers[(i - 1) >> 2]):
        heap_sift_up(heap, i, last)
    else:
        heap_sift_down(heap, i, last)


cdef inline int64_t heap_sweep_step(
    ChunkPool* pool, TimerHeap* heap, CancelledTimers cancelled, int64_t* end
) noexcept nogil:
    """Remove cancelled timers from the last HEAP_SWEEP_STEP entries before index `end`.

    Moves `end` to the first entry examined. Pushes and pops between two steps may move a cancelled
    timer past `end`; it stays until it is popped or swept again.

    Returns:
        The number of entries examined.
    """
    cdef int64_t i = min(end[0], heap.count)
    cdef int64_t stop = max(i - HEAP_SWEEP_STEP, 0)
    cdef int64_t examined = i - stop
    cdef Timer* timer
    while i > stop:
        i -= 1
        # Again while an entry is removed: the one that takes its place is not examined yet.
        while i < heap.count:
            timer = &heap.timers[i]
            if not cancelled.claim(timer.position, timer.record_index, timer.partition):
                break
            heap_remove(heap, i)
    heap_shrink(pool, heap)
    end[0] = stop
    return examined
