"""Frames of the CommitLog: encode a header, and check a frame that was read from disk.

docs/FORMAT.md draws the bytes. No frame is trusted before `check_frame` accepts it:

 - magic, version and kind are known, and the sizes add up within the bytes available;
 - the position in the header is the frame's own, which rejects recycled and misplaced frames;
 - the frame's CRC matches: it covers the header, the tables and the first 21 bytes of each batch;
 - each batch's own CRC matches: it covers the rest of that batch;
 - every table entry points inside the frame, and the padding is zero.

Frames of a newer latermq are not damage. If the CRC matches, the following are reported as
FRAME_NEWER_VERSION: a higher version, a kind that this version does not read and that is not marked
optional, an unknown bit in the low byte of the flags, and a table entry with an unknown feature.

Layer 0: no I/O.
"""

from libc.stdint cimport INT64_MIN
from libc.string cimport memset

from _core.bytes.borrowed cimport Borrowed
from _core.bytes.crc32c cimport extend
from _core.bytes.layout cimport *
from _core.bytes.octets cimport (
    load_i16, load_i32, load_i64, load_u16, load_u32, store_u16, store_u32, store_u64,
)


cdef void blank_header(FrameHeader* h, int kind) noexcept nogil:
    """Set every field to its default."""
    memset(h, 0, sizeof(FrameHeader))
    h.kind = kind
    h.base_offset = -1
    h.partition = -1
    h.min_timestamp = INT64_MIN
    h.max_timestamp = -1
    h.running_max = -1
    h.min_due_ms = -1
    h.max_due_ms = -1
    h.producer_id = -1
    h.first_sequence = -1
    h.last_sequence = -1
    h.producer_epoch = -1
    h.last_delta = -1


cdef int64_t frame_size(int64_t tables, int64_t visible, int64_t held) noexcept nogil:
    """Size in bytes of a frame with parts of these sizes, padding included."""
    cdef int64_t size = FRAME_HEADER_SIZE + tables + visible + held
    return (size + FRAME_ALIGNMENT - 1) & ~<int64_t>(FRAME_ALIGNMENT - 1)


cdef void encode_header(const FrameHeader* h, uint8_t* out) noexcept nogil:
    """Encode all but the CRC, which is zero. REQUIRES: FRAME_HEADER_SIZE bytes at `out`."""
    store_u16(out + AT_MAGIC, FRAME_MAGIC)
    out[AT_VERSION] = FORMAT_VERSION
    out[AT_KIND] = <uint8_t>h.kind
    store_u32(out + AT_SIZE, h.size)
    store_u32(out + AT_EPOCH, h.epoch)
    store_u32(out + AT_TOPIC_ID, h.topic_id)
    store_u64(out + AT_PHYS_OFFSET, h.position)
    store_u64(out + AT_FLUSHED, h.flushed)
    store_u64(out + AT_STORE_TIME, h.store_time_ms)
    store_u64(out + AT_BASE_OFFSET, h.base_offset)
    store_u32(out + AT_PARTITION, h.partition)
    store_u32(out + AT_RECORD_COUNT, h.record_count)
    store_u32(out + AT_TIMER_COUNT, h.timer_count)
    store_u32(out + AT_CANCEL_COUNT, h.cancel_count)
    store_u32(out + AT_TABLES_SIZE, h.tables_size)
    store_u32(out + AT_VISIBLE_SIZE, h.visible_size)
    store_u32(out + AT_HELD_SIZE, h.held_size)
    store_u64(out + AT_MIN_TIMESTAMP, h.min_timestamp)
    store_u64(out + AT_MAX_TIMESTAMP, h.max_timestamp)
    store_u64(out + AT_RUNNING_MAX, h.running_max)
    store_u64(out + AT_MIN_DUE_TIME, h.min_due_ms)
    store_u64(out + AT_MAX_DUE_TIME, h.max_due_ms)
    store_u64(out + AT_PRODUCER_ID, h.producer_id)
    store_u32(out + AT_FIRST_SEQUENCE, h.first_sequence)
    store_u32(out + AT_LAST_SEQUENCE, h.last_sequence)
    store_u16(out + AT_PRODUCER_EPOCH, h.producer_epoch)
    store_u16(out + AT_FLAGS, h.flags)
    store_u32(out + AT_LAST_DELTA, h.last_delta)
    store_u64(out + AT_TAGS, h.tags)
    store_u32(out + AT_SALT, h.salt)
    store_u32(out + AT_SALT + 4, 0)
    store_u32(out + AT_CRC, 0)


cdef void decode_header(const uint8_t* p, FrameHeader* h) noexcept nogil:
    """REQUIRES: FRAME_HEADER_SIZE bytes at `p`."""
    h.kind = p[AT_KIND]
    h.size = load_i32(p + AT_SIZE)
    h.epoch = load_i32(p + AT_EPOCH)
    h.topic_id = load_i32(p + AT_TOPIC_ID)
    h.position = load_i64(p + AT_PHYS_OFFSET)
    h.flushed = load_i64(p + AT_FLUSHED)
    h.store_time_ms = load_i64(p + AT_STORE_TIME)
    h.base_offset = load_i64(p + AT_BASE_OFFSET)
    h.partition = load_i32(p + AT_PARTITION)
    h.record_count = load_i32(p + AT_RECORD_COUNT)
    h.timer_count = load_i32(p + AT_TIMER_COUNT)
    h.cancel_count = load_i32(p + AT_CANCEL_COUNT)
    h.tables_size = load_i32(p + AT_TABLES_SIZE)
    h.visible_size = load_i32(p + AT_VISIBLE_SIZE)
    h.held_size = load_i32(p + AT_HELD_SIZE)
    h.min_timestamp = load_i64(p + AT_MIN_TIMESTAMP)
    h.max_timestamp = load_i64(p + AT_MAX_TIMESTAMP)
    h.running_max = load_i64(p + AT_RUNNING_MAX)
    h.min_due_ms = load_i64(p + AT_MIN_DUE_TIME)
    h.max_due_ms = load_i64(p + AT_MAX_DUE_TIME)
    h.producer_id = load_i64(p + AT_PRODUCER_ID)
    h.first_sequence = load_i32(p + AT_FIRST_SEQUENCE)
    h.last_sequence = load_i32(p + AT_LAST_SEQUENCE)
    h.producer_epoch = load_i16(p + AT_PRODUCER_EPOCH)
    h.flags = load_u16(p + AT_FLAGS)
    h.last_delta = load_i32(p + AT_LAST_DELTA)
    h.tags = load_i64(p + AT_TAGS)
    h.salt = load_u32(p + AT_SALT)


cdef int64_t head_size(const FrameHeader* h) noexcept nogil:
    cdef int64_t size = FRAME_HEADER_SIZE
    if h.kind == KIND_BLANK:
        return size
    size += h.tables_size
    if h.held_size:
        return size + h.visible_size + BATCH_CRC_START
    return size + BATCH_CRC_START if h.visible_size else size


cdef bint _sizes_add_up(const FrameHeader* h) noexcept nogil:
    if h.tables_size < 0 or h.visible_size < 0 or h.held_size < 0:
        return False
    if h.tables_size % FRAME_ALIGNMENT:
        return False
    if h.record_count < 0 or h.timer_count < 0 or h.cancel_count < 0:
        return False
    if h.kind == KIND_BLANK:
        return h.tables_size == 0 and h.visible_size == 0 and h.held_size == 0
    if frame_size(h.tables_size, h.visible_size, h.held_size) != h.size:
        return False
    if 0 < h.visible_size < BATCH_HEADER_SIZE or 0 < h.held_size < BATCH_HEADER_SIZE:
        return False
    if h.kind == KIND_ACCEPT or h.kind == KIND_DELIVER:
        # A batch takes at least one offset, even if all of its records are gone.
        return h.last_delta >= 0 if h.visible_size else h.last_delta == -1
    if h.kind == KIND_CARRIED_RECORDS:
        return h.visible_size > 0 and h.held_size == 0 and h.last_delta >= 0 and h.base_offset >= 0
    if is_timer_carry(h):
        return h.visible_size == 0 and h.held_size > 0
    if not is_read(h.kind):
        return True
    return h.visible_size == 0 and (h.held_size == 0 or h.kind == KIND_CANCEL)


cdef bint _batch_is_whole(const uint8_t* p, int32_t size) noexcept nogil:
    """Check the batch's own length and CRC. The frame's CRC covers its first 21 bytes."""
    if load_i32(p + BATCH_AT_LENGTH) != size - 12:
        return False
    return load_u32(p + BATCH_AT_CRC) == extend(0, p + BATCH_CRC_START, size - BATCH_CRC_START)


cdef bint _agrees(const FrameHeader* h, const uint8_t* batch) noexcept nogil:
    """Whether the visible batch and the frame header agree on its offsets."""
    if not has_records(h.kind):
        return True
    return (
        load_i64(batch + BATCH_AT_BASE_OFFSET) == h.base_offset
        and load_i32(batch + BATCH_AT_COUNT) == h.record_count
        and load_i32(batch + BATCH_AT_LAST_DELTA) == h.last_delta
    )


cdef bint _is_inside(const FrameHeader* h, uint32_t pos, int size) noexcept nogil:
    """Whether a part of the tables is inside of them; that of size 0 is."""
    if size == 0:
        return True
    if pos < FRAME_HEADER_SIZE:
        return False
    return <int64_t>pos + size <= FRAME_HEADER_SIZE + <int64_t>h.tables_size


cdef int64_t DUE_MS_END = 1LL << 48    # the year 10889, the limit of the due queue


cdef inline bint _is_target_known(const uint8_t* entry) noexcept nogil:
    """Whether this version understands the target: its own partition, or one of another topic.

    A timer with an id has no other target yet.
    """
    cdef int32_t topic_id = load_i32(entry + TIMER_AT_TARGET_TOPIC)
    cdef int32_t partition = load_i32(entry + TIMER_AT_TARGET_PARTITION)
    if topic_id == 0:
        return partition == -1
    return topic_id > 0 and partition >= 0 and entry[TIMER_AT_ID_SIZE] == 0


cdef bint _is_rule_sound(
    const uint8_t* p, const FrameHeader* h, const uint8_t* entry
) noexcept nogil:
    """Whether the rule of a recurring timer is inside the frame, and as large as its parts."""
    cdef uint32_t pos = load_u32(entry + TIMER_AT_RULE_POS)
    cdef int size = load_u16(entry + TIMER_AT_RULE_SIZE)
    cdef const uint8_t* rule = p + pos
    if entry[TIMER_AT_ID_SIZE] == 0 or size < RULE_HEAD_SIZE or not _is_inside(h, pos, size):
        return False
    return size == RULE_HEAD_SIZE + rule[RULE_AT_EXPRESSION_SIZE] + rule[RULE_AT_ZONE_SIZE]


cdef int _check_recurrence(
    const uint8_t* p, const FrameHeader* h, const uint8_t* entry
) noexcept nogil:
    """Check what a timer entry says of its kind, its occurrence and its rule."""
    cdef uint8_t missed
    if entry[TIMER_AT_KIND] == DUE_RESOLVED:
        return FRAME_NEWER_VERSION if load_u32(entry + TIMER_AT_OCCURRENCE) else FRAME_OK
    if entry[TIMER_AT_KIND] != DUE_RECURRING or load_u32(entry + TIMER_AT_TARGET_TOPIC):
        return FRAME_NEWER_VERSION
    if not _is_rule_sound(p, h, entry):
        return FRAME_BAD_TABLE
    missed = p[load_u32(entry + TIMER_AT_RULE_POS) + RULE_AT_MISSED]
    return FRAME_OK if MISSED_ONCE <= missed <= MISSED_NONE else FRAME_NEWER_VERSION


cdef int _check_timers(const uint8_t* p, const FrameHeader* h) noexcept nogil:
    """Check the timer table of a frame. REQUIRES: the table fits into the tables.

    The entries must point into the frame, have due times in range, and use only known features.
    """
    cdef int64_t held_start = FRAME_HEADER_SIZE + <int64_t>h.tables_size + h.visible_size
    cdef const uint8_t* e = timer_entries(h, p)
    cdef int64_t pos, size, due_ms
    cdef int32_t i
    cdef int fault
    for i in range(timers_held(h)):
        fault = _check_recurrence(p, h, e)
        if fault != FRAME_OK:
            return fault
        if not _is_target_known(e):
            return FRAME_NEWER_VERSION
        pos = load_u32(e + TIMER_AT_RECORD_POS)
        size = load_u32(e + TIMER_AT_RECORD_SIZE)
        if pos < held_start + BATCH_HEADER_SIZE or pos + size > held_start + h.held_size:
            return FRAME_BAD_TABLE
        due_ms = load_i64(e + TIMER_AT_DUE)
        if not 0 <= due_ms < DUE_MS_END:
            return FRAME_BAD_TABLE
        if h.kind == KIND_CARRY and not 0 <= load_i64(e + TIMER_AT_ACCEPT_POS) < h.position:
            return FRAME_BAD_TABLE
        if not _is_inside(h, load_u32(e + TIMER_AT_ID_POS), e[TIMER_AT_ID_SIZE]):
            return FRAME_BAD_TABLE
        e += TIMER_ENTRY_SIZE
    return FRAME_OK


cdef int _check_accept_tables(const uint8_t* p, const FrameHeader* h) noexcept nogil:
    """Check the tables of an accept frame, or of a carry frame of timers."""
    cdef int64_t timers_size = <int64_t>h.timer_count * TIMER_ENTRY_SIZE
    cdef int64_t cancels_size = <int64_t>h.cancel_count * CANCEL_ENTRY_SIZE
    cdef const uint8_t* e = p + FRAME_HEADER_SIZE + timers_size
    cdef int32_t i
    cdef int fault
    if timers_size + cancels_size > h.tables_size:
        return FRAME_BAD_TABLE
    fault = _check_timers(p, h)
    if fault != FRAME_OK:
        return fault
    for i in range(h.cancel_count):
        if e[CANCEL_AT_KIND] != CANCEL_BY_HEADER and e[CANCEL_AT_KIND] != CANCEL_BY_DELIVERY:
            return FRAME_NEWER_VERSION
        if not _is_inside(h, load_u32(e + CANCEL_AT_ID_POS), e[CANCEL_AT_ID_SIZE]):
            return FRAME_BAD_TABLE
        e += CANCEL_ENTRY_SIZE
    return FRAME_OK


cdef int _check_completed_table(const uint8_t* p, const FrameHeader* h) noexcept nogil:
    """Check the tables of a deliver or cancel frame: their entries and the ids after them fit into
    the tables and use only known features, and each timer that is set anew has an entry.
    """
    cdef int64_t need = (
        <int64_t>h.timer_count * COMPLETED_ENTRY_SIZE + <int64_t>h.cancel_count * TIMER_ENTRY_SIZE
    )
    cdef const uint8_t* e = p + FRAME_HEADER_SIZE
    cdef int32_t i, anew = 0
    if need > h.tables_size or (h.held_size == 0) != (h.cancel_count == 0):
        return FRAME_BAD_TABLE
    for i in range(h.timer_count):
        if e[COMPLETED_AT_OP] > COMPLETION_DUE_SET_ANEW:
            return FRAME_NEWER_VERSION
        anew += is_set_anew(e[COMPLETED_AT_OP])
        if load_i32(e + COMPLETED_AT_ORIGIN_TOPIC) < 0 or (
            load_u32(e + COMPLETED_AT_ORIGIN_TOPIC) and e[COMPLETED_AT_ID_SIZE]
        ):
            return FRAME_NEWER_VERSION
        need += e[COMPLETED_AT_ID_SIZE]
        e += COMPLETED_ENTRY_SIZE
    if need > h.tables_size or anew != h.cancel_count:
        return FRAME_BAD_TABLE
    return _check_timers(p, h)


cdef int _check_tables(const uint8_t* p, const FrameHeader* h) noexcept nogil:
    if h.kind == KIND_ACCEPT:
        return _check_accept_tables(p, h)
    if completes(h):
        return _check_completed_table(p, h)
    if is_timer_carry(h):
        if h.timer_count == 0 or h.cancel_count:
            return FRAME_BAD_TABLE
        return _check_accept_tables(p, h)
    if h.kind == KIND_CARRIED_RECORDS and (
        h.tables_size != CARRIED_ORIGIN_SIZE or not 0 <= original_pos(p) < h.position
    ):
        return FRAME_BAD_TABLE
    if h.timer_count or h.cancel_count:
        return FRAME_BAD_TABLE
    return FRAME_OK


cdef uint32_t frame_crc(const uint8_t* p, const FrameHeader* h) noexcept nogil:
    """CRC32C of header[0:156], tables and the first 21 bytes of each batch.

    REQUIRES: the frame is contiguous, and the sizes in `h` are checked.
    """
    cdef uint32_t crc = extend(0, p, AT_CRC)
    cdef const uint8_t* q = p + FRAME_HEADER_SIZE
    crc = extend(crc, q, h.tables_size)
    q += h.tables_size
    if h.visible_size:
        crc = extend(crc, q, BATCH_CRC_START)
    if h.held_size:
        crc = extend(crc, q + h.visible_size, BATCH_CRC_START)
    return crc


cdef int _check_newer(
    const uint8_t* p, int64_t available, int64_t pos, const FrameHeader* h
) noexcept nogil:
    """Check a frame of a higher version. If its CRC does not match, it is damage: a flipped bit.

    Reads only the fields that every version keeps: see "Changing the format" in docs/FORMAT.md.
    """
    if h.size < FRAME_HEADER_SIZE or h.size > available:
        return FRAME_BAD_SIZE
    if h.tables_size < 0 or h.visible_size < 0 or h.held_size < 0:
        return FRAME_BAD_SIZE
    if 0 < h.visible_size < BATCH_CRC_START or 0 < h.held_size < BATCH_CRC_START:
        return FRAME_BAD_SIZE
    if frame_size(h.tables_size, h.visible_size, h.held_size) > h.size:
        return FRAME_BAD_SIZE
    if h.position != pos:
        return FRAME_MISPLACED
    if load_u32(p + AT_CRC) != frame_crc(p, h):
        return FRAME_BAD_CRC
    return FRAME_NEWER_VERSION if h.flushed <= pos else FRAME_BAD_MARK


cdef int _check_meaning(const uint8_t* p, const FrameHeader* h) noexcept nogil:
    """Check that this version understands a frame whose CRC matches."""
    if h.flags & FLAGS_BINDING & ~FLAGS_READ:
        return FRAME_NEWER_VERSION
    if not is_read(h.kind):
        return FRAME_OK if h.flags & FRAME_FLAG_OPTIONAL else FRAME_NEWER_VERSION
    if h.flags & FRAME_FLAG_CONTROL and h.kind != KIND_CARRY:
        return FRAME_NEWER_VERSION
    return _check_tables(p, h)


cdef int check_head(
    const uint8_t* p, int64_t available, int64_t room, int64_t pos, FrameHeader* h
) noexcept nogil:
    cdef int fault
    if available < FRAME_HEADER_SIZE or load_u16(p + AT_MAGIC) != FRAME_MAGIC:
        return FRAME_NO_MAGIC
    if p[AT_VERSION] < FORMAT_VERSION:
        return FRAME_NO_MAGIC
    decode_header(p, h)
    if p[AT_VERSION] > FORMAT_VERSION:
        return _check_newer(p, available, pos, h)
    if h.kind == 0:
        return FRAME_BAD_KIND
    if h.size < FRAME_HEADER_SIZE or h.size > room or h.size % FRAME_ALIGNMENT:
        return FRAME_BAD_SIZE
    if not _sizes_add_up(h) or head_size(h) > available:
        return FRAME_BAD_SIZE
    if h.position != pos:
        return FRAME_MISPLACED
    if load_u32(p + AT_CRC) != frame_crc(p, h):
        return FRAME_BAD_CRC
    if h.flushed > pos:
        return FRAME_BAD_MARK
    return _check_meaning(p, h)


cdef int check_frame(
    const uint8_t* p, int64_t available, int64_t pos, FrameHeader* h, bint with_batches
) noexcept nogil:
    cdef const uint8_t* q
    cdef int fault = check_head(p, available, available, pos, h)
    if fault != FRAME_OK or h.kind == KIND_BLANK:
        return fault
    q = p + FRAME_HEADER_SIZE + h.tables_size
    if with_batches:
        if h.visible_size:
            if not _batch_is_whole(q, h.visible_size) or not _agrees(h, q):
                return FRAME_BAD_BATCH
        if h.held_size and not _batch_is_whole(q + h.visible_size, h.held_size):
            return FRAME_BAD_BATCH
    q += <int64_t>h.visible_size + h.held_size
    while q < p + h.size:
        if q[0]:
            return FRAME_BAD_PADDING
        q += 1
    return FRAME_OK


FAULTS = {
    FRAME_OK: "whole",
    FRAME_NO_MAGIC: "no frame magic",
    FRAME_NEWER_VERSION: "written by a newer latermq",
    FRAME_BAD_KIND: "unknown kind",
    FRAME_BAD_SIZE: "sizes do not add up",
    FRAME_MISPLACED: "frame of another position",
    FRAME_BAD_CRC: "CRC of header and tables differs",
    FRAME_BAD_BATCH: "length, CRC or offsets of a batch differ",
    FRAME_BAD_PADDING: "padding is not zero",
    FRAME_BAD_TABLE: "a table entry is out of range",
    FRAME_BAD_MARK: "flushed mark above its own position",
}


def read_header(data):
    """Decode the header of the frame at the start of `data`, without checks.

    Args:
        data: at least FRAME_HEADER_SIZE bytes.

    Returns:
        A dict of field name to integer.

    Raises:
        ValueError: `data` is shorter than a header.
    """
    cdef Borrowed octets = Borrowed(data)
    cdef FrameHeader h
    if octets.size < FRAME_HEADER_SIZE:
        raise ValueError(f"a frame header has {FRAME_HEADER_SIZE} bytes, got {octets.size}")
    decode_header(octets.p, &h)
    return h


def check(data, int64_t position):
    """Check the frame at the start of `data`.

    Args:
        data: the frame and any bytes that follow it.
        position: log position of the frame.

    Returns:
        The first fault found, a text of FAULTS; "whole" if there is none.
    """
    cdef Borrowed octets = Borrowed(data)
    cdef FrameHeader h
    if octets.size == 0:
        return FAULTS[FRAME_NO_MAGIC]
    return FAULTS[check_frame(octets.p, octets.size, position, &h, True)]


def whole_size(data, Py_ssize_t at):
    """Find where the last whole frame of a part of the log ends; nothing is checked.

    Args:
        data: bytes of the log.
        at: where a frame begins in it.

    Returns:
        (end of the last whole frame, size of the frame that begins there; 0 if fewer than 8 bytes
        of it are there). A size that no frame has ends the search as well.
    """
    cdef Borrowed octets = Borrowed(data)
    cdef Py_ssize_t end = octets.size
    cdef int64_t size
    while end - at >= 8:
        size = load_u32(octets.p + at + AT_SIZE)
        if size < FRAME_HEADER_SIZE or size % FRAME_ALIGNMENT or size > end - at:
            return at, size
        at += size
    return at, 0
