"""The fetch path, Fetch versions 4 to 17: from request bytes to slices of the log.

    offset --> unit --> frame in LogView --> batch >  8 KiB: a slice of the block, sent in place
                              |                    <= 8 KiB: copied into the response
                              '-- cold: park the request until a thread has read the frame

Behaviour. A response consists of its own bytes and of slices of `LogView` blocks, which go to the
socket without a copy. Small batches are copied, which is cheaper than one more slice. The records
of a partition begin with the batch that contains the offset. The first batch of a response is
returned even if it exceeds the limits (KIP-74). The response has every requested partition, in the
order of the request. A partition that is named again is refused there. There are no transactions
yet, so the last stable offset is the high watermark, and the list of aborted transactions is empty.

Fetch sessions (KIP-227) are declined, as Kafka does when its session cache is full. A request with
session epoch 0 or -1 gets a full response with session id 0. Any other epoch refers to a session
that does not exist.

Work is bounded. A request may name a limited number of topics and partitions. A response has at
most EXTENTS_MAX batches, copies about COPIES_MAX_BYTES of them, and refers to blocks of about
BLOCKS_MAX_BYTES. The client fetches the rest with its next request. A request waits for at most
COLD_MAX cold places at a time, and only until some data is available. Otherwise frames read for one
partition could be evicted for another before the response is sent.

Slaves (KIP-392). A slave serves what its master shows and it has itself. A consumer ahead of it
waits, and is sent back with OFFSET_NOT_AVAILABLE, or NOT_LEADER_OR_FOLLOWER if the slave has no
such offset at all. `read_replica` says whom a master sends there.

Versions. 5: log start offset; 7: sessions; 9: leader epoch; 11: rack; 12: flexible encoding, last
fetched epoch; 13: topics by id; 15: replica id and epoch as a tagged field; 16: tagged endpoints in
the response, omitted; 17: tagged directory id. Tagged fields of requests are for followers and are
skipped.

Layer 0: no I/O, no clock. Every batch is whole: see `LogView`.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc

from _core.bytes.buffer cimport Buf, append, release, reserve
from _core.queue.frame_finder cimport (
    FIND_COLD, FIND_FOUND, FIND_LOST, FIND_TOO_LARGE, UNLIMITED, Found, FrameFinder,
)
from _core.bytes.kafka_errors cimport *
from _core.bytes.kafka_wire cimport (
    is_text, put_array, put_i8, put_i16, put_i32, put_i64, put_string, skip_tags, take_array,
    take_string,
)
from _core.bytes.layout cimport *
from _core.log.view cimport Block, LogView
from _core.bytes.octets cimport (
    Cursor, cursor_of, load_i32, load_i64, store_u32, store_uvarint, take, take_i8, take_i32,
    take_i64,
)
from _core.queue.partition cimport Partition, Topic
from _core.paths.read_replica cimport ReadReplica, partition_size
from _core.state.projections cimport Projections

cdef enum:
    FIRST_WITH_SESSIONS = 7
    FIRST_WITH_REPLICA = 11
    FIRST_FLEXIBLE = 12
    FIRST_WITH_TOPIC_IDS = 13
    FIRST_WITH_TAGGED_REPLICA = 15
    TOPIC_ID_SIZE = 16
    # Session epochs of a full request: it opens a session, or has none.
    SESSION_OPENS = 0
    SESSION_ENDS = -1
    # Up to this size a copy costs less than one more slice to send.
    COPY_MAX_BYTES = 8192
    # Maximum number of batches in a response, and of copied bytes, normally and while memory is
    # scarce. Tiny batches then cannot stall the loop, and a waiting response holds little memory.
    EXTENTS_MAX = 4096
    COPIES_MAX_BYTES = 1 << 20
    COPIES_MIN_BYTES = 32 << 10
    # Memory that a response pins until it is sent, normally and while memory is scarce.
    BLOCKS_MAX_BYTES = 8 << 20
    BLOCKS_MIN_BYTES = 64 << 10
    # Cold places read before a request is retried. Their units are a small part of the unit cache,
    # and reading their frames takes a thread some hundred ms. Then clients fetch the others first.
    COLD_MAX = 128
    # Work of a turn: bytes that finding a batch counts as, and the part of bytes read that counts.
    EXTENT_WORK_BYTES = 64
    READ_WORK_PART = 4
    # Limits of read-ahead after a response: bytes, and partitions.
    AHEAD_MAX_BYTES = 8 << 20
    AHEAD_MAX = 64


cdef class FetchPath:
    """Handles the Fetch requests of all connections.

    Attributes:
        epoch: the current leader epoch.
        is_shut: every partition is answered with NOT_LEADER_OR_FOLLOWER.
        is_slave: this node is a slave: what it lacks, its master may have.
        replica: the slave that consumers may be sent to.
        cold: after FETCH_COLD, the places that a thread must read first: see `FrameFinder.place`.
        ahead: (partition, offset) of probable next fetches; `read_ahead` clears it.
        watched: partitions of the last request.
        requests, sent_bytes: totals since the start.
        work_bytes: total work since the start: bytes copied, and the cost of finding batches.
        refused: number of partitions answered with an error, by Kafka error code.
    """

    def __cinit__(
        self, Projections projections not None, LogView view not None, *, int64_t size_max,
        int64_t item_count_max, frozenset closed_topics not None
    ):
        """Connect the parts of the path.

        Args:
            projections: topics and partitions.
            view: the frame cache.
            size_max: maximum record bytes of a response, even if the client allows more.
            item_count_max: maximum number of topics and partitions together in a request.
            closed_topics: names and 16-byte ids of internal topics, which nobody reads.
        """
        self.projections = projections
        self.view = view
        self.finder = FrameFinder(view)
        self.size_max = size_max
        self.item_count_max = item_count_max
        self.closed_topics = closed_topics
        self.replica = ReadReplica()
        self.copies_max = COPIES_MAX_BYTES
        self.blocks_max = BLOCKS_MAX_BYTES
        self.blocks = []
        self.cold = []
        self.ahead = []
        self.watched = []
        self.refused = {}

    cdef int adopt(self, FetchPath shared) except -1:
        """Answer as another path does."""
        self.epoch = shared.epoch
        self.refused = shared.refused
        self.is_shut = shared.is_shut
        self.is_slave = shared.is_slave
        self.replica = shared.replica
        self.redirected = shared.redirected
        self.is_near = shared.is_near
        return 0

    cdef bint find_near(self, const uint8_t* body, Py_ssize_t size, int version) except -1:
        cdef Cursor c
        cdef FetchAsk ask
        if self.replica.node_id < 0:
            return False
        c = cursor_of(body, size)
        self._read_ask(&c, version, &ask)
        return not c.failed and self.replica.is_near(c.p, c.end - c.p, version)

    def save_memory(self, bint is_scarce):
        """Use less memory per response if memory `is_scarce`, else the normal amount."""
        self.copies_max = COPIES_MIN_BYTES if is_scarce else COPIES_MAX_BYTES
        self.blocks_max = BLOCKS_MIN_BYTES if is_scarce else BLOCKS_MAX_BYTES

    def __dealloc__(self):
        free(self.extents)
        free(self.inserts)

    cdef int _refuse(self, int error) except -1:
        self.any_error = True
        self.refused[error] = self.refused.get(error, 0) + 1
        return 0

    cdef int handle(
        self, Cursor* c, int version, bint patient, bint is_retry, Buf* out, FetchAsk* ask
    ) except -1:
        """Handle the request body at `c`; write the response to `out`, and its slices to `inserts`.

        Returns a FetchResult.
        """
        cdef Py_ssize_t start = out.size
        cdef int error
        cdef int64_t read_bytes = self.view.read_bytes
        error = self._begin(c, version, ask)
        self.is_patient = patient and ask.max_wait_ms > 0 and ask.min_bytes > 0
        if error == NONE:
            self._put_head(out, version, NONE)
            error = self._topics(c, version, out)
            self._count_work()
            self.work_bytes += (self.view.read_bytes - read_bytes) // READ_WORK_PART
        # The rest of the request is unused here; `find_near` has read the rack.
        if c.failed:
            return FETCH_MALFORMED
        if error:
            out.size = start
            return self.refuse_all(version, error, out)
        if version >= FIRST_FLEXIBLE:
            put_i8(out, 0)
        return self._outcome(patient, is_retry, ask)

    cdef int _begin(self, Cursor* c, int version, FetchAsk* ask) except -1:
        """Forget the last request, and read the begin of the next. Returns an error for all."""
        self.insert_count = 0
        self.answered_bytes = 0
        self.extents_left = EXTENTS_MAX
        self.copies_left = self.copies_max
        self.blocks_left = self.blocks_max
        self.blocks = []
        self.view.user += 1
        self.user = self.view.user
        self.any_error = self.is_full = self.is_redirecting = False
        self.cold = []
        self.watched = []
        self._read_ask(c, version, ask)
        if ask.session_epoch != SESSION_OPENS and ask.session_epoch != SESSION_ENDS:
            return FETCH_SESSION_ID_NOT_FOUND
        return NONE

    cdef int refuse_all(self, int version, int error, Buf* out) except -1:
        if version < FIRST_WITH_SESSIONS:
            return FETCH_TOO_LARGE  # the response has no error for the whole request
        self._refuse(error)
        # Discard what was found before the error.
        self.insert_count = 0
        self.answered_bytes = 0
        self.cold = []
        self._put_head(out, version, error)
        put_array(out, version >= FIRST_FLEXIBLE, 0)
        if version >= FIRST_FLEXIBLE:
            put_i8(out, 0)
        return FETCH_ANSWERED

    cdef int _outcome(self, bint patient, bint is_retry, const FetchAsk* ask) except -1:
        """Return whether the response is to be sent, a FetchResult."""
        # The client of a partition that is redirected is to go elsewhere at once.
        if self.cold and not self.is_redirecting and not (is_retry and self.answered_bytes):
            return FETCH_COLD
        if patient and ask.max_wait_ms > 0 and (self.watched or self.named) and not self.cold:
            if (
                self.answered_bytes < ask.min_bytes and not self.any_error and not self.is_full
                and not self.is_redirecting
            ):
                return FETCH_TOO_LITTLE
        self.sent_bytes += self.answered_bytes
        return FETCH_ANSWERED

    cdef int _count_work(self) except -1:
        self.work_bytes += self.copies_max - self.copies_left
        self.work_bytes += (EXTENTS_MAX - self.extents_left) * EXTENT_WORK_BYTES
        return 0

    cdef bytes kept_ask(self, const uint8_t* body, Py_ssize_t size, int version):
        cdef Cursor c = cursor_of(body, size)
        cdef Buf kept
        kept.data = NULL
        kept.size = kept.capacity = 0
        try:
            self.kept_items = self._copy_ask(&c, version, &kept)
            if self.kept_items < 0:
                return None
            return PyBytes_FromStringAndSize(<const char*>kept.data, kept.size)
        finally:
            release(&kept)

    cdef int64_t _copy_ask(self, Cursor* c, int version, Buf* out) except -2:
        """Returns the number of topics and partitions, -1 if the request is malformed."""
        cdef bint flexible = version >= FIRST_FLEXIBLE
        cdef const uint8_t* start = c.p
        cdef const uint8_t* name
        cdef int64_t i, k, size, topics, partitions, items
        cdef FetchAsk ask
        self._read_ask(c, version, &ask)
        if c.failed:
            return -1
        append(out, start, c.p - start)
        items = topics = take_array(c, flexible, 3)
        put_array(out, flexible, topics)
        for i in range(topics):
            start = c.p
            if version >= FIRST_WITH_TOPIC_IDS:
                take(c, TOPIC_ID_SIZE)
            else:
                name = take_string(c, flexible, &size)
                if c.failed or size < 0 or not is_text(name, size):
                    return -1
            if c.failed:
                return -1
            append(out, start, c.p - start)
            partitions = take_array(c, flexible, 16)
            items += partitions
            put_array(out, flexible, partitions)
            for k in range(partitions):
                start = take(c, partition_size(version))
                skip_tags(c, flexible)
                if c.failed:
                    return -1
                append(out, start, partition_size(version))
                if flexible:
                    put_i8(out, 0)
            skip_tags(c, flexible)
            if flexible:
                put_i8(out, 0)
        return -1 if c.failed else items

    cdef int _read_ask(self, Cursor* c, int version, FetchAsk* ask) except -1:
        """Read the fields before the topics."""
        if version < FIRST_WITH_TAGGED_REPLICA:
            take_i32(c)  # replica id
        ask.max_wait_ms = take_i32(c)
        ask.min_bytes = take_i32(c)
        ask.max_bytes = take_i32(c)
        take_i8(c)  # isolation level: without transactions both levels are the same
        ask.session_id = take_i32(c) if version >= FIRST_WITH_SESSIONS else 0
        ask.session_epoch = take_i32(c) if version >= FIRST_WITH_SESSIONS else SESSION_ENDS
        self.room = min(<int64_t>ask.max_bytes, self.size_max)
        return 0

    cdef int _put_head(self, Buf* out, int version, int error) except -1:
        put_i32(out, 0)  # throttle time
        if version >= FIRST_WITH_SESSIONS:
            put_i16(out, error)
            put_i32(out, 0)  # session id
        return 0

    cdef int _topics(self, Cursor* c, int version, Buf* out) except -1:
        """Handle all topics. Returns an error for the whole request, or NONE; `c` may fail."""
        cdef bint flexible = version >= FIRST_FLEXIBLE
        cdef int64_t i, k, partitions, items
        cdef Topic topic
        items = take_array(c, flexible, 3)
        put_array(out, flexible, items)
        for i in range(items):
            topic = self._take_topic(c, version, out)
            partitions = take_array(c, flexible, 16)
            items += partitions
            if items > self.item_count_max:
                return INVALID_REQUEST
            put_array(out, flexible, partitions)
            for k in range(partitions):
                self._partition(c, version, topic, out)
                if c.failed:
                    return NONE
            skip_tags(c, flexible)
            if c.failed:
                return NONE
            if flexible:
                put_i8(out, 0)
        return NONE

    cdef Topic _take_topic(self, Cursor* c, int version, Buf* out):
        """Read the next topic and write its name or id to `out`; None if it is unknown."""
        cdef const uint8_t* name
        cdef int64_t size
        cdef Topic topic
        if version >= FIRST_WITH_TOPIC_IDS:
            name = take(c, TOPIC_ID_SIZE)
            if c.failed:
                return None
            append(out, name, TOPIC_ID_SIZE)
            topic = self.projections.topics_by_uuid.get((<const char*>name)[:TOPIC_ID_SIZE])
            self.is_closed = (
                topic is None and (<const char*>name)[:TOPIC_ID_SIZE] in self.closed_topics
            )
            return topic
        name = take_string(c, version >= FIRST_FLEXIBLE, &size)
        if c.failed or size < 0:
            c.failed = True
            return None
        if not is_text(name, size):
            c.failed = True
            return None
        put_string(out, version >= FIRST_FLEXIBLE, name, size)
        topic = self.projections.find_topic(name, size)
        self.is_closed = topic is None and (<const char*>name)[:size] in self.closed_topics
        return topic

    cdef int _partition(self, Cursor* c, int version, Topic topic, Buf* out) except -1:
        cdef bint flexible = version >= FIRST_FLEXIBLE
        cdef int32_t index = take_i32(c)
        cdef int32_t leader_epoch = take_i32(c) if version >= 9 else -1
        cdef int64_t offset = take_i64(c)
        cdef int64_t limit, size = 0, high_watermark = -1, start = -1
        cdef int32_t preferred = -1
        cdef Partition partition = None
        cdef int error
        if version >= 12:
            take_i32(c)  # last fetched epoch: only followers send it
        if version >= 5:
            take_i64(c)
        limit = take_i32(c)
        skip_tags(c, flexible)
        if c.failed:
            return 0
        if self.is_shut:
            error = NOT_LEADER_OR_FOLLOWER
        elif self.is_closed:
            error = TOPIC_AUTHORIZATION_FAILED
        elif topic is None:
            error = (
                UNKNOWN_TOPIC_ID if version >= FIRST_WITH_TOPIC_IDS else UNKNOWN_TOPIC_OR_PARTITION
            )
        else:
            if 0 <= index < len(topic.partitions):
                partition = <Partition>topic.partitions[index]
            error = self._check_position(partition, leader_epoch, offset)
            if partition is not None and self._is_named_again(partition):
                error = INVALID_REQUEST
        if error:
            self._refuse(error)
        self.extent_count = 0
        if partition is not None:
            high_watermark = partition.visible_offset
            start = partition.start_offset
            if not error and version >= FIRST_WITH_REPLICA and self.replica.takes(
                partition, offset, self.projections.visible_pos, self.is_near, self.redirected
            ):
                preferred = self.replica.node_id
                self.is_redirecting = True
            elif not error:
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
            put_i32(out, preferred)
        self._put_records(out, flexible, size)
        if flexible:
            put_i8(out, 0)
        return 0

    cdef bint _is_named_again(self, Partition partition) except -1:
        """Note that the request names a partition; return whether it did so before."""
        cdef int byte = partition.index >> 3
        cdef uint8_t bit = 1 << (partition.index & 7)
        cdef bytearray marks
        if self.named is None:
            if partition.fetched_in == self.user:
                return True
            partition.fetched_in = self.user
            self.watched.append(partition)
            return False
        marks = self.named.get(partition.topic)
        if marks is None:
            marks = bytearray(len(partition.topic.partitions) // 8 + 1)
            self.named[partition.topic] = partition.topic.waiters[self.waiter] = marks
        if byte >= len(marks):  # it was added meanwhile
            marks.extend(bytes(byte + 1 - len(marks)))
        if marks[byte] & bit:
            return True
        marks[byte] |= bit
        return False

    cdef int _check_position(
        self, Partition partition, int32_t leader_epoch, int64_t offset
    ) except -1:
        if partition is None:
            return UNKNOWN_TOPIC_OR_PARTITION
        if leader_epoch >= 0 and leader_epoch < self.epoch:
            return FENCED_LEADER_EPOCH
        if leader_epoch > self.epoch:
            return UNKNOWN_LEADER_EPOCH
        if offset < partition.start_offset:
            return OFFSET_OUT_OF_RANGE
        if self.is_slave:
            if offset <= partition.visible_offset or self.is_patient:  # it may come
                return NONE
            # Never OFFSET_OUT_OF_RANGE: clients would give up what the master may have.
            has_it = offset <= partition.next_offset
            return OFFSET_NOT_AVAILABLE if has_it else NOT_LEADER_OR_FOLLOWER
        return OFFSET_OUT_OF_RANGE if offset > partition.next_offset else NONE

    cdef int64_t _collect(
        self, Partition partition, int64_t offset, int64_t limit, bint at_least_one
    ) except -1:
        """Add batches to `extents`, from the one that contains `offset` on; return their bytes.

        They have at most `limit` bytes and fit the `room` of the request. If `at_least_one`, the
        first batch may exceed both.
        """
        cdef Found found
        cdef const uint8_t* frame
        cdef int64_t total = 0, room
        cdef int32_t size
        cdef int result
        cdef Block block
        cdef Extent* extent
        cdef Extent* grown
        while offset < partition.visible_offset:
            if self.extents_left == 0 or self.copies_left <= 0 or self.blocks_left <= 0:
                self.is_full = True
                break
            if self.answered_bytes + total >= self.room and not (at_least_one and total == 0):
                self.is_full = True  # avoid reads whose result would not fit
                break
            room = min(limit, self.room - self.answered_bytes) - total
            result = self.finder.find(partition, offset, &found, room if total else UNLIMITED)
            if result == FIND_LOST:
                offset = found.next_offset
                continue
            if result == FIND_COLD:
                if total == 0 and len(self.cold) < COLD_MAX:
                    self.cold.append(self.finder.place)
                break
            if result == FIND_TOO_LARGE:
                self.is_full = True
                break
            assert result == FIND_FOUND  # every offset below visible_offset has its unit
            frame = found.frame
            size = load_i32(frame + AT_VISIBLE_SIZE)
            if size > room and not (at_least_one and total == 0):
                if total + size > self.room - self.answered_bytes:
                    self.is_full = True
                break
            offset = load_i64(frame + AT_BASE_OFFSET) + load_i32(frame + AT_LAST_DELTA) + 1
            if self.extent_count == self.extent_capacity:
                grown = <Extent*>realloc(
                    self.extents, (self.extent_capacity * 2 + 64) * sizeof(Extent)
                )
                if grown == NULL:
                    raise MemoryError("cannot allocate the batches of a fetch")
                self.extents = grown
                self.extent_capacity = self.extent_capacity * 2 + 64
            block = self.view.block
            if block.note_user(self.user, self.blocks):
                self.blocks_left -= block.capacity
            extent = &self.extents[self.extent_count]
            extent.data = frame + FRAME_HEADER_SIZE + load_i32(frame + AT_TABLES_SIZE)
            extent.size = size
            extent.block = block.user_index
            self.extent_count += 1
            self.extents_left -= 1
            self.copies_left -= size if size <= COPY_MAX_BYTES else 0
            total += size
        if total and offset < partition.visible_offset and len(self.ahead) < AHEAD_MAX:
            self.ahead.append((partition, offset))
        return total

    def read_ahead(self):
        """Read what clients will probably fetch next, while they process the last response.

        This does not wait for the disk: cold frames are left to the request.
        """
        cdef int64_t end = self.view.read_bytes + AHEAD_MAX_BYTES
        cdef Partition partition
        cdef Found found
        ahead, self.ahead = self.ahead, []
        for partition, offset in ahead:
            if self.view.read_bytes >= end:
                break
            if partition.topic.deleted or offset < partition.start_offset:
                continue
            self.finder.find(partition, offset, &found, UNLIMITED)

    cdef int _put_records(self, Buf* out, bint flexible, int64_t size) except -1:
        """Write the record section: its length and its batches, copied if small, else as slices."""
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
                append(out, e.data, e.size)
                continue
            if self.insert_count == self.insert_capacity:
                grown = <Insert*>realloc(
                    self.inserts, (self.insert_capacity * 2 + 64) * sizeof(Insert)
                )
                if grown == NULL:
                    raise MemoryError("cannot allocate the slices of a fetch")
                self.inserts = grown
                self.insert_capacity = self.insert_capacity * 2 + 64
            self.inserts[self.insert_count].at = out.size
            self.inserts[self.insert_count].extent = e[0]
            self.insert_count += 1
        return 0

    cdef list pieces(self, Buf* out, Py_ssize_t start):
        """Fill in the size of the response at `start` of `out`; return it as buffers to send."""
        cdef Py_ssize_t i, at = start
        cdef Insert* insert
        cdef Block block
        result = []
        self.slice_bytes = 0
        for i in range(self.insert_count):
            self.slice_bytes += self.inserts[i].extent.size
        store_u32(out.data + start, <uint32_t>(out.size - start - 4 + self.slice_bytes))
        for i in range(self.insert_count):
            insert = &self.inserts[i]
            if insert.at > at:
                result.append(PyBytes_FromStringAndSize(<char*>out.data + at, insert.at - at))
                at = insert.at
            block = <Block>self.blocks[insert.extent.block]
            result.append(block.slice(insert.extent.data, insert.extent.size))
        if out.size > at:
            result.append(PyBytes_FromStringAndSize(<char*>out.data + at, out.size - at))
        self.blocks = []
        return result
