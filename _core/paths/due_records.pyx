"""Locates the records of due timers in the frame cache, for a delivery to copy them.

The locations stay valid until `end`. A round of delivery is bounded, both in the number of frames
that it reads on the event loop and in the memory that it pins.

Layer 0: no I/O.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.batch cimport Record, next_record
from _core.timers.due_queue cimport Timer
from _core.bytes.layout cimport *
from _core.log.frames cimport FrameHeader, decode_header, timer_entries, timers_held
from _core.log.view cimport LogView
from _core.timers.moved_frames cimport MovedFrames
from _core.bytes.octets cimport Cursor, cursor_of, load_i32, load_i64, load_u16, load_u32

cdef enum:
    # Per round: frames read on the event loop (a thread reads the others), and memory pinned.
    READS_MAX = 16
    PINNED_MAX_BYTES = 64 << 20


cdef const uint8_t* find_entry(
    const uint8_t* frame, int64_t accept_pos, int32_t record_index
) noexcept nogil:
    cdef int32_t low = 0, high, middle, count
    cdef const uint8_t* entries
    cdef const uint8_t* entry
    cdef int64_t found
    cdef FrameHeader h
    decode_header(frame, &h)
    entries = timer_entries(&h, frame)
    count = high = timers_held(&h)
    while low < high:
        middle = low + (high - low) // 2
        entry = entries + <int64_t>middle * TIMER_ENTRY_SIZE
        found = load_i64(entry + TIMER_AT_ACCEPT_POS)
        if found < accept_pos or (
            found == accept_pos and load_i32(entry + TIMER_AT_INDEX) < record_index
        ):
            low = middle + 1
        else:
            high = middle
    if low == count:
        return NULL
    entry = entries + <int64_t>low * TIMER_ENTRY_SIZE
    if load_i64(entry + TIMER_AT_ACCEPT_POS) != accept_pos:
        return NULL
    return entry if load_i32(entry + TIMER_AT_INDEX) == record_index else NULL


cdef bint read_held(const uint8_t* frame, const uint8_t* entry, Due* due) noexcept nogil:
    cdef const uint8_t* held = (
        frame + FRAME_HEADER_SIZE + load_i32(frame + AT_TABLES_SIZE)
        + load_i32(frame + AT_VISIBLE_SIZE)
    )
    cdef Cursor c = cursor_of(
        frame + load_u32(entry + TIMER_AT_RECORD_POS), load_u32(entry + TIMER_AT_RECORD_SIZE)
    )
    cdef Record r
    if not next_record(&c, &r):
        return False
    due.tail = r.tail
    due.tail_size = r.end - r.tail
    due.attributes = r.attributes
    due.topic_id = load_i32(frame + AT_TOPIC_ID)
    due.is_held = False
    due.timestamp = r.timestamp_delta + load_i64(held + BATCH_AT_BASE_TIMESTAMP)
    due.name_size = entry[TIMER_AT_ID_SIZE]
    due.name = frame + load_u32(entry + TIMER_AT_ID_POS)
    due.rule_size = load_u16(entry + TIMER_AT_RULE_SIZE)
    due.rule = frame + load_u32(entry + TIMER_AT_RULE_POS)
    due.occurrence = load_u32(entry + TIMER_AT_OCCURRENCE)
    due.level = entry[TIMER_AT_LEVEL]
    return True


cdef class HeldRecords:
    """Finds held records through the frames that hold them."""

    def __cinit__(self, LogView view not None, MovedFrames moved not None):
        """Read frames from the frame cache `view`; `moved` says where carried timers are."""
        self.view = view
        self.moved = moved
        self.blocks = []

    cdef int begin(self) except -1:
        """Start a round."""
        self.blocks = []
        self.pinned_bytes = 0
        self.view.user += 1
        self.user = self.view.user
        self.reads_left = READS_MAX
        return 0

    cdef int end(self) except -1:
        self.blocks = []
        return 0

    cdef bint is_spent(self) noexcept nogil:
        """Whether the round must end because it pins too much memory."""
        return self.pinned_bytes >= PINNED_MAX_BYTES

    cdef int locate(self, const Timer* timer, Due* due) except -1:
        """Find a timer's record in the frame that holds it now. Returns a LocateResult."""
        cdef int64_t pos = self.moved.place_of(timer.position)
        cdef const uint8_t* frame
        cdef const uint8_t* entry
        cdef int32_t frame_size = 0
        if pos < 0:
            return LOCATE_CONTRADICTED
        if self.view.is_damaged(pos):
            return LOCATE_DAMAGED
        frame = self.view._find(pos, &frame_size)
        if frame == NULL and self.reads_left:
            self.reads_left -= 1
            frame = self.view.frame_at(pos, &frame_size)
        if frame == NULL:
            return LOCATE_COLD
        if self.view.block.note_user(self.user, self.blocks):
            self.pinned_bytes += self.view.block.capacity
        entry = find_entry(frame, timer.position, timer.record_index)
        if entry == NULL or not read_held(frame, entry, due):
            return LOCATE_CONTRADICTED
        return LOCATED
