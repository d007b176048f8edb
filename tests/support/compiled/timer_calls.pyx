"""Calls of compiled timer structures that have no Python API, for tests and benchmarks.

`_core` calls these functions as C functions. Compiled here, they stay out of what is shipped.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from _core.bytes.borrowed cimport Borrowed
from _core.timers.cancelled_timers cimport CancelledTimers
from _core.timers.due_charges cimport DueCharges
from _core.timers.due_queue cimport DueQueue
from _core.bytes.siphash cimport siphash
from _core.timers.id_index cimport PENDING, IdIndex, NamedTimer, NameSlot
from _core.timers.memtable cimport TimerMemtable
from _core.timers.timer_list cimport Timer


# DueQueue

def push(
    DueQueue queue not None, int64_t due_ms, int64_t position, int32_t record_index,
    int32_t partition
):
    """Add a pending timer.

    Args:
        queue: the queue.
        due_ms: epoch ms, 0 or later.
        position: first half of its id, 0 or more.
        record_index: second half.
        partition: partition handle, 0 or more.

    Raises:
        ValueError: due_ms is outside 1970 to 10889.
        MemoryError: nothing has changed.
    """
    cdef Timer timer = Timer(due_ms, position, record_index, partition)
    queue.push(&timer)


def pop(DueQueue queue not None, int64_t now_ms, Py_ssize_t limit):
    """Pop up to `limit` timers that are due, as (due, position, index, partition)."""
    cdef const Timer* timers
    cdef Py_ssize_t i
    packed = pop_packed(queue, now_ms, limit)
    timers = <const Timer*><const char*>packed
    return [
        (timers[i].due_ms, timers[i].position, timers[i].record_index, timers[i].partition)
        for i in range(len(packed) // <Py_ssize_t>sizeof(Timer))
    ]


def unpop(DueQueue queue not None, timers):
    """Put popped timers back, given as `pop` returns them."""
    cdef Timer* packed
    cdef Py_ssize_t i
    timers = list(timers)
    packed = <Timer*>malloc(len(timers) * sizeof(Timer) + 1)
    if packed == NULL:
        raise MemoryError
    try:
        for i in range(len(timers)):
            due_ms, position, record_index, partition = timers[i]
            packed[i] = Timer(due_ms, position, record_index, partition)
        queue.unpop(packed, len(timers))
    finally:
        free(packed)


def cancel(
    DueQueue queue not None, int64_t position, int32_t record_index, int32_t partition, *,
    int64_t due_ms=-1
):
    """Cancel a pending timer; False if it was cancelled already. due_ms: -1 for not known."""
    return queue.cancel(position, record_index, partition, due_ms) == 1


def load(
    DueQueue queue not None, int64_t due_ms, int64_t position, int32_t record_index,
    int32_t partition
):
    """Add a timer that is pending and was not in memory."""
    cdef Timer timer = Timer(due_ms, position, record_index, partition)
    queue.load(&timer)


def forget(DueQueue queue not None, int32_t partition):
    """Cancel all timers of a partition, including those pushed later."""
    queue.forget_partition(partition)


def sweep(DueQueue queue not None, int64_t budget):
    """Sweep about `budget` entries if a sweep is in progress; return whether work is left."""
    return queue.sweep(budget)


def push_packed(DueQueue queue not None, timers):
    """Add timers from an array of struct Timer, len % 24 == 0, in native byte order."""
    cdef Borrowed octets = Borrowed(timers)
    cdef const Timer* timer = <const Timer*>octets.p
    cdef Py_ssize_t i
    assert octets.size % sizeof(Timer) == 0
    with nogil:
        for i in range(octets.size // <Py_ssize_t>sizeof(Timer)):
            queue.push(&timer[i])


def cancel_packed(DueQueue queue not None, timers):
    """Cancel the timers in an array of struct Timer, len % 24 == 0."""
    cdef Borrowed octets = Borrowed(timers)
    cdef const Timer* timer = <const Timer*>octets.p
    cdef Py_ssize_t i
    assert octets.size % sizeof(Timer) == 0
    with nogil:
        for i in range(octets.size // <Py_ssize_t>sizeof(Timer)):
            queue.cancel(
                timer[i].position, timer[i].record_index, timer[i].partition, timer[i].due_ms
            )


def pop_packed(DueQueue queue not None, int64_t now_ms, Py_ssize_t limit):
    """Pop up to `limit` timers that are due, as an array of struct Timer."""
    cdef Timer* out = <Timer*>malloc(limit * sizeof(Timer) + 1)
    cdef Py_ssize_t count
    if out == NULL:
        raise MemoryError
    try:
        with nogil:
            count = queue.pop_due(now_ms, out, limit)
        return PyBytes_FromStringAndSize(<const char*>out, count * sizeof(Timer))
    finally:
        free(out)


# CancelledTimers

def note_cancelled(CancelledTimers cancelled not None, int64_t position, int32_t record_index):
    """Record that a timer is cancelled; False if it was recorded already.

    Raises:
        MemoryError: nothing has changed.
    """
    return cancelled.cancel(position, record_index) == 1


def note_forgotten(CancelledTimers cancelled not None, int32_t partition, int64_t timer_count):
    """Record that all timers of a partition are cancelled.

    Args:
        cancelled: the set.
        partition: partition handle.
        timer_count: number of its entries in lists, not counting cancelled timers.

    Raises:
        MemoryError: nothing has changed.
    """
    cancelled.forget(partition, timer_count)


def claim(
    CancelledTimers cancelled not None, int64_t position, int32_t record_index, int32_t partition
):
    """Return whether a timer is cancelled. If so, remove its id."""
    return cancelled.claim(position, record_index, partition)


# TimerMemtable

def note_pushed(
    TimerMemtable memtable not None, int64_t due_ms, int64_t position, int32_t record_index, *,
    int32_t topic_id, int32_t partition, int level=0, int64_t level_offset=-1
):
    """Add an accepted timer; `partition` is an index."""
    cdef Timer timer = Timer(due_ms, position, record_index, 0)
    memtable.push(&timer, topic_id, partition, level, level_offset, position)


def note_completed(
    TimerMemtable memtable not None, int64_t position, int32_t record_index, int64_t due_ms=-1
):
    """Add a timer that was delivered or cancelled; its due time is not known by default."""
    memtable.complete(position, record_index, due_ms)


def note_named(
    TimerMemtable memtable not None, uint64_t hash_high, uint32_t hash_low, int32_t topic_id, *,
    int64_t position, int32_t partition=0, int64_t due_ms=0, int64_t completed_pos=0, int state=1
):
    """Add a change of an id, given by its hash: it now names the first timer of that batch."""
    cdef NameSlot slot = NameSlot(
        hash_high, hash_low, topic_id, position, due_ms, completed_pos, 0, state
    )
    memtable.name(&slot, partition)


# IdIndex

def find_id(IdIndex index not None, int32_t topic_id, bytes name not None):
    """Return what an id of 1 to 255 bytes names, None if nothing.

    A timer is (position, record_index, partition, due_ms, completed_pos, state).
    """
    cdef NamedTimer timer
    if not index.find(topic_id, name, len(name), &timer):
        return None
    return (
        timer.position, timer.record_index, timer.partition, timer.due_ms, timer.completed_pos,
        timer.state,
    )


def put_id(
    IdIndex index not None, int32_t topic_id, bytes name not None, timer, *, bint recurs=False
):
    """Set the timer that an id names, given as `find_id` returns it.

    Raises:
        MemoryError: nothing has changed.
    """
    position, record_index, partition, due_ms, completed_pos, state = timer
    cdef NamedTimer named = NamedTimer(
        position, record_index, partition, due_ms, completed_pos, state, 0, recurs
    )
    index.put(topic_id, name, len(name), &named)


def complete_id(
    IdIndex index not None, int32_t topic_id, bytes name not None, *, int64_t position,
    int32_t record_index, int state, int64_t completed_pos, int64_t offset=-1,
    int32_t partition=0, int64_t due_ms=0
):
    """Record that a timer was cancelled or delivered; return whether the id still names it."""
    cdef NamedTimer done = NamedTimer(
        position, record_index, partition, due_ms, completed_pos, state, 0, False
    )
    return index.complete(topic_id, name, len(name), &done, offset) == 1


def forget_ids(IdIndex index not None, int32_t topic_id):
    """Forget all ids of a topic."""
    index.forget_topic(topic_id)


def fill_ids(IdIndex index not None, int32_t topic_id, int64_t first, int64_t count):
    """Put `count` pending timers, named by the integers from `first` on as 8 bytes each."""
    cdef NamedTimer timer
    cdef int64_t i
    with nogil:
        for i in range(first, first + count):
            timer = NamedTimer(i, 0, 0, i, 0, PENDING, 0, False)
            index.put(topic_id, <const uint8_t*>&i, 8, &timer)


def siphash_128(bytes key not None, bytes message not None):
    """SipHash-2-4 with 16 bytes of key and output, in the byte order of the authors' code."""
    cdef uint64_t key_words[2]
    cdef uint64_t words[2]
    for i in range(2):
        key_words[i] = int.from_bytes(key[8 * i : 8 * i + 8], "little")
    siphash(key_words, message, len(message), words)
    return b"".join([int(word).to_bytes(8, "little") for word in words])


# DueCharges

def charge(DueCharges charges not None, *, int64_t now_ms, int64_t due_ms, int64_t count=1):
    """Charge timers that are due at one time; both times are epoch ms, 0 or more."""
    charges.add(now_ms, due_ms, count)


def credit(DueCharges charges not None, int64_t due_ms):
    """Take back the charge for one timer that is due then, if there may be one."""
    charges.credit(due_ms, False)


def charged(DueCharges charges not None, *, int64_t now_ms):
    """Number of charges that last."""
    return charges.total(now_ms)
