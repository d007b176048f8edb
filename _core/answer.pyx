"""An answer in the order of a connection's requests.

It leaves when it is the first and the log is durable up to `end_pos`. An answer to Produce that
waits for the disk longer than it may becomes REQUEST_TIMED_OUT: the records are in the log and stay
there, and who sends them again as an idempotent producer gets the first answer. Layer 0: no I/O.
"""

from libc.stdint cimport int64_t, uint8_t

from _core.octets cimport store_u16, store_u64

cdef class Answer:
    """A place in the order of answers."""

    def __cinit__(self):
        self.since_ms = -1

    cdef int64_t take(self, int64_t room, list result) except -1:
        """Move what `room` allows of the pieces to `result`; how many bytes."""
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
        """Give up on the batches that have waited too long; how many these are.

        The first call only notes that the answer waits.
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
        # Nothing of it has left: it is one piece.
        told = bytearray(self.pieces[0])
        p = told
        mark = <const Mark*><const char*>self.marks
        for i in range(len(self.marks) // <Py_ssize_t>sizeof(Mark)):
            if mark[i].end_pos > durable_pos:
                store_u16(p + mark[i].at, REQUEST_TIMED_OUT)
                store_u64(p + mark[i].at + 2, -1)
                store_u64(p + mark[i].at + 10, -1)
                given_up += 1
        self.pieces[0] = bytes(told)
        self.marks = None
        self.end_pos = 0
        return given_up


cdef int64_t time_out(
    answers, int64_t now_ms, int64_t wait_max_ms, int64_t durable_pos, int64_t* end_pos
) except -1:
    """Give up on what has waited too long; how many batches.

    `end_pos` is raised to where they end: they are in the log, so their client must not outrun the
    disk.
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
