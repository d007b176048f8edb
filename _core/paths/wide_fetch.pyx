"""A Fetch that names thousands of partitions: it takes several turns.

To look at 100,000 partitions takes 20 ms and more. A part of them is done in a turn, with a
`FetchPath` of its own, which keeps what it has found. Each partition is answered as it is when its
turn comes.

It watches its partitions from the first look on, with a bitmap for each topic, so that no record
goes unnoticed that comes while others are looked at: a wake meanwhile leads to another try.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.buffer cimport release
from _core.bytes.kafka_errors cimport NONE
from _core.bytes.kafka_wire cimport put_array, put_i8, skip_tags, take_array
from _core.bytes.octets cimport Cursor, cursor_of
from _core.paths.answer cimport begin_answer
from _core.paths.fetch cimport (
    FETCH_ANSWERED, FETCH_COLD, FETCH_TOO_LITTLE, FETCH_UNFINISHED, FetchPath,
)
from _core.queue.partition cimport Topic

cdef enum:
    FIRST_FLEXIBLE = 12
    # Topics and partitions of a turn: a millisecond or two.
    ITEMS_PER_TURN = 4096
    # Of a watched topic, besides its bitmap: a place in two tables.
    WATCH_BYTES = 256
    AHEAD_MAX = 64


cdef class WideFetch:
    """The state of such a request between two turns."""

    def __cinit__(self, FetchPath shared not None, waiter not None):
        """Begin with nothing.

        Args:
            shared: the path of all connections, which counts.
            waiter: the parked fetch to wake.
        """
        self.shared = shared
        self.path = FetchPath(
            shared.projections, shared.view, size_max=shared.size_max,
            item_count_max=shared.item_count_max, closed_topics=shared.closed_topics,
        )
        self.path.adopt(shared)
        self.path.waiter = waiter
        self.topics = set()

    def __dealloc__(self):
        release(&self.out)

    cdef int step(
        self, bytes request, int version, int32_t correlation, bint patient, bint is_retry
    ) except -1:
        cdef FetchPath p = self.path
        cdef const uint8_t* body = <const uint8_t*><const char*>request
        cdef Cursor c = cursor_of(body, len(request))
        cdef int error
        if self.at == 0:
            self.out.size = 0
            begin_answer(&self.out, correlation, version >= FIRST_FLEXIBLE)
            p.copies_max, p.blocks_max = self.shared.copies_max, self.shared.blocks_max
            p.named = {}
            self.begun_pos = p.projections.visible_pos
            p.is_shut = self.shared.is_shut
            error = p._begin(&c, version, &self.ask)
            p.is_patient = patient and self.ask.max_wait_ms > 0 and self.ask.min_bytes > 0
            if error != NONE:
                return self._end(p.refuse_all(version, error, &self.out))
            p._put_head(&self.out, version, NONE)
            self.topics_left = take_array(&c, version >= FIRST_FLEXIBLE, 3)
            put_array(&self.out, version >= FIRST_FLEXIBLE, self.topics_left)
            self.in_topic = False
            self.at = c.p - body
        if self._topics(request, version) == FETCH_UNFINISHED:
            return FETCH_UNFINISHED
        if version >= FIRST_FLEXIBLE:
            put_i8(&self.out, 0)
        return self._end(p._outcome(patient, is_retry, &self.ask))

    cdef int _topics(self, bytes request, int version) except -1:
        cdef FetchPath p = self.path
        cdef const uint8_t* body = <const uint8_t*><const char*>request
        cdef Cursor c = cursor_of(body, len(request))
        cdef bint flexible = version >= FIRST_FLEXIBLE
        cdef int left = ITEMS_PER_TURN
        c.p = body + self.at
        while self.topics_left:
            if not self.in_topic:
                self.topic = p._take_topic(&c, version, &self.out)
                self.partitions_left = take_array(&c, flexible, 16)
                put_array(&self.out, flexible, self.partitions_left)
                self.in_topic = True
                left -= 1
            if self.topic is not None and self.topic.deleted:
                self.topic = None
            while self.partitions_left and left > 0:
                p._partition(&c, version, self.topic, &self.out)
                self.partitions_left -= 1
                left -= 1
            if self.partitions_left == 0:
                skip_tags(&c, flexible)
                if flexible:
                    put_i8(&self.out, 0)
                self.in_topic = False
                self.topics_left -= 1
            if left <= 0 and self.topics_left:
                self.at = c.p - body
                self.topics.update(p.named)
                return FETCH_UNFINISHED
        assert not c.failed
        self.topics.update(p.named)
        p._count_work()
        return FETCH_ANSWERED

    cdef int _end(self, int result) except -1:
        """End a try."""
        cdef FetchPath p = self.path
        self.at = 0
        self.topic = None
        self.shared.sent_bytes += p.sent_bytes
        p.sent_bytes = 0
        self.shared.ahead += p.ahead[:max(0, AHEAD_MAX - <int>len(self.shared.ahead))]
        p.ahead = []
        if result == FETCH_TOO_LITTLE or result == FETCH_COLD:
            p.blocks = []
            release(&self.out)
        return result

    cdef list pieces(self):
        """The response, after FETCH_ANSWERED."""
        found = self.path.pieces(&self.out, 0)
        release(&self.out)
        return found

    cdef int64_t held_bytes(self) noexcept:
        cdef int64_t marks = len(self.path.projections.partitions) >> 3
        return self.out.capacity + len(self.topics) * WATCH_BYTES + marks

    cdef int unpark(self) except -1:
        """Stop watching."""
        cdef Topic topic
        for topic in self.topics:
            topic.waiters.pop(self.path.waiter, None)
        self.topics = set()
        return 0
