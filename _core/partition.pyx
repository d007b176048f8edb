"""What the broker knows of a topic and of each of its partitions, beside the records themselves.

All of it is a projection of the log: offsets, ConsumeQueue units, and the last batches of each
idempotent producer. ConsumeQueue units (i64 position, i32 size, i64 tags_code) grow in memory; the
store saves them to files, after which only a short tail stays here, and older ones come in blocks
through `_core.unit_blocks`.

Layer 0: no I/O.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memmove

from _core.buffer cimport Buf, fit, release, reserve
from _core.layout cimport *
from _core.octets cimport (
    load_i16,
    load_i32,
    load_i64,
    load_u32,
    store_u16,
    store_u32,
    store_u64,
)
from _core.unit_blocks cimport UnitBlocks
from _core.unit_runs cimport UnitRun, UnitRuns

cdef enum:
    # Units that stay in memory behind the saved ones: the tail that live consumers read.
    UNITS_KEPT = 64
    UNITS_MIN_BYTES = 256

# Sizes of what a carry frame and a control file hold of producers: docs/FORMAT.md, sequences.
cdef enum:
    SEQUENCES_HEAD_SIZE = 8
    PRODUCER_SIZE = 12
    SEQUENCE_SIZE = 24


cdef class ProducerState:
    """The last batches of one producer on one partition (Kafka's rule for idempotence).

    Attributes:
        epoch: the producer's.
        last_ms: store time of its last batch, epoch ms.
    """

    @property
    def last_sequence(self):
        """The last sequence of its last batch."""
        return self.batches[self.newest].last


cdef class Topic:
    """A topic: its identity, settings and partitions. Made by `Projections.add_topic`."""

    def __init__(self, str name not None, uuid, int topic_id, dict settings not None):
        """Describe a topic without partitions.

        Args:
            name: 1 to 249 characters of [a-zA-Z0-9._-].
            uuid: the id that Kafka clients see.
            topic_id: the id that frames carry; never used again after a delete.
            settings: topic settings by Kafka's names, all text.
        """
        self.name = name
        self.name_bytes = name.encode("ascii")
        self.uuid = uuid
        self.topic_id = topic_id
        self.settings = settings
        self.partitions = []
        self.declared_in = -1

    def configure(
        self, *, bint reads_delay_headers, bint log_append_time, bint due_timestamp,
        int64_t batch_size_max, int64_t delay_max_ms
    ):
        """Set what the hot paths read of the settings.

        Args:
            reads_delay_headers: False: delay headers pass through unread.
            log_append_time: timestamps are the broker's, not the producer's.
            due_timestamp: a delivered record carries its due time instead of its own timestamp.
            batch_size_max: largest batch as received, bytes.
            delay_max_ms: longest delay, ms.
        """
        self.reads_delay_headers = reads_delay_headers
        self.log_append_time = log_append_time
        self.due_timestamp = due_timestamp
        self.batch_size_max = batch_size_max
        self.delay_max_ms = delay_max_ms

    def mark_deleted(self):
        """Nothing is accepted or delivered any more."""
        self.deleted = True


cdef class Partition:
    """One queue of a topic.

    Attributes:
        start_offset: first offset that can be fetched.
        next_offset: offset that the next visible record gets.
        visible_offset: records below it may be fetched (Kafka's high watermark).
        running_max: highest timestamp so far, -1 while there is none.
        log_bytes: size of its frames in the log.
        runs: offsets that have one entry instead of a unit each.
        confirmed_pos: log position of the last frame that told its next offset.
        offset_floor: offsets below it were given, as a topic frame told.
        blocks: units that were read from files; None where there are no files.
        waiters: parked fetches to look at again when `visible_offset` grows.
    """

    def __cinit__(
        self, Topic topic not None, int index, int handle, int64_t start_offset, int64_t next_offset
    ):
        self.topic = topic
        self.index = index
        self.handle = handle
        self.start_offset = start_offset
        self.next_offset = next_offset
        self.visible_offset = next_offset
        self.runs = UnitRuns()
        self.units_base = next_offset
        self.units_saved = next_offset
        self.running_max = -1
        self.waiters = []
        self.producers = {}

    def __dealloc__(self):
        release(&self.units)

    def restore(
        self, *, int64_t start_offset, int64_t next_offset, int64_t running_max,
        int64_t log_bytes, int64_t applied, runs=()
    ):
        """Become what a checkpoint says of it; its units are in files. Before any frame of it.

        Args:
            start_offset, next_offset, running_max, log_bytes: see the attributes.
            applied: log position of the checkpoint.
            runs: as `UnitRuns.overlapping` tells them.

        Raises:
            ValueError: a run is empty, not behind the one before, or goes on behind the end.
        """
        cdef int64_t first, end, pos, tags_code, last = 0
        cdef int32_t size
        assert self.units.size == 0 and 0 <= start_offset <= next_offset
        for first, end, pos, size, tags_code in runs:
            if not last <= first < end <= next_offset:
                raise ValueError(f"a run from {first} to {end}, behind {last}, up to {next_offset}")
            self.runs.add(first, end, pos, size, tags_code)
            last = end
        self.start_offset = start_offset
        self.next_offset = self.visible_offset = next_offset
        self.units_saved = next_offset
        self.units_base = self.runs.place_of(next_offset)
        self.running_max = running_max
        self.log_bytes = log_bytes
        self.confirmed_pos = applied

    cdef void confirm(self, int64_t pos, int64_t next_offset, int64_t running_max) noexcept:
        """A topic frame at log position `pos` tells of it; its own frames may have been lost."""
        self.confirmed_pos = max(self.confirmed_pos, pos)
        self.offset_floor = max(self.offset_floor, next_offset)
        self.running_max = max(self.running_max, running_max)

    cdef void mention(self, int64_t serial) noexcept:
        """Request `serial` (1 or more) names this partition."""
        self.mentioned_again = self.mentioned_in == serial
        self.mentioned_in = serial

    cdef bint is_mentioned_again(self, int64_t serial) noexcept:
        return self.mentioned_in == serial and self.mentioned_again

    cdef int add_units(
        self, int64_t count, int64_t pos, int32_t size, int64_t tags_code
    ) except -1:
        """One unit for each of `count` offsets of the frame at `pos`."""
        cdef uint8_t* p = reserve(&self.units, count * UNIT_SIZE)
        cdef int64_t i
        for i in range(count):
            store_u64(p + UNIT_AT_POSITION, pos)
            store_u32(p + UNIT_AT_SIZE, size)
            store_u64(p + UNIT_AT_TAGS_CODE, tags_code)
            p += UNIT_SIZE
        self.units.size += count * UNIT_SIZE
        self.next_offset += count
        self.units_dirty = True
        return 0

    cdef int add_run(self, int64_t end, int64_t pos, int32_t size, int64_t tags_code) except -1:
        """All offsets up to `end` lead to the frame at `pos`.

        A negative size stands for records that were lost to damage: the frame of that size at `pos`
        is the next one that is whole.
        """
        self.runs.add(self.next_offset, end, pos, size, tags_code)
        self.next_offset = end
        self.units_dirty = True
        return 0

    cdef int find_unit(self, int64_t offset, Unit* unit) except -1:
        """The unit of `offset`. A UnitPlace; one that comes from a file is not to be trusted."""
        cdef const uint8_t* p
        cdef const UnitRun* run
        cdef int64_t number = offset
        cdef int place = UNIT_IN_MEMORY
        if offset < self.start_offset or offset >= self.next_offset:
            return UNIT_NONE
        if self.runs.count:
            run = self.runs.find(offset)
            if run != NULL:
                unit[0] = Unit(run.pos, run.size, run.tags_code, run.first, run.end)
                return UNIT_IN_MEMORY
            number = self.runs.place_of(offset)
        if number >= self.units_base:
            p = self.units.data + (number - self.units_base) * UNIT_SIZE
        elif self.blocks is not None and self.blocks.find(
            self.handle, offset, self.units_saved, &p
        ):
            place = UNIT_FROM_FILE
        else:
            return UNIT_COLD
        unit.pos = load_i64(p + UNIT_AT_POSITION)
        unit.size = load_i32(p + UNIT_AT_SIZE)
        unit.tags_code = load_i64(p + UNIT_AT_TAGS_CODE)
        unit.first = offset
        unit.end = offset + 1
        return place

    def unit(self, int64_t offset):
        """(position, size, tags code) of the unit of `offset`, unchecked.

        None if there is no such record, or a thread must read the unit first.
        """
        cdef Unit unit
        if self.find_unit(offset, &unit) in (UNIT_NONE, UNIT_COLD):
            return None
        return unit.pos, unit.size, unit.tags_code

    def unit_in_memory(self, int64_t offset):
        """As `unit`, but None for what is in files alone: any thread may ask."""
        if self.runs.place_of(offset) >= self.units_base or self.runs.find(offset) != NULL:
            return self.unit(offset)
        return None

    def unsaved_units(self):
        """The first units that are not in a file yet: up to the next run, or of one run.

        Returns:
            Offset of the first of them; their bytes, valid until the next call into this partition;
            and the offset below which all are in files with them. A run has one unit, at its first
            offset, which says in the tags code where it ends if its records were lost.
        """
        cdef int64_t offset = self.units_saved, end = self.next_offset
        cdef const UnitRun* run = self.runs.next_from(offset)
        cdef Py_ssize_t skip
        cdef uint8_t unit[UNIT_SIZE]
        if run != NULL and run.first == offset:
            store_u64(unit + UNIT_AT_POSITION, run.pos)
            store_u32(unit + UNIT_AT_SIZE, run.size)
            store_u64(unit + UNIT_AT_TAGS_CODE, run.end if run.size < 0 else run.tags_code)
            return offset, memoryview(PyBytes_FromStringAndSize(<char*>unit, UNIT_SIZE)), run.end
        if run != NULL:
            end = run.first
        skip = (self.runs.place_of(offset) - self.units_base) * UNIT_SIZE
        return offset, PyMemoryView_FromMemory(
            <char*>self.units.data + skip, (end - offset) * UNIT_SIZE, PyBUF_READ
        ), end

    def units_are_saved(self, int64_t up_to):
        """Units below offset `up_to` are in files; all but a few leave memory."""
        cdef int64_t drop = self.runs.place_of(up_to) - UNITS_KEPT - self.units_base
        assert self.units_saved <= up_to <= self.next_offset
        self.units_saved = up_to
        self.units_dirty = up_to < self.next_offset
        if drop > 0:
            self.units.size -= drop * UNIT_SIZE
            memmove(self.units.data, self.units.data + drop * UNIT_SIZE, self.units.size)
            self.units_base += drop
            fit(&self.units, UNITS_MIN_BYTES)

    def cut_units(self, int64_t offset):
        """Units from `offset` on are gone, from files and memory; the log ends before them."""
        cdef int64_t number = self.runs.place_of(offset)
        assert self.start_offset <= offset <= self.next_offset
        self.next_offset = offset
        self.visible_offset = min(self.visible_offset, offset)
        self.runs.cut(offset)
        if number < self.units_base:
            self.units.size = 0
            self.units_base = number
        else:
            self.units.size = (number - self.units_base) * UNIT_SIZE
        self.units_saved = min(self.units_saved, offset)
        self.units_dirty = self.units_saved < self.next_offset

    @property
    def unsaved_count(self):
        """Units that are only in memory; a run counts as one."""
        cdef int64_t runs = self.runs.count - self.runs.up_to(self.units_saved - 1)
        return runs + self.runs.place_of(self.next_offset) - self.runs.place_of(self.units_saved)

    def raise_start(self, int64_t offset):
        """What is below `offset` can no longer be fetched; an earlier start is no change."""
        if offset <= self.start_offset:
            return
        if offset > self.next_offset:
            # The records below it were lost to damage; nobody can ask for their units.
            self.add_run(offset, 0, UNIT_LOST, 0)
        self.start_offset = offset
        if offset > self.visible_offset:
            self.visible_offset = offset

    cdef int check_sequence(
        self, int64_t producer_id, int16_t epoch, int32_t first, int32_t last, Sequenced* found
    ):
        """Whether a batch of an idempotent producer comes next, came before, or does not fit.

        Source: the behaviour of Apache Kafka's ProducerStateManager. A producer that is not known
        may begin anywhere.
        """
        cdef ProducerState state = <ProducerState>self.producers.get(producer_id)
        cdef int i
        cdef Sequenced* newest
        if state is None:
            return SEQUENCE_NEXT
        if epoch < state.epoch:
            return SEQUENCE_OLD_EPOCH
        if epoch > state.epoch:
            return SEQUENCE_NEXT if first == 0 else SEQUENCE_OUT_OF_ORDER
        for i in range(state.count):
            if state.batches[i].first == first and state.batches[i].last == last:
                found[0] = state.batches[i]
                return SEQUENCE_DUPLICATE
        newest = &state.batches[state.newest]
        if first == ((<int64_t>newest.last + 1) & 0x7FFFFFFF):
            return SEQUENCE_NEXT
        return SEQUENCE_OUT_OF_ORDER

    cdef int note_sequence(
        self, int64_t producer_id, int16_t epoch, const Sequenced* batch, int64_t now_ms
    ) except -1:
        cdef ProducerState state = <ProducerState>self.producers.get(producer_id)
        if state is None:
            state = ProducerState()
            state.epoch = epoch
            state.newest = -1
            self.producers[producer_id] = state
        elif epoch != state.epoch:
            state.epoch = epoch
            state.count = 0
            state.newest = -1
        state.newest = (state.newest + 1) % REMEMBERED_BATCHES
        state.batches[state.newest] = batch[0]
        if state.count < REMEMBERED_BATCHES:
            state.count += 1
        state.last_ms = now_ms
        return 0

    def encode_producers(self):
        """The sequences of its producers, as a carry frame holds them (docs/FORMAT.md)."""
        cdef Buf out
        cdef uint8_t* p
        cdef ProducerState state
        cdef Sequenced* batch
        cdef int i
        out.data = NULL
        out.size = out.capacity = 0
        try:
            p = reserve(&out, SEQUENCES_HEAD_SIZE)
            store_u32(p, self.index)
            store_u32(p + 4, len(self.producers))
            out.size = SEQUENCES_HEAD_SIZE
            for producer_id, known in self.producers.items():
                state = <ProducerState>known
                p = reserve(&out, PRODUCER_SIZE + state.count * SEQUENCE_SIZE)
                store_u64(p, <int64_t>producer_id)
                store_u16(p + 8, state.epoch)
                p[10] = state.count
                p[11] = 0
                p += PRODUCER_SIZE
                for i in range(state.count):
                    # Oldest first: it is the one behind the newest, once all places are taken.
                    batch = &state.batches[
                        (state.newest + 1 + REMEMBERED_BATCHES - state.count + i)
                        % REMEMBERED_BATCHES
                    ]
                    store_u32(p, batch.first)
                    store_u32(p + 4, batch.last)
                    store_u64(p + 8, batch.answer)
                    store_u64(p + 16, batch.store_time_ms)
                    p += SEQUENCE_SIZE
                out.size += PRODUCER_SIZE + state.count * SEQUENCE_SIZE
            return PyBytes_FromStringAndSize(<const char*>out.data, out.size)
        finally:
            release(&out)

    def restore_producers(self, bytes payload not None, int64_t end_pos):
        """Take up what `encode_producers` gave.

        Args:
            payload: of this partition.
            end_pos: log position below which all of their batches are; it is durable.

        Raises:
            ValueError: the payload is shorter or longer than its counts say.
        """
        cdef const uint8_t* p = <const uint8_t*><const char*>payload
        cdef Py_ssize_t left = len(payload)
        cdef Sequenced batch
        cdef int64_t producer_id, count
        cdef int i, batches
        if left < SEQUENCES_HEAD_SIZE:
            raise ValueError(f"{left} bytes of producers, {SEQUENCES_HEAD_SIZE} are the least")
        count = load_u32(p + 4)
        p += SEQUENCES_HEAD_SIZE
        left -= SEQUENCES_HEAD_SIZE
        while count:
            if left < PRODUCER_SIZE or left < PRODUCER_SIZE + p[10] * SEQUENCE_SIZE:
                raise ValueError(f"{count} producers are left, and {left} bytes")
            batches = p[10]
            producer_id = load_i64(p)
            for i in range(batches):
                batch.first = load_i32(p + PRODUCER_SIZE + i * SEQUENCE_SIZE)
                batch.last = load_i32(p + PRODUCER_SIZE + i * SEQUENCE_SIZE + 4)
                batch.answer = load_i64(p + PRODUCER_SIZE + i * SEQUENCE_SIZE + 8)
                batch.store_time_ms = load_i64(p + PRODUCER_SIZE + i * SEQUENCE_SIZE + 16)
                batch.end_pos = end_pos
                self.note_sequence(producer_id, load_i16(p + 8), &batch, batch.store_time_ms)
            p += PRODUCER_SIZE + batches * SEQUENCE_SIZE
            left -= PRODUCER_SIZE + batches * SEQUENCE_SIZE
            count -= 1
        if left:
            raise ValueError(f"{left} bytes behind the last producer")

    def forget_producers(self, int64_t idle_since_ms):
        """Forget producers whose last batch is older than `idle_since_ms` (epoch ms); how many."""
        idle = [
            producer_id for producer_id, state in self.producers.items()
            if (<ProducerState>state).last_ms < idle_since_ms
        ]
        for producer_id in idle:
            del self.producers[producer_id]
        return len(idle)
