"""A fetch that waits. Layer 0: no I/O, no clock."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.buffer cimport Buf
from _core.bytes.octets cimport Cursor, cursor_of
from _core.paths.answer cimport Answer, begin_answer
from _core.paths.fetch cimport (
    FETCH_ANSWERED, FETCH_COLD, FETCH_TOO_LITTLE, FETCH_UNFINISHED, FetchAsk, FetchPath,
)
from _core.queue.partition cimport Partition

cdef enum:
    # Of a partition that a parked fetch watches: a place in two tables.
    WATCH_BYTES = 128
    FIRST_FLEXIBLE = 12


cdef class ParkedFetch:
    """A fetch that waits for more data, or for frames to be read from disk.

    Attributes:
        session: the connection.
        wait_ms: how long the client is willing to wait, ms.
        cold: places that a thread must read first (`FrameFinder.place`); empty if it waits for
            data.
        answered: whether it has been answered.
        is_unfinished: it names many partitions, and some are left to be looked at: call
            `Session.retry` in another turn.
        was_woken: set by the owner when there is more data while it `is_unfinished`.
        timer: the owner's handle of the time-out.
        is_expired: set by the owner when the time-out expires.
    """

    cdef int64_t held_bytes(self) noexcept:
        """Memory that it holds."""
        cdef int64_t size = len(self.request) + WATCH_BYTES * len(self.partitions)
        return size if self.wide is None else size + self.wide.held_bytes()

    cdef int wait(self, FetchPath path, int result, int64_t min_bytes, int64_t tried_pos) except -1:
        cdef Partition partition
        self.is_unfinished = result == FETCH_UNFINISHED
        self.cold = path.cold if result == FETCH_COLD else []
        self.enough_pos = 0
        if result == FETCH_COLD and self.wide is not None:
            self.wide.unpark()
        elif result == FETCH_TOO_LITTLE:
            self.partitions = path.watched
            self.enough_pos = tried_pos + min_bytes - path.answered_bytes
            for partition in self.partitions:
                partition.waiters[self] = True
            # Another try follows if it was woken meanwhile, and there may be enough.
            self.is_unfinished = self.was_woken and self.may_have_enough(
                path.projections.visible_pos
            )
        if result != FETCH_UNFINISHED:
            self.was_woken = False
            self.is_tried = True
        return 0

    cdef list attempt(self, FetchPath fetch, Buf* out):
        """Try it, or a part of it, with `out` for a response; return that, or None if it waits."""
        cdef Cursor c
        cdef FetchAsk ask
        cdef FetchPath path = fetch
        cdef int64_t tried_pos = fetch.projections.visible_pos
        cdef int result
        cdef list pieces
        if self.wide is not None:
            path = self.wide.path
            result = self.wide.step(
                self.request, self.version, self.correlation, not self.is_expired, self.is_tried
            )
            ask = self.wide.ask
            tried_pos = self.wide.begun_pos
        else:
            self.unpark()
            c = cursor_of(<const uint8_t*><const char*>self.request, len(self.request))
            begin_answer(out, self.correlation, self.version >= FIRST_FLEXIBLE)
            result = fetch.handle(&c, self.version, not self.is_expired, True, out, &ask)
        if result != FETCH_ANSWERED:
            self.wait(path, result, ask.min_bytes, tried_pos)
            return None
        pieces = path.pieces(out, 0) if self.wide is None else self.wide.pieces()
        self.slice_bytes = path.slice_bytes
        return pieces

    cdef int finish(self) except -1:
        """Note that it is answered, and keep nothing but that."""
        self.unpark()
        self.wide = None
        self.request = b""
        self.is_unfinished = False
        self.answered = True
        return 0

    def unpark(self):
        """Stop watching its partitions."""
        cdef Partition partition
        if self.wide is not None:
            self.wide.unpark()
        for partition in self.partitions:
            partition.waiters.pop(self, None)
        self.partitions = []

    def may_have_enough(self, int64_t visible_pos):
        """Return whether there may be enough data now that the log is visible up to a position.

        What became visible since the fetch was tried is no more than the log is longer. So a fetch
        that waits for much is not tried again for each record.
        """
        return visible_pos >= self.enough_pos

    def drop(self):
        """Let go of everything: the connection is closed, and nobody waits for the answer."""
        self.finish()
        self.session = self.answer = None
        self.cold = []


cdef ParkedFetch new_parked(session, Answer answer, int version, int32_t correlation):
    """A fetch of a session that waits; its response is to be `answer`."""
    cdef ParkedFetch parked = ParkedFetch()
    parked.session = session
    parked.answer = answer
    parked.version = version
    parked.correlation = correlation
    parked.partitions = []
    answer.parked = True
    return parked
