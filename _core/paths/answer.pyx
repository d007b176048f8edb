"""A response in the queue of a connection, which keeps the order of the requests.

A response is sent when it is the first of the queue and the log is durable up to `end_pos`. A
Produce response that waits too long for the disk becomes REQUEST_TIMED_OUT. Its records stay in the
log, and an idempotent producer that sends them again gets the original response.

Layer 0: no I/O.
"""

from libc.stdint cimport int64_t, uint8_t

from _core.bytes.octets cimport store_u16, store_u64

cdef class Answer:
    """A response that waits to be sent."""

    def __cinit__(self):
        self.since_ms = -1

    cdef int64_t take(self, int64_t room, list result) except -1:
        """Move pieces of up to about `room` bytes to `result`; return the number of bytes."""
        cdef int64_t size, taken = 0
        cdef Py_ssize_t count = 0
        for piece in self.pieces:
            if taken >= room:
                break
            size = len(piece)
            if size > room - taken and type(piece) is not bytes:
                size = room - taken
                self.pieces[count] = piece[size:]
                result.append(piece[:size])
                taken += size
                break
            result.append(piece)
            taken += size
            count += 1
        del self.pieces[:count]
        return taken

    cdef int64_t time_out(self, int64_t now_ms, int64_t wait_max_ms, int64_t durable_pos) except -1:
        """Time out the batches that have waited too long; return their number.

        The first call only records that the response is waiting.
        """
        cdef const Mark* mark
        cdef uint8_t* p
        cdef int64_t i, given_up = 0
        if self.marks is None or self.end_pos <= durable_pos:
            return 0
        if self.since_ms < 0:
            self.since_ms = now_ms
        if now_ms - self.since_ms < min(self.wait_ms, wait_max_ms):
            return 0
        # No part of it has been sent: it is one piece.
        patched = bytearray(self.pieces[0])
        p = patched
        mark = <const Mark*><const char*>self.marks
        for i in range(len(self.marks) // <Py_ssize_t>sizeof(Mark)):
            if mark[i].end_pos > durable_pos:
                store_u16(p + mark[i].at, REQUEST_TIMED_OUT)
                store_u64(p + mark[i].at + 2, -1)
                store_u64(p + mark[i].at + 10, -1)
                given_up += 1
        self.pieces[0] = bytes(patched)
        self.marks = None
        self.end_pos = 0
        return given_up


cdef int64_t time_out(
    answers, int64_t now_ms, int64_t wait_max_ms, int64_t durable_pos, int64_t* end_pos
) except -1:
    """Time out the batches of all `answers` that have waited too long; return their number.

    Raises `end_pos` to the end of these batches. They are in the log, so their client must still
    wait for the disk before it sends more.
    """
    cdef Answer answer
    cdef int64_t own_end, count, given_up = 0
    for answer in answers:
        own_end = answer.end_pos
        count = answer.time_out(now_ms, wait_max_ms, durable_pos)
        if count:
            given_up += count
            end_pos[0] = max(end_pos[0], own_end)
    return given_up
