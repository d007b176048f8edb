"""A response in the queue of a connection, which keeps the order of the requests.

A response is sent when it is the first of the queue and the log is durable up to `end_pos`, in a
sync pair on the slave as well, and up to `local_pos` on this machine. A Produce response with acks
0 or 1 has the second alone. One that waits too long for the disk becomes REQUEST_TIMED_OUT. Its
records stay in the log, and an idempotent producer that sends them again gets the original
response. A response of the control plane becomes its `late` one, with an error after which clients
ask again.

Layer 0: no I/O.
"""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t

from _core.bytes.buffer cimport Buf
from _core.bytes.kafka_wire cimport put_i32, put_i8
from _core.bytes.octets cimport store_u16, store_u64

cdef class Reply:
    """A response of the control plane.

    Attributes:
        pieces: the response without its size prefix.
        payload: the same in one piece.
        end_pos: log position that must be durable before it is sent.
        wait_ms: how long it may wait for that, besides the broker's own limit.
        late: None, or a function that returns the payload to send if it waits longer.
        kept_bytes: memory that `late` holds.
    """

    def __cinit__(self, payload not None, int64_t end_pos=0, *, int64_t wait_ms=INT64_MAX,
                  late=None, int64_t kept_bytes=0):
        self.pieces = payload if isinstance(payload, list) else [payload]
        self.end_pos = end_pos
        self.wait_ms = wait_ms
        self.late = late
        self.kept_bytes = kept_bytes

    @property
    def payload(self):
        return b"".join(self.pieces)


cdef int begin_answer(Buf* out, int32_t correlation, bint flexible) except -1:
    put_i32(out, 0)  # size, filled in at the end
    put_i32(out, correlation)
    if flexible:
        put_i8(out, 0)
    return 0


cdef list with_size(list pieces):
    """Return the pieces of a response with its size."""
    if len(pieces) == 1:
        return [len(pieces[0]).to_bytes(4, "big") + pieces[0]]
    return [sum(map(len, pieces)).to_bytes(4, "big"), *pieces]


cdef class Answer:
    """A response that waits to be sent."""

    def __cinit__(self):
        self.since_ms = -1

    cdef int set_reply(self, Reply reply) except -1:
        self.pieces = with_size(reply.pieces)
        self.end_pos = reply.end_pos
        self.wait_ms = reply.wait_ms
        self.late = reply.late
        self.kept_bytes = reply.kept_bytes
        return 0

    cdef bint may_leave(self, const Durable* durable) noexcept:
        """Return whether the log is durable as far as it needs."""
        return self.end_pos <= durable.pos and self.local_pos <= durable.local_pos

    cdef bint is_late(self, const Patience* patience) noexcept:
        """Return whether it has waited too long; the first call only records that it waits."""
        if self.parked or self.may_leave(&patience.durable):
            return False
        if self.since_ms < 0:
            self.since_ms = patience.now_ms
        return patience.now_ms - self.since_ms >= min(self.wait_ms, patience.wait_max_ms)

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
                self.slice_bytes -= size if self.slice_bytes else 0
                break
            result.append(piece)
            taken += size
            if self.slice_bytes and type(piece) is not bytes:
                self.slice_bytes -= size
            count += 1
        del self.pieces[:count]
        return taken

    cdef int time_out(self, const Patience* patience, TimedOut* found) except -1:
        """Time out a response, or batches of it, that waited too long."""
        cdef int64_t size
        if self.marks is None and self.late is None:
            return 0
        if not self.is_late(patience):
            return 0
        found.end_pos = max(found.end_pos, self.end_pos, self.local_pos)
        self.end_pos = self.local_pos = 0
        if self.late is None:
            return self._time_out_batches(patience, found)
        size = sum(map(len, self.pieces))
        self.pieces = with_size([self.late()])
        self.late = None
        found.late += 1
        found.grown_bytes += <int64_t>len(self.pieces[0]) - size - self.kept_bytes
        self.kept_bytes = 0
        return 0

    cdef int _time_out_batches(self, const Patience* patience, TimedOut* found) except -1:
        cdef const Mark* mark
        cdef uint8_t* p
        cdef int64_t i
        # No part of it has been sent: it is one piece.
        patched = bytearray(self.pieces[0])
        p = patched
        mark = <const Mark*><const char*>self.marks
        for i in range(len(self.marks) // <Py_ssize_t>sizeof(Mark)):
            if mark[i].is_local:
                if mark[i].end_pos <= patience.durable.local_pos:
                    continue
                found.local_batches += 1
            else:
                if mark[i].end_pos <= patience.durable.pos:
                    continue
                found.batches += 1
            store_u16(p + mark[i].at, patience.local_error if mark[i].is_local else patience.error)
            store_u64(p + mark[i].at + 2, -1)
            store_u64(p + mark[i].at + 10, -1)
        self.pieces[0] = bytes(patched)
        self.marks = None
        return 0


cdef Queued count_queued(answers) except *:
    cdef Answer answer
    cdef Queued found = Queued(0, 0, 0)
    for answer in answers:
        found.waiting += answer.parked
        assert not (answer.parked and answer.pieces)
        found.bytes += answer.kept_bytes
        found.slice_bytes += answer.slice_bytes
        for piece in answer.pieces or ():
            found.bytes += len(piece)
    return found


cdef Patience patience_of(
    int64_t durable_pos, int64_t local_pos, int64_t now_ms, int64_t wait_max_ms
) noexcept:
    cdef Patience patience
    patience.durable.pos = durable_pos
    patience.durable.local_pos = max(durable_pos, local_pos)
    patience.now_ms = now_ms
    patience.wait_max_ms = wait_max_ms
    patience.error = patience.local_error = 0
    return patience


cdef TimedOut time_out(answers, const Patience* patience) except *:
    """Time out the `answers`, or batches of them, that waited too long for the disk or a slave."""
    cdef Answer answer
    cdef TimedOut found = TimedOut(0, 0, 0, 0, 0)
    for answer in answers:
        answer.time_out(patience, &found)
    return found


cdef class ResponseSlot:
    """The pending response to a control-plane request; later requests wait for it.

    Attributes:
        session: the connection, once the slot is in its queue.
        answered: whether `complete` was called.
    """

    cdef int wait(self, object session, Answer answer) except -1:
        """Take a place in the queue of a session."""
        self.session = session
        self.answer = answer
        answer.parked = True
        return 0

    def complete(self, Reply reply not None):
        """Set the response. Nothing is sent if the connection is closed."""
        assert not self.answered
        self.answered = True
        if self.session is None:
            self.reply = reply
        else:
            self.answer.parked = False
            self.session.end_wait(self.answer, reply)
