"""The records of one batch that ask for a reply (`x-deliver-reply`), and the topics they name.

A thread may split a large batch. What is replied follows from the ids at the moment the batch is
appended, so `replies` decides that on the event loop.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t

from _core.bytes.batch cimport Slice
from _core.bytes.buffer cimport append, release, shrink
from _core.paths.delay_fault_codes cimport SPLIT_OK, SPLIT_REPLY_TOPIC, SPLIT_TOO_MANY_REPLY_TOPICS

cdef enum:
    INVALID_NAME = -1
    KEEP_BYTES = 64 << 10     # between two batches

_NAME_SIZE_MAX = 249
_NAME_BYTES = frozenset(
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
)


cdef class ReplyAsks:
    """The asks of one batch after the other. It has no Python API."""

    def __cinit__(self, bint is_open):
        """`is_open`: topics can be made; otherwise no name is valid."""
        self.is_open = is_open
        self.closed_topics = frozenset()
        self.topics = []

    def __dealloc__(self):
        release(&self.asks)

    cdef void reset(self) noexcept nogil:
        shrink(&self.asks, KEEP_BYTES)
        self.count = 0

    cdef int note(self, int32_t index, const Slice* name) except -1 nogil:
        cdef ReplyAsk ask
        with gil:
            if self.count == 0:
                self.topics = []
            ask.topic = self._find(name)
        if ask.topic == INVALID_NAME:
            return SPLIT_REPLY_TOPIC
        if ask.topic == REPLY_TOPICS_MAX:
            return SPLIT_TOO_MANY_REPLY_TOPICS
        ask.index = index
        append(&self.asks, &ask, sizeof(ReplyAsk))
        self.count += 1
        return SPLIT_OK

    cdef int _find(self, const Slice* name) except -2:
        """The number of a topic; INVALID_NAME, or REPLY_TOPICS_MAX if it is one too many."""
        if name.size < 1 or not self.is_open:
            return INVALID_NAME
        text = (<const char*>name.data)[:name.size]
        if name.size > 1 and name.data[0] == name.data[name.size - 1] == c'"':
            text = text[1:name.size - 1]    # as Spring and Connect's JsonConverter write it
        if text in self.topics:
            return <int>self.topics.index(text)
        if (
            not 1 <= len(text) <= _NAME_SIZE_MAX or not _NAME_BYTES.issuperset(text)
            or text in (b".", b"..") or text in self.closed_topics
        ):
            return INVALID_NAME
        if len(self.topics) < REPLY_TOPICS_MAX:
            self.topics.append(text)
            return <int>len(self.topics) - 1
        return REPLY_TOPICS_MAX
