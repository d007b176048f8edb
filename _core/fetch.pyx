"""Fetch, versions 4 to 12: from the bytes of a request to slices of the log.

Behaviour. The answer is made of its own bytes and of slices of the mapped segments, which go to the
socket without a copy; batches below a few KiB are copied, which is cheaper than one more slice. It
begins with the batch that contains the offset; the first batch is given even if it is larger than
the limits (KIP-74). Every partition that was asked for is in the answer. Fetch sessions (KIP-227)
are declined: the session id is always 0. There are no transactions yet, so the last stable offset
is the high watermark and the list of aborted transactions is empty.

Versions. 5: log start offset; 7: sessions; 9: leader epoch; 11: rack; 12: flexible encoding, last
fetched epoch.

Layer 0: no I/O, no clock. Nothing cold is touched: see `LogView.is_resident`.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc

from _core.buffer cimport Buf, append, reserve
from _core.kafka_wire cimport (
    put_array, put_i8, put_i16, put_i32, put_i64, put_string, skip_tags, take_array, take_string,
)
from _core.layout cimport *
from _core.log_view cimport LogView
from _core.octets cimport (
    Cursor, load_i32, load_i64, store_u32, store_uvarint, take_i8, take_i32, take_i64,
)
from _core.partition cimport Partition, Topic
from _core.projections cimport Projections

# Kafka's error codes that this path answers.
cdef enum:
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    FETCH_SESSION_ID_NOT_FOUND = 70
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75

cdef enum:
    FIRST_FLEXIBLE = 12
    # Below this a copy costs less than one more slice to send.
    COPY_MAX_BYTES = 8192
    # Frames that one look at a partition reads at most, so that tiny batches cannot stall the loop.
    EXTENTS_MAX = 16384


cdef bint _is_sound(
    const uint8_t* frame, int32_t size, int64_t pos, int64_t offset
) noexcept nogil:
    """Whether a frame's header leads to a batch inside it that says the same, past `offset`."""
    cdef int64_t tables = load_i32(frame + AT_TABLES_SIZE)
    cdef int64_t visible = load_i32(frame + AT_VISIBLE_SIZE)
    cdef int64_t base_offset = load_i64(frame + AT_BASE_OFFSET)
    cdef int32_t count = load_i32(frame + AT_RECORD_COUNT)
    cdef const uint8_t* batch
    if load_i64(frame + AT_PHYS_OFFSET) != pos or load_i32(frame + AT_SIZE) != size:
        return False
    if tables < 0 or visible < BATCH_HEADER_SIZE or FRAME_HEADER_SIZE + tables + visible > size:
        return False
    batch = frame + FRAME_HEADER_SIZE + tables
    if load_i64(batch + BATCH_AT_BASE_OFFSET) != base_offset:
        return False
    if load_i32(batch + BATCH_AT_LENGTH) != visible - 12:
        return False
    return load_i32(batch + BATCH_AT_COUNT) == count and base_offset + count > offset


cdef class FetchPath:
    """Handles Fetch requests of all connections.

    Attributes:
        epoch: the leader epoch that clients must know.
        cold: after FETCH_COLD: positions of frames to be read by a thread first.
        watched: partitions that the last request asked for.
        requests, sent_bytes: totals since start.
        refused: partitions answered with an error, by Kafka error code.
    """

    def __cinit__(
        self, Projections projections not None, LogView view not None, *, int64_t size_max
    ):
        """Join the parts.

        Args:
            projections: topics and partitions.
            view: reads the log.
            size_max: most record bytes of one answer, whatever the client allows.
        """
        self.projections = projections
        self.view = view
        self.size_max = size_max
        self.cold = []
        self.watched = []
        self.refused = {}

    def __dealloc__(self):
        free(self.extents)
        free(self.inserts)

    cdef int _refuse(self, int error) except -1:
        self.any_error = True
        self.refused[error] = self.refused.get(error, 0) + 1
        return 0

    cdef int handle(self, Cursor* c, int version, bint patient, Buf* out, FetchAsk* ask) except -1:
        """Answer the request body at `c` into `out`, slices noted in `inserts`. A FetchResult."""
        cdef bint flexible = version >= FIRST_FLEXIBLE
        cdef int64_t topics, partitions, i, k, size
        cdef const uint8_t* name
        cdef int error = NONE
        self.insert_count = 0
        self.answered_bytes = 0
        self.any_error = False
        self.cold = []
        self.watched = []
        take_i32(c)  # replica id
        ask.max_wait_ms = take_i32(c)
        ask.min_bytes = take_i32(c)
        ask.max_bytes = take_i32(c)
        take_i8(c)  # isolation level: without transactions both see the same
        ask.session_id = take_i32(c) if version >= 7 else 0
        ask.session_epoch = take_i32(c) if version >= 7 else -1
        if ask.session_id:
            error = FETCH_SESSION_ID_NOT_FOUND
            self._refuse(error)
        put_i32(out, 0)  # throttle time
        if version >= 7:
            put_i16(out, error)
            put_i32(out, 0)
        if error:
            put_array(out, flexible, 0)
            if flexible:
                put_i8(out, 0)
            return FETCH_MALFORMED if c.failed else FETCH_ANSWERED
        topics = take_array(c, flexible, 3)
        put_array(out, flexible, topics)
        for i in range(topics):
            name = take_string(c, flexible, &size)
            if c.failed or size < 0:
                return FETCH_MALFORMED
            put_string(out, flexible, name, size)
            partitions = take_array(c, flexible, 16)
            put_array(out, flexible, partitions)
            for k in range(partitions):
                self._partition(
                    c, version, name, size, out, min(<int64_t>ask.max_bytes, self.size_max)
                )
                if c.failed:
                    return FETCH_MALFORMED
            skip_tags(c, flexible)
            if flexible:
                put_i8(out, 0)
        # Forgotten topics and rack end the request; neither matters without sessions and replicas.
        if flexible:
            put_i8(out, 0)
        if c.failed:
            return FETCH_MALFORMED
        if self.cold:
            return FETCH_COLD
        # A request may name a partition many times; it waits for it once.
        self.watched = list(dict.fromkeys(self.watched))
        if patient and ask.max_wait_ms > 0 and not self.any_error:
            if self.answered_bytes < ask.min_bytes:
                return FETCH_TOO_LITTLE
        self.sent_bytes += self.answered_bytes
        return FETCH_ANSWERED

    cdef int _partition(
        self, Cursor* c, int version, const uint8_t* name, int64_t name_size, Buf* out, int64_t room
    ) except -1:
        cdef bint flexible = version >= FIRST_FLEXIBLE
        cdef int32_t index = take_i32(c)
        cdef int32_t leader_epoch = take_i32(c) if version >= 9 else -1
        cdef int64_t offset = take_i64(c)
        cdef int64_t limit, size = 0, high_watermark = -1, start = -1
        cdef Partition partition = None
        cdef Topic topic
        cdef int error
        if version >= 12:
            take_i32(c)  # last fetched epoch: only followers send one
        if version >= 5:
            take_i64(c)
        limit = take_i32(c)
        skip_tags(c, flexible)
        if c.failed:
            return 0
        topic = <Topic>self.projections.topics_by_name.get((<const char*>name)[:name_size])
        if topic is not None and 0 <= index < len(topic.partitions):
            partition = <Partition>topic.partitions[index]
        error = self._check_position(partition, leader_epoch, offset)
        if error:
            self._refuse(error)
        self.extent_count = 0
        if partition is not None:
            high_watermark = partition.visible_offset
            start = partition.start_offset
            self.watched.append(partition)
            if not error:
                limit = min(limit, room - self.answered_bytes)
                size = self._collect(partition, offset, limit, self.answered_bytes == 0)
        self.answered_bytes += size
        put_i32(out, index)
        put_i16(out, error)
        put_i64(out, high_watermark)
        put_i64(out, high_watermark)  # last stable offset
        if version >= 5:
            put_i64(out, start)
        put_array(out, flexible, 0)  # aborted transactions
        if version >= 11:
            put_i32(out, -1)  # preferred read replica
        self._put_records(out, flexible, size)
        if flexible:
            put_i8(out, 0)
        return 0

    cdef int _check_position(
        self, Partition partition, int32_t leader_epoch, int64_t offset
    ) except -1:
        if partition is None:
            return UNKNOWN_TOPIC_OR_PARTITION
        if leader_epoch >= 0 and leader_epoch < self.epoch:
            return FENCED_LEADER_EPOCH
        if leader_epoch > self.epoch:
            return UNKNOWN_LEADER_EPOCH
        if offset < partition.start_offset or offset > partition.next_offset:
            return OFFSET_OUT_OF_RANGE
        return NONE

    cdef int64_t _collect(
        self, Partition partition, int64_t offset, int64_t limit, bint at_least_one
    ) except -1:
        """Batches from the one that contains `offset` on, into `extents`; their bytes in all."""
        cdef const uint8_t* unit
        cdef const uint8_t* frame
        cdef int64_t pos, total = 0
        cdef int32_t size
        cdef Extent* grown
        while offset < partition.visible_offset and self.extent_count < EXTENTS_MAX:
            unit = partition.unit_of(offset)
            assert unit != NULL  # every offset below visible_offset has its unit
            pos = load_i64(unit + UNIT_AT_POSITION)
            if self.view.is_damaged(pos):
                offset += 1  # its offsets stay unused: the next readable batch is the answer
                continue
            if not self.view.is_resident(pos, load_i32(unit + UNIT_AT_SIZE)):
                if total == 0:
                    self.cold.append(pos)
                return total
            frame = self.view.at(pos, load_i32(unit + UNIT_AT_SIZE))
            assert frame != NULL
            if not _is_sound(frame, load_i32(unit + UNIT_AT_SIZE), pos, offset):
                # It rotted since it was in memory: let the thread find out and report it.
                if total == 0:
                    self.cold.append(pos)
                return total
            offset = load_i64(frame + AT_BASE_OFFSET) + load_i32(frame + AT_RECORD_COUNT)
            size = load_i32(frame + AT_VISIBLE_SIZE)
            if total + size > limit and not (at_least_one and total == 0):
                return total
            if self.extent_count == self.extent_capacity:
                grown = <Extent*>realloc(
                    self.extents, (self.extent_capacity * 2 + 64) * sizeof(Extent)
                )
                if grown == NULL:
                    raise MemoryError("no memory for the batches of a fetch")
                self.extents = grown
                self.extent_capacity = self.extent_capacity * 2 + 64
            self.extents[self.extent_count] = Extent(
                pos + FRAME_HEADER_SIZE + load_i32(frame + AT_TABLES_SIZE), size
            )
            self.extent_count += 1
            total += size
        return total

    cdef int _put_records(self, Buf* out, bint flexible, int64_t size) except -1:
        """The record section: its length, and batches, copied if small, else noted as slices."""
        cdef Py_ssize_t i
        cdef Insert* grown
        cdef Extent* e
        if flexible:
            out.size += store_uvarint(reserve(out, 10), size + 1)
        else:
            put_i32(out, <int32_t>size)
        for i in range(self.extent_count):
            e = &self.extents[i]
            if e.size <= COPY_MAX_BYTES:
                append(out, self.view.at(e.pos, e.size), e.size)
                continue
            if self.insert_count == self.insert_capacity:
                grown = <Insert*>realloc(
                    self.inserts, (self.insert_capacity * 2 + 64) * sizeof(Insert)
                )
                if grown == NULL:
                    raise MemoryError("no memory for the slices of a fetch")
                self.inserts = grown
                self.insert_capacity = self.insert_capacity * 2 + 64
            self.inserts[self.insert_count] = Insert(out.size, e.pos, e.size)
            self.insert_count += 1
        return 0

    cdef list pieces(self, Buf* out, Py_ssize_t start):
        """The answer that begins at `start` of `out`, its size filled in, as buffers to send."""
        cdef Py_ssize_t i, at = start
        cdef int64_t total = out.size - start - 4
        cdef Insert* insert
        result = []
        for i in range(self.insert_count):
            total += self.inserts[i].size
        store_u32(out.data + start, <uint32_t>total)
        for i in range(self.insert_count):
            insert = &self.inserts[i]
            if insert.at > at:
                result.append(PyBytes_FromStringAndSize(<char*>out.data + at, insert.at - at))
                at = insert.at
            result.append(self.view.slice(insert.pos, insert.size))
        if out.size > at:
            result.append(PyBytes_FromStringAndSize(<char*>out.data + at, out.size - at))
        return result
