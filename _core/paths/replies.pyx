"""Replies to cancels and replacements: what became of an id, as a record of another topic.

    split    ReplyAsks      which records ask, and for which topic
    loop     find_topics    the topics, created on first use
             decide         the outcome of each, as a timer that is due now, in the same frame

A reply is a timer in the accept frame of the batch that points to a partition of the topic. So the
decision and its reply are one frame: a crash keeps both or neither, and the deliver path shows the
record exactly once. Its index is that of no record, after all records of the batch.

The outcome is that of the id when the record takes effect. Records take effect in their order, so
what earlier records of the batch made of an id counts. It must be decided just before the frame is
appended, on the event loop.

docs/decisions/0035 has the reasons. Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memset

from _core.bytes.batch cimport ATTRIBUTE_CODEC, Batch, Record, finish_batch
from _core.bytes.buffer cimport append, extend_zero, release, reserve
from _core.bytes.layout cimport *
from _core.bytes.murmur2 cimport partition_of_key
from _core.bytes.octets cimport (
    load_i32, load_u32, store_u32, store_u64, store_varint, varint_size,
)
from _core.paths.delay_ask cimport DelayAsk
from _core.paths.delay_split cimport BatchSplitter
from _core.paths.reply_asks cimport ReplyAsk
from _core.paths.retry_rules cimport RetryRules
from _core.queue.partition cimport Partition, Topic
from _core.state.projections cimport Projections
from _core.timers.id_index cimport CANCELLED, DELIVERED, PENDING, NamedTimer

# Indexed by ReplyOutcome.
OUTCOMES = ("cancelled", "replaced", "too-late", "unknown")


cdef inline int _outcome_of(bint by_header, int state) noexcept nogil:
    """The outcome of a cancel or of another record with an id; `state` is 0 if it is unknown."""
    if not by_header:
        return REPLY_REPLACED if state == PENDING else REPLY_NONE
    if state == DELIVERED:
        return REPLY_TOO_LATE
    return REPLY_CANCELLED if state else REPLY_UNKNOWN


cdef class Replies:
    """Writes the replies of one batch after the other."""

    def __cinit__(self, Projections projections not None, RetryRules rules):
        """Write no reply yet.

        Args:
            projections: has the topics and the ids.
            rules: makes topics; without them no record can ask for a reply.
        """
        self.projections = projections
        self.rules = rules
        self.targets, self.topics = [], []
        self.changed = {}

    def __dealloc__(self):
        release(&self.body)

    @property
    def written(self):
        """Number of replies by outcome, since the start; those with at least one."""
        cdef int i
        found = {}
        for i in range(<int>REPLY_OUTCOMES):
            if self.counts[i]:
                found[OUTCOMES[i]] = self.counts[i]
        return found

    cdef str find_topics(self, BatchSplitter s, Partition home):
        cdef Topic topic
        self.targets, self.topics = [], s.retries.topics
        self.count = 0
        if s.reply_asks.count == 0:
            return None
        for name in s.reply_asks.topics:
            topic = self._topic(name, home)
            if topic is None:
                return self.rules.why_not
            self.targets.append(topic)
            if topic is not home.topic and topic not in self.topics:
                self.topics = [*self.topics, topic]
        return None

    cdef Topic _topic(self, bytes name, Partition home):
        cdef Topic topic = <Topic>self.projections.topics_by_name.get(name)
        if topic is not None:
            return topic
        text = name.decode("ascii")
        topic, why, self.rules.may_come_later = self.rules.make_topic(
            text, len(home.topic.partitions)
        )
        if topic is None:
            self.rules.why_not = f"the topic {text} cannot be created: {why}"
        return topic

    cdef int decide(
        self, BatchSplitter s, const Batch* b, Partition home, int64_t now_ms
    ) except -1:
        cdef const ReplyAsk* ask = <const ReplyAsk*>s.reply_asks.asks.data
        cdef int32_t asks = s.reply_asks.count
        cdef int32_t timers = s.timer_count, cancels = s.cancel_count, hidden = 0, index
        cdef Py_ssize_t timer = 0, cancel = 0   # places in buffers that may move
        cdef int32_t topic_id = home.topic.topic_id
        cdef const uint8_t* e
        cdef NamedTimer known, named
        cdef bint is_known, is_timer, by_header
        cdef Batch built = b[0]
        self.changed = {}
        memset(self.made, 0, sizeof(self.made))
        memset(&named, 0, sizeof(named))
        while timers or cancels:
            is_timer = timers and (
                not cancels or load_i32(s.timers.data + timer + TIMER_AT_INDEX)
                < load_i32(s.cancels.data + cancel + CANCEL_AT_INDEX)
            )
            if is_timer:
                e = s.timers.data + timer
                index = load_i32(e + TIMER_AT_INDEX)
                name = (<const char*>s.ids.data + load_u32(e + TIMER_AT_ID_POS))[
                    :e[TIMER_AT_ID_SIZE]
                ]
                by_header = False
                timer += TIMER_ENTRY_SIZE
                timers -= 1
            else:
                e = s.cancels.data + cancel
                index = load_i32(e + CANCEL_AT_INDEX)
                name = (<const char*>s.ids.data + load_u32(e + CANCEL_AT_ID_POS))[
                    :e[CANCEL_AT_ID_SIZE]
                ]
                by_header = e[CANCEL_AT_KIND] == CANCEL_BY_HEADER
                cancel += CANCEL_ENTRY_SIZE
                cancels -= 1
            if name:
                is_known = self._find(topic_id, name, &known)
                if asks and ask.index == index:
                    self._reply(
                        s, b, home, ask.topic, name,
                        _outcome_of(by_header, known.state if is_known else 0), &known, now_ms,
                    )
                    ask += 1
                    asks -= 1
                if not by_header:
                    named.state = PENDING if is_timer else DELIVERED
                    named.partition = home.handle
                    named.position = home.next_offset + index - hidden
                    self.changed[name] = named
                elif is_known and known.state == PENDING:
                    known.state = CANCELLED
                    self.changed[name] = known
            hidden += is_timer or by_header
        assert asks == 0
        if s.timer_count:
            built.attributes &= ~ATTRIBUTE_CODEC
            built.base_offset = 0
            built.count = s.timer_count
            built.last_delta = s.timer_count - 1
            if self.count:
                built.max_timestamp = max(built.max_timestamp, now_ms)
            finish_batch(&s.held, 0, &built)
        else:
            s.held.size = 0
        return 0

    cdef bint _find(self, int32_t topic_id, bytes name, NamedTimer* known) except -1:
        """Look up what an id names where the batch has come to."""
        if name in self.changed:
            known[0] = self.changed[name]
            return True
        return self.projections.find_id(
            topic_id, <const uint8_t*><const char*>name, len(name), known
        )

    cdef int _reply(
        self, BatchSplitter s, const Batch* b, Partition home, int topic, bytes name, int outcome,
        const NamedTimer* known, int64_t now_ms
    ) except -1:
        """Add the reply about an id, if it gets one."""
        cdef Partition delivered
        if outcome == REPLY_NONE:
            return 0
        value = f'{{"outcome":"{OUTCOMES[outcome]}","topic":"{home.topic.name}"'
        if outcome == REPLY_TOO_LATE and known.position >= 0:
            delivered = <Partition>self.projections.partitions[known.partition]
            value += f',"partition":{delivered.index},"offset":{known.position}'
        value += "}"
        self._write(s, b, home, <Topic>self.targets[topic], name, value.encode(), now_ms)
        self.made[outcome] += 1
        self.count += 1
        if s.min_due < 0 or now_ms < s.min_due:
            s.min_due = now_ms
        s.max_due = max(s.max_due, now_ms)
        return 0

    cdef int _write(
        self, BatchSplitter s, const Batch* b, Partition home, Topic topic, bytes name,
        bytes value, int64_t now_ms
    ) except -1:
        """Write a record into the held batch, and the timer that points to its partition."""
        cdef Py_ssize_t start = s.held.size
        cdef Py_ssize_t key_size = len(name), value_size = len(value)
        cdef const uint8_t* key = <const uint8_t*><const char*>name
        cdef uint8_t* p
        cdef uint8_t* e
        cdef Record r
        cdef DelayAsk ask
        cdef int32_t target
        memset(&r, 0, sizeof(r))
        memset(&ask, 0, sizeof(ask))
        self.body.size = 0
        p = reserve(&self.body, varint_size(key_size) + varint_size(value_size))
        self.body.size += store_varint(p, key_size)
        append(&self.body, key, key_size)
        p = reserve(&self.body, varint_size(value_size))
        self.body.size += store_varint(p, value_size)
        append(&self.body, <const char*>value, value_size)
        r.tail = self.body.data
        r.headers = r.end = self.body.data + self.body.size
        r.timestamp_delta = now_ms - b.base_timestamp
        ask.due_ms = now_ms
        s.rewriter.write(&s.held, &r, s.timer_count, &ask, topic)
        e = extend_zero(&s.timers, TIMER_ENTRY_SIZE)
        store_u32(e + TIMER_AT_INDEX, <uint32_t>(b.count + self.count))
        e[TIMER_AT_KIND] = DUE_RESOLVED
        store_u64(e + TIMER_AT_DUE, now_ms)
        store_u64(e + TIMER_AT_LEVEL_OFFSET, -1)
        target = partition_of_key(key, key_size, <int32_t>len(topic.partitions))
        if topic is home.topic and target == home.index:
            store_u32(e + TIMER_AT_TARGET_PARTITION, <uint32_t>-1)
        else:
            store_u32(e + TIMER_AT_TARGET_TOPIC, <uint32_t>topic.topic_id)
            store_u32(e + TIMER_AT_TARGET_PARTITION, <uint32_t>target)
        store_u32(e + TIMER_AT_RECORD_POS, <uint32_t>start)
        store_u32(e + TIMER_AT_RECORD_SIZE, <uint32_t>(s.held.size - start))
        s.timer_count += 1
        return 0

    cdef void count_made(self) noexcept:
        cdef int i
        if self.count:
            for i in range(<int>REPLY_OUTCOMES):
                self.counts[i] += self.made[i]
