"""Topics and partitions: offsets, ConsumeQueue units, and the sequences of idempotent producers.

All of this is a projection of the log and can be rebuilt from it.

A ConsumeQueue unit (i64 position, i32 size, i64 tags_code) maps an offset to its frame. A lookup
finds it in one of four places:

 - `UnitRuns`: one entry for a range of offsets that share a frame;
 - `MovedUnits`: units of carried records that are not saved yet;
 - the units in memory: those not saved yet, and a short tail of the saved ones for live consumers;
 - `UnitBlocks`: units that were read back from the files into which the store saves them.

A unit from a file may be corrupt, and `FrameFinder` checks it against its frame.

Layer 0: no I/O.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memmove, memset

from _core.bytes.buffer cimport Buf, fit, release, reserve
from _core.bytes.layout cimport *
from _core.bytes.octets cimport (
    load_i32,
    load_i64,
    store_u32,
    store_u64,
)
from _core.queue.carried_parts cimport CarriedParts
from _core.queue.lateness cimport lateness_counts
from _core.queue.moved_units cimport MovedRange, MovedUnits
from _core.queue.producer_state cimport (
    ProducerState, ProducerTable, Sequenced, encode_producers,
)
from _core.queue.unit_blocks cimport UnitBlocks
from _core.queue.unit_runs cimport UnitRun, UnitRuns

cdef enum:
    # Saved units that stay in memory: the tail that live consumers read.
    UNITS_KEPT = 64
    UNITS_MIN_BYTES = 256
    # Moved units that are written at once.
    MOVED_UNITS_MAX = 65536


cdef class Topic:
    """A topic: its identity, settings and partitions. Created by `Projections.add_topic`."""

    def __init__(self, str name not None, uuid, int topic_id, dict settings not None):
        """Create a topic without partitions.

        Args:
            name: 1 to 249 characters of [a-zA-Z0-9._-].
            uuid: the id that Kafka clients see.
            topic_id: the id in frames, which is not reused after the topic is deleted.
            settings: topic settings by Kafka's names, all text.
        """
        self.name = name
        self.name_bytes = name.encode("ascii")
        self.uuid = uuid
        self.topic_id = topic_id
        self.settings = settings
        self.partitions = []
        self.retry_delays_ms = ()
        self.declared_in = self.deliveries_per_s = self.pending_max = -1
        self.waiters = {}

    def configure(
        self, *, bint reads_delay_headers, bint passes_invalid_delays, bint log_append_time,
        bint due_timestamp, int64_t batch_size_max, int64_t delay_max_ms,
        bint requires_delay=False, int64_t delay_default_ms=-1, int64_t deliveries_per_s=-1,
        int64_t delivery_spread_ms=0, int64_t pending_max=-1, tuple retry_delays_ms=(),
        int64_t retry_max=0
    ):
        """Set the settings that the hot paths read.

        Args:
            reads_delay_headers: False if delay headers pass through without effect.
            passes_invalid_delays: True if a record whose delay request cannot be met is delivered
                at once, False if it is refused.
            log_append_time: True if the broker sets timestamps, not the producer.
            due_timestamp: True if the timestamp of a delivered record is its due time.
            batch_size_max: largest batch as received, bytes.
            delay_max_ms: longest delay, ms.
            requires_delay: True if a record without a delay request is refused.
            delay_default_ms: delay of a record without a request, ms; -1 if it has none.
            deliveries_per_s: delayed records delivered in any second at most; 0 if none is
                delivered for now, -1 for any number.
            pending_max: delayed records that may be pending; -1 for any number.
            retry_delays_ms: of GROUP.retry: delay before each attempt, ms, the last one before all
                further ones; () for the delay levels from the third on.
            retry_max: of GROUP.retry: attempts before a record goes to GROUP.dlq.
            delivery_spread_ms: time over which delayed records that are due at once are spread, ms.
        """
        self.reads_delay_headers = reads_delay_headers
        self.passes_invalid_delays = passes_invalid_delays
        self.log_append_time = log_append_time
        self.due_timestamp = due_timestamp
        self.batch_size_max = batch_size_max
        self.delay_max_ms = delay_max_ms
        self.requires_delay = requires_delay
        self.delay_default_ms = delay_default_ms
        self.deliveries_per_s = deliveries_per_s
        self.delivery_spread_ms = delivery_spread_ms
        self.pending_max = pending_max
        self.retry_delays_ms = retry_delays_ms
        self.retry_max = retry_max
        self.bounds_deliveries = deliveries_per_s >= 0 or delivery_spread_ms > 0

    @property
    def lateness(self):
        """Delivered timers by lateness: a count for each of LATENESS_BOUNDS_MS, and one above."""
        return lateness_counts(&self.late)

    @property
    def lateness_sum_ms(self):
        """The sum of what they were late by, ms."""
        return self.late.sum_ms

    def mark_deleted(self):
        """Mark the topic as deleted: nothing is accepted or delivered any more."""
        self.deleted = True


cdef class Partition:
    """A partition: one queue of a topic.

    Attributes:
        start_offset: first offset that can be fetched.
        next_offset: offset of the next visible record.
        visible_offset: records below it may be fetched (Kafka's high watermark).
        running_max: highest timestamp so far, -1 if there is none.
        log_bytes: size of its frames in the log, without those of carried records.
        kept_bytes: about the size of the frames of its records that can be fetched.
        runs: ranges of offsets that share one entry instead of a unit each.
        confirmed_pos: log position of the last frame that states its next offset.
        offset_floor: offsets below it are assigned, according to a topic frame.
        blocks: units that were read from files; None if there are no files.
        carried: which of its offsets are of carried records.
        carried_pos: log position after the last frame of carried records; 0 if none was applied.
        moves_saved: number of times that units of carried records were saved.
        waiters: the parked fetches to resume when `visible_offset` grows, as keys in order.
    """

    def __cinit__(
        self, Topic topic not None, int index, int handle, int64_t start_offset,
        int64_t next_offset, ProducerTable table=None
    ):
        self.topic = topic
        self.index = index
        self.handle = handle
        self.start_offset = start_offset
        self.next_offset = next_offset
        self.visible_offset = next_offset
        self.runs = UnitRuns()
        self.moved = MovedUnits()
        self.carried = CarriedParts()
        self.units_base = next_offset
        self.units_saved = next_offset
        self.running_max = -1
        self.waiters = {}
        self.producers = {}
        self.table = ProducerTable() if table is None else table

    def __dealloc__(self):
        release(&self.units)

    def restore(
        self, *, int64_t start_offset, int64_t next_offset, int64_t running_max,
        int64_t log_bytes, int64_t applied, runs=(), carried=(), int64_t kept_bytes=-1
    ):
        """Restore the state of a checkpoint. Call it before any frame of the partition is applied.

        Args:
            start_offset, next_offset, running_max, log_bytes: see the attributes. All units below
                `next_offset` are in files.
            applied: log position of the checkpoint.
            runs: as returned by `UnitRuns.overlapping`.
            carried: as returned by `carried_parts`.
            kept_bytes: see the attributes; -1 if it is not known.

        Raises:
            ValueError: a run or a carried part is empty, overlaps the previous one, or ends after
                `next_offset`.
        """
        cdef int64_t first, end, pos, tags_code, last = 0
        cdef int32_t size
        assert self.units.size == 0 and 0 <= start_offset <= next_offset
        for first, end, pos, size, tags_code in runs:
            if not last <= first < end <= next_offset:
                raise ValueError(
                    f"run of offsets {first} to {end} is not within {last} to {next_offset}"
                )
            self.runs.add(first, end, pos, size, tags_code)
            last = end
        last = 0
        for first, end, pos in carried:
            if not last <= first < end <= next_offset:
                raise ValueError(
                    f"carried offsets {first} to {end} are not within {last} to {next_offset}"
                )
            self.carried.restore(first, end, pos)
            last = end
        self.start_offset = start_offset
        self.next_offset = self.visible_offset = next_offset
        self.units_saved = next_offset
        self.units_base = self.runs.place_of(next_offset)
        self.running_max = running_max
        self.log_bytes = log_bytes
        self.kept_bytes = kept_bytes
        if kept_bytes < 0:  # it was saved by a version that did not count them
            self.kept_bytes = log_bytes if start_offset < next_offset else 0
        self.confirmed_pos = applied

    cdef void confirm(self, int64_t pos, int64_t next_offset, int64_t running_max) noexcept:
        """Apply what a topic frame at log position `pos` states about this partition.

        It also counts if frames of the partition itself were lost.
        """
        self.confirmed_pos = max(self.confirmed_pos, pos)
        self.offset_floor = max(self.offset_floor, next_offset)
        self.running_max = max(self.running_max, running_max)

    def waiting(self):
        """Return the parked fetches that wait for its records: its own, and those of its topic."""
        cdef int byte = self.index >> 3
        found = list(self.waiters)
        for parked, marks in self.topic.waiters.items():
            if byte < len(marks) and (<bytearray>marks)[byte] >> (self.index & 7) & 1:
                found.append(parked)
        return found

    cdef void mention(self, int64_t serial) noexcept:
        """Note that request `serial` (1 or more) names this partition."""
        self.mentioned_again = self.mentioned_in == serial
        self.mentioned_in = serial

    cdef bint is_mentioned_again(self, int64_t serial) noexcept:
        return self.mentioned_in == serial and self.mentioned_again

    cdef int add_units(
        self, int64_t count, int64_t pos, int32_t size, int64_t tags_code
    ) except -1:
        """Add one unit for each of the next `count` offsets, which are in the frame at `pos`."""
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
        """Map all offsets from `next_offset` to before `end` to the frame at `pos`.

        A negative size means that the records were lost to damage. The frame of size -`size` at
        `pos` is then the next whole one.
        """
        self.runs.add(self.next_offset, end, pos, size, tags_code)
        self.next_offset = end
        self.units_dirty = True
        return 0

    cdef int add_lost(self, int64_t end) except -1:
        """Map the offsets up to before `end` to nothing: later frames may say what they hold."""
        cdef bint is_saved = self.units_saved == self.next_offset
        self.add_run(end, 0, UNIT_LOST, 0)
        if is_saved:
            # Without a unit in a file: the state snapshot has the run.
            self.units_saved = end
            self.units_dirty = self.moved.count > 0
        return 0

    cdef bint carry_units(
        self, int64_t first, int64_t end, int64_t pos, int32_t size, int64_t tags_code, bint is_one
    ) except -1:
        """Map known offsets to the frame of carried records at `pos`, lost ones among them.

        Args:
            first, end: offset of the first record, and the one after the last, at most
                `next_offset`.
            pos, size, tags_code: the unit.
            is_one: the frame has one unit for all of its offsets.

        Returns:
            False if an earlier frame divides these offsets in another way; nothing changes then.
        """
        cdef int64_t lost = self.runs.lost_between(first, end)
        cdef UnitRun* run
        if is_one and lost == end - first:
            self.runs.replace(first, end, pos, size, tags_code)
        elif is_one:
            run = self.runs.find(first)
            if run == NULL or run.size < 0 or run.first != first or run.end != end:
                return False
            run.pos, run.size, run.tags_code = pos, size, tags_code
        elif lost < 0:
            return False
        else:
            if lost:
                self._find_again(first, end)
            self._replace_in_memory(first, end, pos, size, tags_code)
        if first < self.units_saved:
            self.moved.add(
                first, first + 1 if is_one else min(end, self.units_saved), pos, size, tags_code
            )
        self.units_dirty = True
        self.carried.add(first, end, pos, self.runs)
        self.carried_pos = pos + size
        return True

    cdef int _find_again(self, int64_t first, int64_t end) except -1:
        """Give each lost offset of a range a unit of its own, in memory or in a file."""
        cdef const UnitRun* run
        cdef int64_t number, count, kept, stop
        cdef uint8_t* p
        while first < end:
            run = self.runs.find(first)
            if run == NULL:
                run = self.runs.next_from(first)
                if run == NULL or run.first >= end:
                    break
                first = run.first
            stop = min(end, run.end)
            count = stop - first
            number = self.runs.place_of(first)
            self.runs.cut_out(first, stop)
            kept = max(number - self.units_base, 0)  # units in memory before these
            if stop <= self.units_saved:
                # All before them are in files as well, so memory begins after them.
                self.units.size -= kept * UNIT_SIZE
                memmove(
                    self.units.data, self.units.data + kept * UNIT_SIZE, self.units.size
                )
                self.units_base += kept + count
            else:
                p = reserve(&self.units, count * UNIT_SIZE)
                p = self.units.data + kept * UNIT_SIZE
                memmove(p + count * UNIT_SIZE, p, self.units.size - kept * UNIT_SIZE)
                memset(p, 0, count * UNIT_SIZE)
                self.units.size += count * UNIT_SIZE
            first = stop
        return 0

    cdef void _replace_in_memory(
        self, int64_t first, int64_t end, int64_t pos, int32_t size, int64_t tags_code
    ) noexcept:
        """Replace those units of a range without runs that are in memory."""
        cdef int64_t number = self.runs.place_of(first)
        cdef int64_t stop = number + end - first
        cdef uint8_t* p
        number = max(number, self.units_base)
        p = self.units.data + (number - self.units_base) * UNIT_SIZE
        while number < stop:
            store_u64(p + UNIT_AT_POSITION, pos)
            store_u32(p + UNIT_AT_SIZE, size)
            store_u64(p + UNIT_AT_TAGS_CODE, tags_code)
            p += UNIT_SIZE
            number += 1

    cdef int find_unit(self, int64_t offset, Unit* unit) except -1:
        """Find the unit of `offset`. Returns a UnitPlace; do not trust a UNIT_FROM_FILE."""
        cdef const uint8_t* p
        cdef const UnitRun* run
        cdef const MovedRange* moved
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
        if self.moved.count:
            moved = self.moved.find(offset)
            if moved != NULL:
                unit[0] = Unit(moved.pos, moved.size, moved.tags_code, offset, offset + 1)
                return UNIT_IN_MEMORY
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
        """(position, size, tags code) of the unit of `offset`, without checks.

        None if there is no such record, or if a thread must read the unit first.
        """
        cdef Unit unit
        if self.find_unit(offset, &unit) in (UNIT_NONE, UNIT_COLD):
            return None
        return unit.pos, unit.size, unit.tags_code

    def unit_in_memory(self, int64_t offset):
        """Like `unit`, but None if the unit is only in a file. Any thread may call it."""
        if (
            self.runs.place_of(offset) >= self.units_base or self.runs.find(offset) != NULL
            or self.moved.find(offset) != NULL
        ):
            return self.unit(offset)
        return None

    def unsaved_units(self):
        """The first units that are not saved yet: those before the next run, or one run.

        Returns:
            The offset of the first unit; the bytes of the units, valid until the next call into
            this partition; and the offset below which all units are saved once these are. A run is
            saved as one unit at its first offset. If its records were lost, the tags code of that
            unit is the end of the run.
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
        """Note that units below offset `up_to` are saved.

        All but a few are dropped from memory, or later, if more are left: what is left is moved.
        """
        cdef int64_t drop = self.runs.place_of(up_to) - UNITS_KEPT - self.units_base
        assert self.units_saved <= up_to <= self.next_offset
        self.units_saved = up_to
        self.units_dirty = up_to < self.next_offset or self.moved.count > 0
        if drop > 0 and (not self.units_dirty or drop * 2 * UNIT_SIZE >= self.units.size):
            self.units.size -= drop * UNIT_SIZE
            memmove(self.units.data, self.units.data + drop * UNIT_SIZE, self.units.size)
            self.units_base += drop
            fit(&self.units, UNITS_MIN_BYTES)

    @property
    def moved_count(self):
        """Number of frames whose units in the files are wrong since their records were carried."""
        return self.moved.count

    def moved_units(self):
        """The first units that differ from those in the files; there is one.

        Returns:
            The offset of the first unit, and the bytes of all. They are of one file.
        """
        return self.moved.first_units(MOVED_UNITS_MAX, UNITS_PER_FILE)

    def moved_are_saved(self, int64_t up_to):
        """Note that the moved units below offset `up_to` are saved."""
        self.moved.drop_below(up_to)
        self.moves_saved += 1
        self.units_dirty = self.units_saved < self.next_offset or self.moved.count > 0

    @property
    def carried_end(self):
        """The offset after the last carried record; 0 if there is none."""
        return self.carried.end()

    def carried_parts(self):
        """(first offset, offset after the last, lowest place) of each part of carried records.

        Log positions ascend within a part, and no record of it lies below its lowest place.
        """
        self.carried.drop_below(self.start_offset)
        return self.carried.rows()

    def cut_units(self, int64_t offset):
        """Drop all units from `offset` on, because the log ends before their frames."""
        cdef int64_t number = self.runs.place_of(offset)
        assert self.start_offset <= offset <= self.next_offset
        self.next_offset = offset
        self.visible_offset = min(self.visible_offset, offset)
        self.runs.cut(offset)
        self.moved.cut(offset)
        if number < self.units_base:
            self.units.size = 0
            self.units_base = number
        else:
            self.units.size = (number - self.units_base) * UNIT_SIZE
        self.units_saved = min(self.units_saved, offset)
        self.units_dirty = self.units_saved < self.next_offset

    @property
    def unsaved_count(self):
        """Number of units that are only in memory; a run counts as one."""
        cdef int64_t runs = self.runs.count - self.runs.up_to(self.units_saved - 1)
        return runs + self.runs.place_of(self.next_offset) - self.runs.place_of(self.units_saved)

    def raise_start(self, int64_t offset):
        """Raise `start_offset` to `offset`; records below it can no longer be fetched.

        A lower offset changes nothing.
        """
        cdef int64_t below = self.runs.place_of(self.start_offset)
        cdef int64_t count = self.runs.place_of(self.next_offset) - below
        cdef int64_t gone = self.runs.place_of(offset) - below
        if offset <= self.start_offset:
            return
        # As if all of its records were of one size.
        self.kept_bytes = (
            <int64_t>(self.kept_bytes * (1.0 - <double>gone / count)) if gone < count else 0
        )
        if offset > self.next_offset:
            # The records below it were lost to damage; their units cannot be requested.
            self.add_run(offset, 0, UNIT_LOST, 0)
        self.start_offset = offset
        if offset > self.visible_offset:
            self.visible_offset = offset

    cdef int check_sequence(
        self, int64_t producer_id, int16_t epoch, int32_t first, int32_t last, Sequenced* found
    ):
        """Classify a batch of an idempotent producer; returns a SequenceVerdict.

        For a duplicate, `found` is the original batch. A new producer may start at any sequence
        number. Source: the behaviour of Apache Kafka's ProducerStateManager.
        """
        cdef ProducerState state = <ProducerState>self.producers.get(producer_id)
        cdef int i
        cdef Sequenced* newest
        if state is None:
            return SEQUENCE_NEW
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
        self, int64_t producer_id, int16_t epoch, const Sequenced* batch
    ) except -1:
        return self.table.note(self.producers, self.handle, producer_id, epoch, batch)

    def encode_producers(self):
        """Encode the sequences of its producers in the layout of a carry frame (docs/FORMAT.md)."""
        return encode_producers(self.producers, self.index)

    def restore_producers(self, bytes payload not None, int64_t end_pos):
        """Restore the sequences that `encode_producers` encoded; they replace known ones.

        Args:
            payload: the encoded sequences of this partition.
            end_pos: a durable log position after the frames of all these batches.

        Raises:
            ValueError: the payload is shorter or longer than its counts imply.
        """
        self.table.restore(self.producers, self.handle, payload, end_pos)
