"""The produce path, Produce versions 3 to 11: from request bytes to frames in the log.

    partition pre-check --> per partition: batch checks --> idempotence --> decompress --> inspect
                                           --> append verbatim, or split and append --> response

Behaviour. A request has one batch per partition, of magic 2, which is accepted as a whole or not at
all. A batch without delay headers is stored verbatim; a batch with them is split by `delay_split`.
The base offset in the response is -1 if any record of the batch is not visible at once. A retry of
an idempotent producer gets the original response. A malformed request is refused before any of its
batches is processed.

Work is bounded. A request may name a limited number of topics and partitions, and each partition
only once. What the turn of a connection has no time for is left for its next turn, between two
partitions: the rest of a request never is a reason to refuse a batch. One that unpacks to more than
UNPACK_AT_ONCE_BYTES waits for a thread, which does its work. The decompressed size of all batches
of a request is limited too; beyond it clients send them again.

Versions. 3: transactional id; 5: log start offset; 7: zstd; 8: record errors and message;
9: flexible encoding.

Layer 0: no I/O, no clock. Runs on the event loop, one request at a time.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy, memset

from _core.paths.answer cimport REQUEST_TIMED_OUT, Mark, Patience, TimedOut
from _core.paths.batch_check cimport check_batch
from _core.paths.batch_work cimport BatchWork
from _core.bytes.batch cimport ATTRIBUTE_CODEC, ATTRIBUTE_LOG_APPEND_TIME, Batch
from _core.bytes.buffer cimport Buf, append as buf_append
from _core.bytes.crc32c cimport extend
from _core.paths.delay_notices cimport DelayNotices
from _core.paths.delay_faults cimport describe_fault
from _core.paths.delay_fault_codes cimport SPLIT_OK, SPLIT_TOO_MANY_DELAYED
from _core.paths.delay_split cimport (
    LOOK_EVERY, LOOK_OFF, LOOK_REQUESTS, LOOK_RETRIES, BatchSplitter, Fault,
)
from _core.log.frames cimport FrameHeader, blank_header, frame_size
from _core.bytes.kafka_errors cimport *
from _core.bytes.kafka_wire cimport (
    put_array, put_i8, put_i32, put_string, skip_tags, take_array, take_string,
)
from _core.bytes.layout cimport *
from _core.log.tail cimport ROOM_CONTROL, ROOM_RECORDS, FrameBody
from _core.paths.batch_ids cimport await_ids
from _core.paths.produce_texts cimport check_split_size, frame_size_text, unpacked_size_text
from _core.state.writer cimport LogWriter
from _core.paths.partition_check cimport check_partitions, find_name
from _core.paths.produce_answer cimport OUTCOME_AT_ERROR, Outcome, put_outcome
from _core.bytes.octets cimport (
    Cursor, store_u16, store_u32, store_u64, take, take_i16, take_i32, take_uvarint,
)
from _core.paths.replies cimport Replies
from _core.paths.sequence_check cimport check_producer
from _core.paths.split_frame cimport fill_frame
from _core.queue.partition cimport Partition, Topic
from _core.bytes.tags cimport seal_tags
from _core.paths.timer_quota cimport TimerQuota

cpdef enum:
    AMPLIFICATION_MAX = 256  # what the log takes of a batch beyond so many times its size counts

cdef enum:
    FIRST_FLEXIBLE = 9
    # To give other threads Python's lock costs as much as to inspect a kilobyte.
    UNLOCKED_MIN_BYTES = 16 << 10
    # Half a millisecond with the slowest codec, twice that with many small records.
    UNPACK_AT_ONCE_BYTES = 1 << 20
    # What a batch counts as in a turn besides its bytes: a new producer takes 5 us.
    BATCH_WORK_BYTES = 8 << 10
    NS_PER_MS = 1_000_000


cdef class ProducePath:
    """Handles the Produce requests of all connections.

    Attributes:
        requests, batches, received_bytes, work_bytes (of what is computed): totals since the start.
        amplified_bytes: what the log took beyond AMPLIFICATION_MAX since the owner set it to 0.
        defers_packed: compressed batches wait for the thread, whatever their size.
        refused: number of refused batches by Kafka error code.
        delays: what became of delay requests that cannot be met.
        admit_producer: called with partition handle, producer id, sequence, and whether it was
            called for this batch before, for a batch of a producer that its partition does not
            know; returns None, or why it must wait.
        missing_replica: why every batch with acks=all is refused with NOT_ENOUGH_REPLICAS; None if
            none is.
        missing_lease: why every batch is, whatever its acks.
        is_slave: every batch is refused with NOT_LEADER_OR_FOLLOWER.
    """

    def __cinit__(
        self, LogWriter writer not None, BatchSplitter splitter not None, decompress not None, *,
        int64_t item_count_max, int64_t record_count_max, int64_t unpacked_batch_max,
        int64_t unpacked_size_max, int64_t delayed_size_max, frozenset closed_topics not None,
        TimerQuota quota not None
    ):
        """Connect the parts of the path.

        Args:
            writer: appends frames.
            splitter: reads delay headers.
            decompress: function (codec, bytes, maximum size) that returns the bytes of a compressed
                record section. It raises an exception with a message, the Kafka error code in
                `code`, and the number of bytes decompressed before the error in `unpacked_size`.
            item_count_max: maximum number of topics and partitions together in a request.
            record_count_max: maximum number of records of a batch.
            unpacked_batch_max: maximum decompressed size of one batch, bytes.
            unpacked_size_max: maximum decompressed size of all batches of a request, bytes.
            delayed_size_max: maximum size of a compressed batch with delay headers as it is
                stored, bytes; as much as `max.message.bytes` of its topic in any case.
            closed_topics: names of internal topics, to which nobody writes.
            quota: of pending timers.
        """
        self.writer = writer
        self.splitter = splitter
        self.decompress = decompress
        self.item_count_max = item_count_max
        self.record_count_max = record_count_max
        self.unpacked_batch_max = unpacked_batch_max
        self.delayed_size_max = delayed_size_max
        self.unpacked_size_max = unpacked_size_max
        self.closed_topics = closed_topics
        self.quota = quota
        self.retry_rules = splitter.retries.rules
        self.replies = Replies(writer.projections, self.retry_rules)
        splitter.reply_asks.closed_topics = closed_topics
        self.refused = {}
        self.delays = DelayNotices()

    cdef int64_t begin(self, int64_t now_ns) noexcept:
        """Take the receive time of the requests that follow, epoch ns; return it in ms."""
        # Delays count from the time rounded up: from any earlier base they are too short.
        self.round_base_ms = (now_ns + NS_PER_MS - 1) // NS_PER_MS
        return now_ns // NS_PER_MS

    cdef int handle(
        self, Cursor* c, int version, int64_t now_ms, Buf* out, Buf* marks, Progress* progress,
        int64_t work_max
    ) except -1:
        """Handle the request body at `c`, and write the response to `out` from the topic array on.

        Sets `progress.end_pos` and `local_pos` to the log positions that must be durable before the
        response is sent, and appends a Mark to `marks` for each accepted batch. After about
        `work_max` bytes of batches, as received and decompressed, it ends between two partitions
        with PRODUCE_UNFINISHED; call it again with what it has changed. Returns a ProduceResult.
        """
        cdef bint flexible = version >= FIRST_FLEXIBLE
        cdef const uint8_t* begin = c.p
        cdef int64_t size, mentions
        cdef int acks, result
        # Again in each turn: other requests have marked partitions since.
        self.serial += 1
        mentions = check_partitions(
            c[0], flexible, self.writer.projections.topics_by_name, self.serial,
            self.item_count_max,
        )
        if mentions < 0:
            return PRODUCE_MALFORMED
        if mentions > self.item_count_max:
            return PRODUCE_TOO_LARGE
        take_string(c, flexible, &size)
        self.transactional = size >= 0
        acks = take_i16(c)
        self.timeout_ms = take_i32(c)
        if progress.at == 0:
            progress.topics_left = take_array(c, flexible, 2)
            put_array(out, flexible, progress.topics_left)
            progress.unpacked_left = self.unpacked_size_max
            progress.base_ms = self.round_base_ms
            progress.accepted_ms = now_ms
            progress.at = c.p - begin
        else:
            c.p = begin + progress.at
        self.unpacked_left = progress.unpacked_left
        self.base_ms = progress.base_ms
        self.accepted_ms = progress.accepted_ms
        result = self._topics(c, version, acks, now_ms, out, marks, progress, work_max)
        progress.at = c.p - begin
        progress.unpacked_left = self.unpacked_left
        if result == PRODUCE_UNFINISHED:
            return result
        skip_tags(c, flexible)
        put_i32(out, 0)  # throttle time
        if flexible:
            put_i8(out, 0)
        assert not c.failed
        if acks == 0:
            return PRODUCE_CLOSE if progress.failed else PRODUCE_SILENT
        return PRODUCE_ANSWERED

    cdef int _topics(
        self, Cursor* c, int version, int acks, int64_t now_ms, Buf* out, Buf* marks,
        Progress* progress, int64_t work_max
    ) except -1:
        cdef bint flexible = version >= FIRST_FLEXIBLE
        cdef const uint8_t* begin = c.p - progress.at
        cdef int64_t end = self._done() + work_max
        cdef int64_t size
        cdef const uint8_t* name
        cdef Cursor named
        cdef Topic topic
        cdef str closed_name
        while progress.topics_left:
            named = c[0]
            if progress.in_topic:
                named.p = begin + progress.topic_at
            name = take_string(&named, flexible, &size)
            topic = self.writer.projections.find_topic(name, size)
            closed_name = None if topic is not None else find_name(self.closed_topics, name, size)
            if not progress.in_topic:
                progress.topic_at = c.p - begin
                c[0] = named
                put_string(out, flexible, name, size)
                progress.partitions_left = take_array(c, flexible, 5)
                put_array(out, flexible, progress.partitions_left)
                progress.in_topic = True
            while progress.partitions_left:
                if self._done() >= end:
                    return PRODUCE_UNFINISHED
                if not self._partition(
                    c, version, topic, closed_name, acks, now_ms, out, marks, progress
                ):
                    return PRODUCE_UNFINISHED
                progress.partitions_left -= 1
            skip_tags(c, flexible)
            if flexible:
                put_i8(out, 0)
            progress.in_topic = False
            progress.topics_left -= 1
        return PRODUCE_ANSWERED

    cdef int64_t _done(self) noexcept:
        """The work of all batches since the start."""
        return self.received_bytes + self.work_bytes + self.batches * BATCH_WORK_BYTES

    cdef int _partition(
        self, Cursor* c, int version, Topic topic, str closed_name, int acks, int64_t now_ms,
        Buf* out, Buf* marks, Progress* progress
    ) except -1:
        """Returns False if the batch waits for a thread; then the cursor stays at the partition."""
        cdef bint flexible = version >= FIRST_FLEXIBLE
        cdef const uint8_t* begin = c.p
        cdef int32_t index = take_i32(c)
        cdef int64_t size = <int64_t>take_uvarint(c) - 1 if flexible else take_i32(c)
        cdef const uint8_t* data = take(c, size) if size > 0 else c.p
        cdef Partition partition = None
        cdef Outcome o
        cdef Mark mark
        skip_tags(c, flexible)
        memset(&o, 0, sizeof(o))
        o.base_offset = o.log_append_time = -1
        o.fault_record = -1
        self.message = None
        if acks < -1 or acks > 1:
            o.error = INVALID_REQUIRED_ACKS
            self.message = f"acks must be 0, 1 or all, not {acks}"
        elif self.is_slave:
            o.error = NOT_LEADER_OR_FOLLOWER
        elif self.transactional:
            o.error = TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            self.message = "transactions are not supported yet"
        elif closed_name is not None:
            o.error = INVALID_TOPIC_EXCEPTION
            self.message = f"Cannot append to internal topic {closed_name}"
        elif topic is None or not 0 <= index < len(topic.partitions):
            o.error = UNKNOWN_TOPIC_OR_PARTITION
        elif (<Partition>topic.partitions[index]).is_mentioned_again(self.serial):
            o.error = INVALID_REQUEST
            self.message = f"partition {index} is named more than once: use one batch for each"
        elif self.missing_lease is not None or (acks == -1 and self.missing_replica is not None):
            o.error = NOT_ENOUGH_REPLICAS
            self.message = self.missing_lease or self.missing_replica
        else:
            partition = <Partition>topic.partitions[index]
            self._accept(partition, version, data, size, now_ms, &o)
            if o.waits:
                c.p = begin
                return False
        self.work = None
        self.batches += 1
        self.received_bytes += max(size, 0)
        if o.error:
            progress.failed = True
            self.count_refused(o.error, 1)
        else:
            if acks == -1:
                progress.end_pos = max(progress.end_pos, o.end_pos)
            else:
                progress.local_pos = max(progress.local_pos, o.end_pos)
            mark = Mark(o.end_pos, acks != -1, out.size + OUTCOME_AT_ERROR)
            buf_append(marks, &mark, sizeof(Mark))
        put_outcome(out, version, index, &o, partition, self.message)
        return True

    cdef int set_late_errors(self, Patience* patience) noexcept:
        """Set the errors for batches that were appended and wait too long for disk or slave."""
        patience.error = patience.local_error = REQUEST_TIMED_OUT
        if self.writer.tail.pointers.replicated < INT64_MAX:
            patience.error = NOT_ENOUGH_REPLICAS_AFTER_APPEND
            if self.missing_lease is not None:
                patience.local_error = NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return 0

    cdef int count_late(self, const Patience* patience, const TimedOut* found) except -1:
        self.count_refused(patience.error, found.batches)
        return self.count_refused(patience.local_error, found.local_batches)

    cdef int count_refused(self, int error, int64_t count) except -1:
        if count:
            self.refused[error] = self.refused.get(error, 0) + count
        return 0

    cdef int _accept(
        self, Partition partition, int version, const uint8_t* data, int64_t size, int64_t now_ms,
        Outcome* o
    ) except -1:
        cdef Topic topic = partition.topic
        cdef Batch b
        cdef bint duplicate
        cdef const uint8_t* records
        cdef int64_t records_size
        cdef int fault = SPLIT_OK, codec, look = LOOK_REQUESTS
        cdef bytes plain
        self.message = check_batch(
            topic, version, data, size, self.record_count_max, &b, &o.error
        )
        if o.error:
            return 0
        self.message = check_producer(
            partition, &b, o, &duplicate, self.admit_producer, self.work is not None
        )
        o.waits = self.work is not None and self.work.is_made and not self.work.is_done
        if o.error or duplicate or o.waits:
            return 0
        records = data + BATCH_HEADER_SIZE
        records_size = size - BATCH_HEADER_SIZE
        codec = b.attributes & ATTRIBUTE_CODEC
        # Inspect the batch even if the topic ignores delay headers: no malformed batch may be
        # stored, and the record count in the header determines how many offsets it takes.
        if not topic.reads_delay_headers:
            look = LOOK_RETRIES if topic.passes_invalid_delays else LOOK_OFF
        elif topic.requires_delay or topic.delay_default_ms >= 0:
            look = LOOK_EVERY
        if codec and self.work is not None:
            if self.work.is_split:
                return self._finish_work(partition, &b, data, size, now_ms, o)
            self.work.make(
                self.splitter.copy(), self.decompress, (<const char*>records)[:records_size],
                min(self.unpacked_left, self.unpacked_batch_max), &b, partition, look,
                self.accepted_ms, self.base_ms,
            )
            o.waits = True
            return 0
        if codec and self.defers_packed:
            self.work = BatchWork(True)
            o.waits = True
            return 0
        if codec:
            plain = self._unpack(codec, records, records_size, o)
            if plain is None:
                return 0
            records = <const uint8_t*><const char*>plain
            records_size = len(plain)
        if records_size < UNLOCKED_MIN_BYTES:
            fault = self.splitter.inspect(&b, records, records_size, look)
        else:
            with nogil:
                fault = self.splitter.inspect(&b, records, records_size, look)
        if fault == SPLIT_OK and self.splitter.has_delay_headers:
            with nogil:
                fault = self.splitter.split(
                    &b, records, records_size, topic, partition.index, self.accepted_ms,
                    self.base_ms
                )
        return self._finish(partition, &b, data, size, now_ms, fault, o)

    cdef int _finish(
        self, Partition partition, const Batch* b, const uint8_t* data, int64_t size,
        int64_t now_ms, int fault, Outcome* o
    ) except -1:
        """Append or refuse a batch that the splitter has inspected, and split if necessary."""
        self.work_bytes += self.splitter.recurrences.work()
        if fault != SPLIT_OK:
            return self._refuse_split(partition, o)
        if self.splitter.has_delay_headers:
            return self._accept_split(partition, b, now_ms, o)
        return self._accept_verbatim(partition, b, data, size, now_ms, o)

    cdef int _finish_work(
        self, Partition partition, const Batch* b, const uint8_t* data, int64_t size,
        int64_t now_ms, Outcome* o
    ) except -1:
        """Append or refuse a batch from what a thread has found."""
        cdef BatchSplitter own = self.splitter
        if self.work.refusal is not None:
            o.error = KAFKA_STORAGE_ERROR  # clients send it again
            self.message = self.work.refusal
            return self.quota.expect_again(partition, b)
        if self.work.error is not None:
            return self._refuse_packed(self.work.error, o)
        self.unpacked_left -= self.work.plain_size
        self.work.plain_size = 0
        self.splitter = self.work.splitter
        try:
            return self._finish(partition, b, data, size, now_ms, self.work.fault, o)
        finally:
            self.splitter = own

    cdef bytes _unpack(self, int codec, const uint8_t* records, int64_t size, Outcome* o):
        """Decompress the record section.

        Returns None, with an error in `o`, or with `work` if it is more than a turn has time for.
        """
        cdef bytes plain
        cdef int64_t size_max = min(self.unpacked_left, self.unpacked_batch_max)
        cdef int64_t at_once_max = min(size_max, UNPACK_AT_ONCE_BYTES)
        packed = PyMemoryView_FromMemory(<char*>records, size, PyBUF_READ)
        if size_max <= 0:
            self._refuse_packed(None, o)
            return None
        try:
            plain = self.decompress(codec, packed, at_once_max)
        except Exception as error:
            if getattr(error, "unpacked_size", None) is None:
                raise
            # Decompression before the error counts as work, too.
            self.work_bytes += error.unpacked_size
            o.waits = error.is_too_large and at_once_max < size_max
            if o.waits:
                self.work = BatchWork(True)
            else:
                self._refuse_packed(error, o)
            return None
        self.unpacked_left -= len(plain)
        self.work_bytes += len(plain)
        return plain

    cdef int _refuse_packed(self, object error, Outcome* o) except -1:
        """Refuse a batch that cannot be unpacked; `error` is None if nothing more may be."""
        if error is not None and not error.is_too_large:
            # Its CRC is right, so it is what the producer made: to send it again, as clients do
            # after CORRUPT_MESSAGE, would change nothing.
            o.error = INVALID_RECORD
            self.message = str(error)
        elif error is not None and self.unpacked_left >= self.unpacked_batch_max:
            o.error = MESSAGE_TOO_LARGE
            self.message = str(error)
        else:
            # It fits by itself, so it is not at fault: clients send it again with the next request.
            o.error = KAFKA_STORAGE_ERROR
            self.message = unpacked_size_text(self.unpacked_size_max)
        if error is not None:
            self.unpacked_left -= error.unpacked_size
        return 0

    cdef int _refuse_split(self, Partition partition, Outcome* o) except -1:
        cdef Fault* fault = &self.splitter.fault
        self.message = describe_fault(fault, self.splitter)
        if fault.code >= SPLIT_TOO_MANY_DELAYED:
            o.error = MESSAGE_TOO_LARGE  # Java's producer sends it again in parts
        else:
            o.error = INVALID_RECORD
            o.fault_record = fault.record
        return self.delays.refuse(partition, fault, self.message)

    cdef bint _prepare(
        self, Topic topic, list others, int64_t size, int room, int64_t now_ms, Outcome* o
    ) except -1:
        """Make room for a frame of `size` bytes. On failure returns False and sets the error."""
        if size > self.writer.frame_size_max:
            self.message = frame_size_text(size, self.writer.frame_size_max)
            o.error = MESSAGE_TOO_LARGE
        elif others and not self.writer.fits(topic, others, size):
            self.message = "too many groups or reply topics for a segment: send one batch for each"
            o.error = MESSAGE_TOO_LARGE
        elif not self.writer.prepare_all(topic, others, size, room, now_ms):
            self.message = self.writer.tail.full_text
            o.error = KAFKA_STORAGE_ERROR
        return o.error == NONE

    cdef int _accept_verbatim(
        self, Partition partition, const Batch* b, const uint8_t* data, int64_t size,
        int64_t now_ms, Outcome* o
    ) except -1:
        """Append the batch as it is, except for base offset, leader epoch and LogAppendTime."""
        cdef Topic topic = partition.topic
        cdef FrameHeader h
        cdef FrameBody body
        cdef uint8_t patch[BATCH_HEADER_SIZE]
        cdef uint32_t crc
        if not self._prepare(topic, None, frame_size(0, size, 0), ROOM_RECORDS, now_ms, o):
            return 0
        memcpy(patch, data, BATCH_HEADER_SIZE)
        store_u64(patch + BATCH_AT_BASE_OFFSET, partition.next_offset)
        store_u32(patch + BATCH_AT_LEADER_EPOCH, self.writer.tail.epoch)
        if topic.log_append_time:
            store_u16(patch + BATCH_AT_ATTRIBUTES, b.attributes | ATTRIBUTE_LOG_APPEND_TIME)
            store_u64(patch + BATCH_AT_MAX_TIMESTAMP, now_ms)
            crc = extend(0, patch + BATCH_CRC_START, BATCH_HEADER_SIZE - BATCH_CRC_START)
            store_u32(
                patch + BATCH_AT_CRC,
                extend(crc, data + BATCH_HEADER_SIZE, size - BATCH_HEADER_SIZE),
            )
            self.splitter.min_timestamp = self.splitter.max_timestamp = now_ms
            o.log_append_time = now_ms
        blank_header(&h, KIND_ACCEPT)
        memset(&body, 0, sizeof(body))
        h.record_count = b.count
        body.visible = data
        body.visible_size = <int32_t>size
        body.visible_patch = patch
        body.visible_patch_size = BATCH_HEADER_SIZE
        body.visible_stays = True
        return self._append(partition, b, &h, &body, now_ms, o)

    cdef int _accept_split(
        self, Partition partition, const Batch* b, int64_t now_ms, Outcome* o
    ) except -1:
        """Append the visible batch, the held batch and the tables in one frame."""
        cdef Topic topic = partition.topic
        cdef BatchSplitter s = self.splitter
        cdef FrameHeader h
        cdef FrameBody body
        cdef int room, own_timers = s.timer_count  # without the replies
        cdef int64_t size = s.visible.size + s.held.size
        cdef int64_t amplified = max(0, size - AMPLIFICATION_MAX * <int64_t>b.length)
        self.message = check_split_size(b, size, self.delayed_size_max, topic.batch_size_max)
        if self.message is not None:
            o.error = MESSAGE_TOO_LARGE  # Java's producer sends it again in parts
            return 0
        if await_ids(s, partition, self.writer.projections, self.work):
            self.work = self.work or BatchWork(False)  # its connection waits for the thread
            o.waits = True
            return 0
        self.message = s.retries.find_targets(partition)
        if self.message is None:
            self.message = self.replies.find_topics(s, partition)
        if self.message is not None:
            o.error = KAFKA_STORAGE_ERROR if s.retries.rules.may_come_later else POLICY_VIOLATION
            return 0
        self.message = self.quota.check(partition, b, s, self.replies.targets, now_ms, self.delays)
        if self.message is not None:
            o.error = KAFKA_STORAGE_ERROR  # clients send it again: by then, some may be delivered
            return 0
        if s.reply_asks.count:
            self.replies.decide(s, b, partition, now_ms)
        size = frame_size(s.tables_size(), s.visible.size, s.held.size)
        # A batch of nothing but cancels holds no new record.
        room = ROOM_RECORDS if s.visible_count or s.timer_count else ROOM_CONTROL
        if not self._prepare(topic, self.replies.topics, size, room, now_ms, o):
            return 0
        s.retries.point(s.timers.data, own_timers, partition)
        self.replies.count_made()
        if topic.log_append_time and s.visible_count:
            # A thread may have split it in an earlier turn.
            s.min_timestamp = s.max_timestamp = now_ms
        s.assemble(
            b, self.writer.tail.pointers.wrote, partition.next_offset, self.writer.tail.epoch,
            topic.log_append_time, self.writer.projections.levels.following
        )
        fill_frame(s, &h, &body)
        if self.work is not None and s is self.work.splitter:
            # The splitter is of this batch alone.
            body.visible_stays = body.held_stays = True
            self.writer.tail.keep(s)
        if topic.log_append_time:
            o.log_append_time = now_ms
        self.delays.let_pass(partition, s)
        self.quota.charge(s, now_ms)
        self.amplified_bytes += amplified
        return self._append(partition, b, &h, &body, now_ms, o)

    cdef int _append(
        self, Partition partition, const Batch* b, FrameHeader* h, const FrameBody* body,
        int64_t now_ms, Outcome* o
    ) except -1:
        """Complete the header of an accept frame, append it, and set the outcome."""
        h.store_time_ms = now_ms
        h.min_timestamp = self.splitter.min_timestamp
        h.max_timestamp = self.splitter.max_timestamp
        h.running_max = max(partition.running_max, h.max_timestamp)
        if h.record_count:
            h.base_offset = partition.next_offset
            h.last_delta = h.record_count - 1
            h.tags = seal_tags(&self.splitter.tags, h.record_count, &h.flags)
        if b.producer_id >= 0:
            h.producer_id = b.producer_id
            h.producer_epoch = b.producer_epoch
            h.first_sequence = b.base_sequence
            h.last_sequence = <int32_t>((<int64_t>b.base_sequence + b.last_delta) & 0x7FFFFFFF)
        self.writer.append(partition, h, body)
        o.base_offset = h.base_offset if h.record_count == b.count else -1
        o.end_pos = h.position + h.size
        return 0
