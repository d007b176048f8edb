"""The 24-byte timer, and FIFO lists of timers that free their memory in pieces.

A list is a chain of chunks, and each chunk is a packed array:

    TimerList: head -> [ used up | begin ... end | free ] -> [ ... ] -> [ ... end | free ] <- tail

The capacity of a new chunk is an eighth of the list's length, within bounds. A list of any length
therefore wastes little memory, and growing never copies a timer. No chunk is empty; an empty list
has no chunks.

Functions that allocate return False if there is no memory; nothing has changed then.

Layer 0: no I/O. Header only: these functions are compiled into the modules that cimport them.
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from _core.timers.cancelled_timers cimport CancelledTimers

# position and record_index are the timer id, whose order is the order of arrival.
cdef packed struct Timer:
    int64_t due_ms         # epoch ms
    int64_t position    # position of its accept frame
    int32_t record_index   # index in its batch as received
    int32_t partition      # in-process handle of the partition, >= 0

cdef struct Chunk:
    Chunk* next
    int32_t begin          # first entry still in the list
    int32_t end            # one past the last
    int32_t capacity
    int32_t padding
    # `capacity` timers follow

cdef struct TimerList:
    Chunk* head
    Chunk* tail
    int64_t count
    int64_t min_due_ms     # exact until a timer is taken out, then a lower bound

# State shared by lists: their memory, and the place that a sweep has reached. A sweep processes one
# list at a time. Freeing a chunk moves the sweep on if it is at that chunk.
cdef struct ChunkPool:
    int64_t allocated_bytes
    Chunk* swept           # the chunk before sweep_next, NULL if that is the head
    Chunk* sweep_next      # the next chunk to sweep, NULL at the end of the list

cdef enum:
    CHUNK_CAPACITY_MIN = 8
    CHUNK_CAPACITY_MAX = 1024    # bounds the work of one step of a sweep


cdef inline bint is_before(const Timer* a, const Timer* b) noexcept nogil:
    """Whether a is delivered before b: by due time, then by arrival."""
    if a.due_ms != b.due_ms:
        return a.due_ms < b.due_ms
    if a.position != b.position:
        return a.position < b.position
    return a.record_index < b.record_index


cdef inline Timer* chunk_timers(Chunk* chunk) noexcept nogil:
    return <Timer*>(chunk + 1)


cdef inline int64_t chunk_bytes(int64_t capacity) noexcept nogil:
    return <int64_t>sizeof(Chunk) + capacity * <int64_t>sizeof(Timer)


cdef inline bint list_add_chunk(
    ChunkPool* pool, TimerList* timers, int64_t capacity
) noexcept nogil:
    """Append an empty chunk. The caller must fill it at once."""
    cdef Chunk* chunk = <Chunk*>malloc(chunk_bytes(capacity))
    if chunk == NULL:
        return False
    chunk.next = NULL
    chunk.begin = chunk.end = 0
    chunk.capacity = <int32_t>capacity
    pool.allocated_bytes += chunk_bytes(capacity)
    if timers.tail == NULL:
        timers.head = chunk
    else:
        timers.tail.next = chunk
    timers.tail = chunk
    return True


cdef inline void chunk_free(ChunkPool* pool, Chunk* chunk) noexcept nogil:
    """Free a chunk that is already unlinked. REQUIRES: its `next` is still valid."""
    if pool.swept == chunk:
        pool.swept = NULL
    if pool.sweep_next == chunk:
        pool.sweep_next = chunk.next
    pool.allocated_bytes -= chunk_bytes(chunk.capacity)
    free(chunk)


cdef inline void list_init(TimerList* timers) noexcept nogil:
    memset(timers, 0, sizeof(TimerList))


cdef inline bint list_append(ChunkPool* pool, TimerList* timers, const Timer* timer) noexcept nogil:
    cdef Chunk* tail = timers.tail
    cdef int64_t capacity
    if tail == NULL or tail.end == tail.capacity:
        capacity = min(max(timers.count >> 3, CHUNK_CAPACITY_MIN), CHUNK_CAPACITY_MAX)
        if not list_add_chunk(pool, timers, capacity):
            return False
        tail = timers.tail
    chunk_timers(tail)[tail.end] = timer[0]
    tail.end += 1
    if timers.count == 0 or timer.due_ms < timers.min_due_ms:
        timers.min_due_ms = timer.due_ms
    timers.count += 1
    return True


cdef inline Timer* list_first(TimerList* timers) noexcept nogil:
    """REQUIRES: the list is not empty."""
    return chunk_timers(timers.head) + timers.head.begin


cdef inline Timer* list_last(TimerList* timers) noexcept nogil:
    """REQUIRES: the list is not empty."""
    return chunk_timers(timers.tail) + timers.tail.end - 1


cdef inline void list_drop_chunk(ChunkPool* pool, TimerList* timers) noexcept nogil:
    """Drop the first chunk. REQUIRES: the list is not empty."""
    cdef Chunk* head = timers.head
    timers.count -= head.end - head.begin
    timers.head = head.next
    if timers.head == NULL:
        timers.tail = NULL
    chunk_free(pool, head)


cdef inline void list_drop_first(ChunkPool* pool, TimerList* timers) noexcept nogil:
    """REQUIRES: the list is not empty."""
    if timers.head.begin + 1 == timers.head.end:
        list_drop_chunk(pool, timers)
    else:
        timers.head.begin += 1
        timers.count -= 1


cdef inline void list_clear(ChunkPool* pool, TimerList* timers) noexcept nogil:
    while timers.head != NULL:
        list_drop_chunk(pool, timers)


cdef inline int32_t chunk_drop_cancelled(Chunk* chunk, CancelledTimers cancelled) noexcept nogil:
    """Remove cancelled timers from a chunk, and return their number."""
    cdef Timer* timers = chunk_timers(chunk)
    cdef int32_t kept = chunk.begin
    cdef int32_t removed, i
    for i in range(chunk.begin, chunk.end):
        if not cancelled.claim(timers[i].position, timers[i].record_index, timers[i].partition):
            timers[kept] = timers[i]
            kept += 1
    removed = chunk.end - kept
    chunk.end = kept
    return removed


cdef inline void list_tighten(ChunkPool* pool, TimerList* timers) noexcept nogil:
    """Move the timers of a list's only chunk to a smaller chunk if it is at most half full."""
    cdef Chunk* chunk = timers.head
    cdef int32_t count = chunk.end - chunk.begin
    cdef TimerList tight
    if chunk.capacity <= CHUNK_CAPACITY_MIN or count * 2 > chunk.capacity:
        return
    tight.tail = NULL
    if not list_add_chunk(pool, &tight, max(count + (count >> 3), CHUNK_CAPACITY_MIN)):
        return    # harmless: this only saves memory
    memcpy(chunk_timers(tight.head), chunk_timers(chunk) + chunk.begin, count * sizeof(Timer))
    tight.head.end = count
    timers.head = timers.tail = tight.head
    chunk_free(pool, chunk)


cdef inline int32_t list_sweep_chunk(
    ChunkPool* pool, TimerList* timers, CancelledTimers cancelled
) noexcept nogil:
    """Remove cancelled timers from the chunk at pool.sweep_next, and advance to the next chunk.

    The remaining timers fill up the chunk swept before. REQUIRES: sweep_next is in this list.

    Returns:
        The number of entries examined.
    """
    cdef Chunk* chunk = pool.sweep_next
    cdef Chunk* before = pool.swept
    cdef int32_t examined = chunk.end - chunk.begin
    cdef int32_t moved
    timers.count -= chunk_drop_cancelled(chunk, cancelled)
    if before != NULL:
        moved = min(before.capacity - before.end, chunk.end - chunk.begin)
        memcpy(
            chunk_timers(before) + before.end,
            chunk_timers(chunk) + chunk.begin,
            moved * sizeof(Timer),
        )
        before.end += moved
        chunk.begin += moved
    pool.sweep_next = chunk.next
    if chunk.begin < chunk.end:
        pool.swept = chunk
    else:
        if before == NULL:
            timers.head = chunk.next
        else:
            before.next = chunk.next
        if timers.tail == chunk:
            timers.tail = before
        chunk_free(pool, chunk)
    if pool.sweep_next == NULL and timers.head != NULL and timers.head == timers.tail:
        list_tighten(pool, timers)
    return examined
