"""Append a frame, then apply it: the one way by which anything changes.

Layer 0: no I/O; the payload of a topic frame comes from the store.
"""

from libc.stdint cimport int64_t

from _core.frames cimport FrameHeader, frame_size
from _core.layout cimport *
from _core.log_tail cimport FrameBody, LogTail
from _core.partition cimport Partition, Topic
from _core.projections cimport Projections


cdef class LogWriter:
    """Ties the tail of the log to the projections."""

    def __cinit__(
        self, LogTail tail not None, Projections projections not None, *, int64_t frame_size_max,
        topic_payload not None
    ):
        """Join the two.

        Args:
            tail: the growing end of the log.
            projections: what follows from the log.
            frame_size_max: largest frame in bytes; a segment holds it and a topic frame with room
                to spare.
            topic_payload: function of a Topic that encodes its topic frame.
        """
        self.tail = tail
        self.projections = projections
        self.frame_size_max = frame_size_max
        self.topic_payload = topic_payload

    cdef bint prepare(self, Topic topic, int64_t size, bint reserved, int64_t now_ms) except -1:
        cdef int64_t extra, end
        payload = None
        while True:
            end = self.tail.segment_end
            extra = 0
            if topic.declared_in != end:
                payload = self.topic_payload(topic)
                extra = frame_size((len(payload) + 7) & ~7, 0, 0)
            if not self.tail.room_for(size + extra, reserved):
                return False
            if self.tail.segment_end == end:
                break
        if extra:
            # Each segment can be read by itself: it says who a topic is before its first frame.
            self.tail.append_control(
                KIND_TOPIC, topic_id=topic.topic_id, store_time_ms=now_ms, payload=payload
            )
            topic.declared_in = end
        return True

    cdef int append(self, Partition partition, FrameHeader* h, const FrameBody* body) except -1:
        cdef Py_ssize_t start
        h.topic_id = partition.topic.topic_id
        h.partition = partition.index
        start = self.tail.append(h, body)
        return self.projections.apply(partition, h, self.tail.staging.data + start, True)
