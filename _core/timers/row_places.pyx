"""Picks rows of pending timers: by the frames that hold them, by their due times or topics.

Layer 0: no I/O, no clock.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from _core.bytes.layout cimport *
from _core.bytes.octets cimport load_i64, load_u64
from _core.timers.run_rows cimport RowKey, is_key_before, key_of_row


cdef bytes rows_within(bytes rows, int field, int64_t low, int64_t high):
    """The rows in which a field of 8 bytes is `low` or above and below `high`."""
    cdef const uint8_t* p = <const uint8_t*><const char*>rows
    cdef Py_ssize_t size = len(rows), i, at, used = 0
    cdef int64_t value
    cdef bytes found = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t* out = <uint8_t*><char*>found
    with nogil:
        for i in range(size // RUN_TIMER_SIZE):
            at = i * RUN_TIMER_SIZE
            value = load_i64(p + at + field)
            if low <= value and value < high:
                memcpy(out + used, p + at, RUN_TIMER_SIZE)
                used += RUN_TIMER_SIZE
    return found[:used]


def rows_between(bytes rows not None, int64_t start, int64_t cut):
    """Return the rows of timers whose records are between two log positions.

    Args:
        rows: pending timers, as a whole merge returns them.
        start: where the log begins.
        cut: the end of the range.
    """
    return rows_within(rows, RUN_TIMER_AT_BODY_POS, start, cut)


def rows_due_after(bytes rows not None, bytes last not None):
    """Return the rows of timers that are due after another one, in the order of delivery.

    Args:
        rows: pending timers, as a whole merge returns them.
        last: the row of that timer; b"": return all.
    """
    cdef const uint8_t* p = <const uint8_t*><const char*>rows
    cdef Py_ssize_t size = len(rows), i, at, used = 0
    cdef bytes found
    cdef uint8_t* out
    cdef RowKey bound, key
    if not last:
        return rows
    assert len(last) == RUN_TIMER_SIZE
    bound = key_of_row(RUN_DUE, <const uint8_t*><const char*>last)
    found = PyBytes_FromStringAndSize(NULL, size)
    out = <uint8_t*><char*>found
    with nogil:
        for i in range(size // RUN_TIMER_SIZE):
            at = i * RUN_TIMER_SIZE
            key = key_of_row(RUN_DUE, p + at)
            if is_key_before(&bound, &key):
                memcpy(out + used, p + at, RUN_TIMER_SIZE)
                used += RUN_TIMER_SIZE
    return found[:used]


def rows_due_between(bytes rows not None, int64_t from_ms, int64_t until_ms):
    """Return the rows of timers that are due in an interval, in their order.

    Args:
        rows: pending timers, as a whole merge returns them.
        from_ms, until_ms: where it begins and ends, epoch ms.
    """
    return rows_within(rows, RUN_TIMER_AT_DUE, from_ms, until_ms)


def rows_of_topic(bytes rows not None, int64_t topic_id, int64_t partition):
    """Return the rows of timers of a topic.

    Args:
        rows: pending timers, as a whole merge returns them.
        topic_id: where they are delivered.
        partition: index of a partition; -1: all.
    """
    # Topic id and partition lie side by side.
    cdef int64_t low = topic_id << 32 | max(partition, 0)
    return rows_within(
        rows, RUN_TIMER_AT_TOPIC_ID, low, low + 1 if partition >= 0 else (topic_id + 1) << 32
    )


def count_due(
    bytes rows not None, int64_t from_ms, int64_t step_ms, int64_t[::1] counts not None
):
    """Count timers by intervals of due time.

    Args:
        rows: pending timers, as a whole merge returns them; earlier ones are left out.
        from_ms: where the first interval begins, epoch ms.
        step_ms: length of an interval, from 1 on.
        counts: the counts, to which this adds; the last one takes all later timers too.
    """
    cdef const uint8_t* p = <const uint8_t*><const char*>rows
    cdef Py_ssize_t size = len(rows), i
    cdef int64_t due_ms
    if step_ms < 1 or not counts.shape[0]:
        raise ValueError("there is no interval")
    with nogil:
        for i in range(size // RUN_TIMER_SIZE):
            due_ms = load_i64(p + i * RUN_TIMER_SIZE + RUN_TIMER_AT_DUE)
            if due_ms >= from_ms:
                counts[min((due_ms - from_ms) // step_ms, counts.shape[0] - 1)] += 1


def rows_accepted_below(bytes rows not None, int64_t end_pos):
    """Return the rows of timers that were accepted below a log position."""
    return rows_within(rows, RUN_TIMER_AT_ACCEPT_POS, 0, end_pos)


def sum_of_rows(bytes rows not None):
    """Return a sum of the rows of pending timers, modulo 2^64, that does not depend on their order.

    Args:
        rows: as a whole merge returns them.
    """
    cdef const uint8_t* p = <const uint8_t*><const char*>rows
    cdef Py_ssize_t count = len(rows) // RUN_TIMER_SIZE, i
    cdef uint64_t total = 0, hashed
    cdef int at
    with nogil:
        for i in range(count):
            hashed = 0
            for at in range(0, RUN_TIMER_SIZE, 8):
                # The finalizer of SplitMix64, so that no two fields can cancel each other out.
                hashed = (hashed ^ load_u64(p + i * RUN_TIMER_SIZE + at)) * 0xBF58476D1CE4E5B9ULL
                hashed ^= hashed >> 31
            total += hashed
    return total


def lowest_place(bytes rows not None, int64_t start):
    """Return the lowest log position of a frame that holds one of the timers; -1 if none does.

    Args:
        rows: as in `rows_between`.
        start: where the log begins; a timer whose record is before it is lost.
    """
    cdef const uint8_t* p = <const uint8_t*><const char*>rows
    cdef Py_ssize_t size = len(rows), i, at
    cdef int64_t lowest = INT64_MAX, place
    with nogil:
        for i in range(size // RUN_TIMER_SIZE):
            at = i * RUN_TIMER_SIZE
            place = load_i64(p + at + RUN_TIMER_AT_BODY_POS)
            if place >= start:
                lowest = min(lowest, place)
    return -1 if lowest == INT64_MAX else lowest


def accept_groups(bytes rows not None):
    """Divide rows by the frame that accepted the timers.

    Args:
        rows: as in `rows_between`.

    Returns:
        (log position of the frame that holds them now, end of their rows in bytes) of each.
    """
    cdef const uint8_t* p = <const uint8_t*><const char*>rows
    cdef Py_ssize_t size = len(rows), i, at
    cdef int64_t accept_pos, last_pos = -1, place = -1
    groups = []
    for i in range(size // RUN_TIMER_SIZE):
        at = i * RUN_TIMER_SIZE
        accept_pos = load_i64(p + at + RUN_TIMER_AT_ACCEPT_POS)
        if accept_pos != last_pos:
            if at:
                groups.append((place, at))
            last_pos = accept_pos
            place = load_i64(p + at + RUN_TIMER_AT_BODY_POS)
    if last_pos >= 0:
        groups.append((place, size))
    return groups
