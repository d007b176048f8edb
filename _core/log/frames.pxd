from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t

from _core.bytes.layout cimport (
    AT_KIND, AT_PHYS_OFFSET, COMPLETED_AT_DUE, COMPLETED_AT_OP, COMPLETED_ENTRY_SIZE,
    COMPLETION_DUE_FINAL, COMPLETION_DUE_SET_ANEW, COMPLETION_SET_ANEW, FRAME_FLAG_CONTROL,
    FRAME_HEADER_SIZE, KIND_ACCEPT, KIND_CANCEL, KIND_CARRIED_RECORDS, KIND_CARRY, KIND_DELIVER,
    KINDS_READ, ORIGIN_AT_ORIGINAL_POS, RUN_OFFSETS_MIN, TIMER_ENTRY_SIZE,
)
from _core.bytes.octets cimport load_i64

# A frame header with native integers; the fields are those of layout.pxd.
cdef struct FrameHeader:
    int kind
    int32_t size
    int32_t epoch
    int32_t topic_id
    int64_t position
    int64_t flushed
    int64_t store_time_ms
    int64_t base_offset
    int32_t partition
    int32_t record_count
    int32_t timer_count
    int32_t cancel_count
    int32_t tables_size
    int32_t visible_size
    int32_t held_size
    int64_t min_timestamp
    int64_t max_timestamp
    int64_t running_max
    int64_t min_due_ms
    int64_t max_due_ms
    int64_t producer_id
    int32_t first_sequence
    int32_t last_sequence
    int16_t producer_epoch
    uint16_t flags
    int32_t last_delta
    int64_t tags
    uint32_t salt

cdef enum FrameFault:
    FRAME_OK = 0
    FRAME_NO_MAGIC
    FRAME_NEWER_VERSION
    FRAME_BAD_KIND
    FRAME_BAD_SIZE
    FRAME_MISPLACED
    FRAME_BAD_CRC
    FRAME_BAD_BATCH
    FRAME_BAD_PADDING
    FRAME_BAD_TABLE
    FRAME_BAD_MARK

# Whether this version reads frames of that kind.
cdef inline bint is_read(int kind) noexcept nogil:
    return 0 < kind < 32 and (KINDS_READ >> kind) & 1

# Whether it is a carry frame of timers.
cdef inline bint is_timer_carry(const FrameHeader* h) noexcept nogil:
    return h.kind == KIND_CARRY and not h.flags & FRAME_FLAG_CONTROL

# Whether it completes timers, and may set some of them anew.
cdef inline bint completes(const FrameHeader* h) noexcept nogil:
    return h.kind == KIND_DELIVER or h.kind == KIND_CANCEL

# Whether an op of a completed entry says that the timer is set anew.
cdef inline bint is_set_anew(int op) noexcept nogil:
    return op == COMPLETION_SET_ANEW or op == COMPLETION_DUE_SET_ANEW

# Whether a completed entry has the due time and the level of its timer: older frames do not.
cdef inline bint has_due(const uint8_t* completed) noexcept nogil:
    return completed[COMPLETED_AT_OP] >= COMPLETION_DUE_FINAL

# That due time; -1 if an older frame does not have it.
cdef inline int64_t completed_due(const uint8_t* completed) noexcept nogil:
    return load_i64(completed + COMPLETED_AT_DUE) if has_due(completed) else -1

# How many timers it holds.
cdef inline int32_t timers_held(const FrameHeader* h) noexcept nogil:
    if completes(h):
        return h.cancel_count
    if h.kind == KIND_ACCEPT or is_timer_carry(h):
        return h.timer_count
    return 0

# Its timer table.
cdef inline const uint8_t* timer_entries(const FrameHeader* h, const uint8_t* p) noexcept nogil:
    cdef const uint8_t* entries = p + FRAME_HEADER_SIZE
    return entries + <int64_t>h.timer_count * COMPLETED_ENTRY_SIZE if completes(h) else entries

# The ids of the timers that it completes. REQUIRES: it does.
cdef inline const uint8_t* completed_names(const FrameHeader* h, const uint8_t* p) noexcept nogil:
    return timer_entries(h, p) + <int64_t>h.cancel_count * TIMER_ENTRY_SIZE

# Whether a frame of that kind can hold visible records.
cdef inline bint has_records(int kind) noexcept nogil:
    return kind == KIND_ACCEPT or kind == KIND_DELIVER or kind == KIND_CARRIED_RECORDS

# Whether it belongs to one partition, and is applied to it.
cdef inline bint is_of_partition(const FrameHeader* h) noexcept nogil:
    return has_records(h.kind) or h.kind == KIND_CANCEL or is_timer_carry(h)

# Log position of the frame that first held the visible records of the whole frame at `p`.
cdef inline int64_t original_pos(const uint8_t* p) noexcept nogil:
    if p[AT_KIND] == KIND_CARRIED_RECORDS:
        return load_i64(p + FRAME_HEADER_SIZE + ORIGIN_AT_ORIGINAL_POS)
    return load_i64(p + AT_PHYS_OFFSET)

# Whether one entry stands for all offsets of the visible batch, instead of one unit for each.
cdef inline bint is_run(const FrameHeader* h) noexcept nogil:
    return h.record_count == 0 or <int64_t>h.last_delta + 1 - h.record_count >= RUN_OFFSETS_MIN

cdef void blank_header(FrameHeader* h, int kind) noexcept nogil
cdef void encode_header(const FrameHeader* h, uint8_t* out) noexcept nogil
cdef void decode_header(const uint8_t* p, FrameHeader* h) noexcept nogil
# Checks a whole frame. `available` bytes may be read at `p`, which is log position `pos`.
cdef int check_frame(
    const uint8_t* p, int64_t available, int64_t pos, FrameHeader* h, bint with_batches
) noexcept nogil
# Checks a frame but not its batches. `available` bytes may be read at `p`, which is log position
# `pos`, and `room` bytes are left of the segment. FRAME_BAD_SIZE if `available` is less than
# `head_size`.
cdef int check_head(
    const uint8_t* p, int64_t available, int64_t room, int64_t pos, FrameHeader* h
) noexcept nogil
# Bytes of a frame up to the last one that its CRC covers. REQUIRES: the sizes are not negative.
cdef int64_t head_size(const FrameHeader* h) noexcept nogil
cdef uint32_t frame_crc(const uint8_t* p, const FrameHeader* h) noexcept nogil
cdef int64_t frame_size(int64_t tables, int64_t visible, int64_t held) noexcept nogil
