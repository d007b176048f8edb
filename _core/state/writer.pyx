"""The write path: append a frame to the log, then apply it. All state changes go through here.

An error between the two steps leaves `LogTail.unapplied_pos` set, and nothing is appended or
written after that.

Layer 0: no I/O. The payload of a topic frame comes from the store.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memset

from _core.bytes.crc32c cimport extend
from _core.log.frames cimport FrameHeader, blank_header, frame_size
from _core.bytes.layout cimport *
from _core.log.tail cimport ROOM_DELIVERY, ROOM_RECORDS, FrameBody, LogTail
from _core.bytes.octets cimport store_u16, store_u32, store_u64
from _core.queue.partition cimport Partition, Topic
from _core.state.projections cimport Projections


cdef enum:
    # One less than the largest i32, because clients add 1 to the last delta.
    EMPTY_DELTA_MAX = 0x7FFFFFFE


cdef class LogWriter:
    """Appends frames to the tail of the log and applies them to the projections."""

    def __cinit__(
        self, LogTail tail not None, Projections projections not None, *, int64_t frame_size_max,
        topic_payload not None
    ):
        """Connect the tail and the projections.

        Args:
            tail: the growing end of the log.
            projections: the state that follows from the log.
            frame_size_max: largest frame in bytes. A segment has more than enough room for it and a
                topic frame.
            topic_payload: function of a Topic that encodes its topic frame.
        """
        self.tail = tail
        self.projections = projections
        self.frame_size_max = frame_size_max
        self.topic_payload = topic_payload

    cdef bint prepare(self, Topic topic, int64_t size, int room, int64_t now_ms) except -1:
        cdef int64_t extra, end
        payload = None
        if room == ROOM_RECORDS and self.tail.is_refusing:
            return False  # without the topic's payload, which may take long to encode
        while True:
            end = self.tail.segment_end
            extra = 0
            if topic.declared_in != end:
                payload = self.topic_payload(topic)
                extra = frame_size((len(payload) + 7) & ~7, 0, 0)
            if not self.tail.room_for(size + extra, room):
                return False
            if self.tail.segment_end == end:
                break
        if extra:
            # Each segment is self-contained: it declares a topic before the topic's first frame.
            assert self.tail.unapplied_pos < 0  # I7
            self.tail.append_control(
                KIND_TOPIC, topic_id=topic.topic_id, store_time_ms=now_ms, payload=payload
            )
            topic.declared_in = end
            self.tail.unapplied_pos = -1
        return True

    cdef bint fits(self, Topic topic, list others, int64_t size) except -1:
        cdef Topic other
        cdef int64_t total = size, end = self.tail.segment_end
        cdef bint is_declared = topic.declared_in == end
        for other in others:
            is_declared = is_declared and other.declared_in == end
        # The payloads may take long to encode, and are seldom needed.
        if is_declared and size + FRAME_HEADER_SIZE <= end - self.tail.pointers.wrote:
            return True
        for other in others:
            payload = self.topic_payload(other)
            total += frame_size((len(payload) + 7) & ~7, 0, 0)
        return total <= self.frame_size_max

    cdef bint prepare_all(
        self, Topic topic, list others, int64_t size, int room, int64_t now_ms
    ) except -1:
        cdef int64_t end = -1
        cdef Topic other
        if not others:
            return self.prepare(topic, size, room, now_ms)
        # A declaration may begin a new segment, in which those before it are to be repeated.
        while self.tail.segment_end != end:
            end = self.tail.segment_end
            for other in others:
                if not self.prepare(other, size, room, now_ms):
                    return False
            if not self.prepare(topic, size, room, now_ms):
                return False
        return True

    cdef int append(self, Partition partition, FrameHeader* h, const FrameBody* body) except -1:
        cdef Py_ssize_t start
        h.topic_id = partition.topic.topic_id
        h.partition = partition.index
        assert self.tail.unapplied_pos < 0  # I7
        start = self.tail.append(h, body)
        self.projections.apply(partition, h, self.tail.staging.data + start, True)
        self.tail.unapplied_pos = -1
        return 0

    def append_gap(
        self, Partition partition not None, *, int64_t end_offset, int64_t store_time_ms
    ):
        """Append empty batches, so that the next record gets offset `end_offset` or a later one.

        A consumer that reaches an empty batch reads it and continues after it. Each takes at most
        two billion offsets and 224 bytes of the log.

        Args:
            partition: the partition whose offsets stay unused.
            end_offset: the first offset to use again. A lower offset than the next one is allowed
                and appends nothing.
            store_time_ms: now, epoch ms.

        Returns:
            True if all are appended, False if the disk is full.
        """
        cdef uint8_t batch[BATCH_HEADER_SIZE]
        cdef FrameHeader h
        cdef FrameBody body
        while partition.next_offset < end_offset:
            if not self.prepare(
                partition.topic, frame_size(0, BATCH_HEADER_SIZE, 0), ROOM_DELIVERY, store_time_ms
            ):
                return False
            blank_header(&h, KIND_ACCEPT)
            h.store_time_ms = store_time_ms
            h.base_offset = partition.next_offset
            h.last_delta = <int32_t>min(end_offset - partition.next_offset - 1, EMPTY_DELTA_MAX)
            h.running_max = partition.running_max
            encode_empty(batch, &h, self.tail.epoch)
            memset(&body, 0, sizeof(body))
            body.visible = body.visible_patch = batch
            body.visible_size = body.visible_patch_size = BATCH_HEADER_SIZE
            self.append(partition, &h, &body)
        return True


cdef void encode_empty(uint8_t* batch, const FrameHeader* h, int32_t epoch) noexcept nogil:
    """Encode a batch without records, as Kafka's compaction does.

    REQUIRES: BATCH_HEADER_SIZE bytes at `batch`.
    """
    memset(batch, 0, BATCH_HEADER_SIZE)
    store_u64(batch + BATCH_AT_BASE_OFFSET, h.base_offset)
    store_u32(batch + BATCH_AT_LENGTH, BATCH_HEADER_SIZE - 12)
    store_u32(batch + BATCH_AT_LEADER_EPOCH, epoch)
    batch[BATCH_AT_MAGIC] = 2
    store_u32(batch + BATCH_AT_LAST_DELTA, h.last_delta)
    store_u64(batch + BATCH_AT_BASE_TIMESTAMP, <int64_t>-1)
    store_u64(batch + BATCH_AT_MAX_TIMESTAMP, <int64_t>-1)
    store_u64(batch + BATCH_AT_PRODUCER_ID, <int64_t>-1)
    store_u16(batch + BATCH_AT_PRODUCER_EPOCH, <uint16_t>-1)
    store_u32(batch + BATCH_AT_BASE_SEQUENCE, <uint32_t>-1)
    store_u32(
        batch + BATCH_AT_CRC,
        extend(0, batch + BATCH_CRC_START, BATCH_HEADER_SIZE - BATCH_CRC_START),
    )
