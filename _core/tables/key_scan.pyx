"""Keys of records and ids of timers in a piece of the log: rows of an index, or what matches.

A walk is given bytes that begin at a frame, and takes whole frames from them. Nothing in it is done
for each record in Python, and the GIL is released except to unpack a compressed batch.

Layer 0: no I/O.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from _core.bytes.pages import free_all
from _core.bytes.batch cimport ATTRIBUTE_CODEC, ATTRIBUTE_CONTROL, Record, next_record
from _core.bytes.borrowed cimport Borrowed
from _core.bytes.buffer cimport Buf, append, extend_zero, release, reserve
from _core.bytes.layout cimport *
from _core.bytes.octets cimport (
    Cursor, cursor_of, load_i16, load_i32, load_i64, load_u16, load_u32, load_u64, store_u64,
)
from _core.log.frames cimport (
    FRAME_OK, FrameHeader, check_frame, check_head, completed_names, completes, decode_header,
    has_records, is_timer_carry, timer_entries, timers_held,
    original_pos,
)
from _core.tables.delay_headers cimport accepted_ms_of
from _core.tables.key_sort cimport Row, sort_rows
from _core.bytes.siphash cimport siphash

# Where in a frame a hit is.
cpdef enum:
    PLACE_RECORD = 0      # number of a record of the visible batch
    PLACE_TIMER = 1       # number of a timer entry, and of its held record
    PLACE_COMPLETED = 2   # number of a completed entry
    PLACE_CANCEL = 3      # number of a cancel entry

# What a hash is of.
cpdef enum:
    HASH_KEY = 1
    HASH_ID = 2
    HASH_ORIGIN = 3       # of where a carried record or timer was first held, 8 bytes, big-endian

cpdef enum:
    KEY_ROW_SIZE = 16     # u64 hash, i64 position of the frame, both big-endian

cdef enum:
    NOT_WHOLE = -1        # results of `_run` besides bytes needed
    PACKED = -3
    ID_SIZE_MAX = 255

cdef struct Hit:
    int64_t pos
    int32_t place
    int32_t number


cdef inline bint _has_records(const FrameHeader* h) noexcept nogil:
    return h.record_count > 0 and has_records(h.kind)


cdef inline const uint8_t* _visible_of(const FrameHeader* h, const uint8_t* p) noexcept nogil:
    return p + FRAME_HEADER_SIZE + h.tables_size


cdef int64_t _find_number(const Buf* numbers, int32_t wanted) noexcept nogil:
    """Return the place of a number in an ascending array, -1 if it is not there."""
    cdef const int32_t* found = <const int32_t*>numbers.data
    cdef int64_t low = 0, high = numbers.size // 4, middle
    while low < high:
        middle = (low + high) // 2
        if found[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    if low < numbers.size // 4 and found[low] == wanted:
        return low
    return -1


cdef int _put_numbers(Buf* out, numbers) except -1:
    cdef int32_t number
    for number in sorted(numbers):
        append(out, &number, 4)
    return 0


cdef class FrameWalk:
    """Takes the whole frames from pieces of the log. A subclass says what is taken from them.

    Attributes:
        unpacked_failures: batches that could not be unpacked; their records were passed over.
        last_pos, last_crc: position and field crc of the last frame taken, -1 and 0 for none.
    """

    def __cinit__(self, decompress not None, uint32_t salt=0, *args, **kwargs):
        """Take nothing yet.

        Args:
            decompress: function (codec, section) that unpacks records; raises ValueError or a
                RequestError, of which the attribute `message` is a text.
            salt: of the frames of the log; 0 takes any.
        """
        self.decompress = decompress
        self.salt = salt
        self.last_pos = -1

    def walk(self, data, int64_t pos, int64_t limit):
        """Take the frames from a piece of the log, in order.

        Args:
            data: bytes of the log from `pos` on.
            pos: log position at which a frame begins.
            limit: log position at which its segment ends.

        Returns:
            (position, needed): the first frame that was not taken, and the bytes from its begin on
            that are needed to take it. They are 0 if the segment or the walk is at its end, and -1
            if no whole frame is there.
        """
        cdef Borrowed octets = Borrowed(data)
        cdef int64_t at = 0, needed
        cdef FrameHeader h
        while True:
            with nogil:
                needed = self._run(octets.p, octets.size, pos, limit, &at, &h)
            if needed != PACKED:
                return pos + at, needed
            self._take_packed(&h, octets.p + at)
            at += h.size

    def find_frame(self, data, int64_t pos, int64_t limit):
        """Return the first position from `pos` on where a frame may begin, or None.

        Its header has the magic, its own position and the salt of the log; `walk` checks the rest.
        The arguments are those of `walk`, but `pos` may be any multiple of the alignment.
        """
        cdef Borrowed octets = Borrowed(data)
        cdef int64_t at = 0
        cdef FrameHeader h
        with nogil:
            while at + FRAME_HEADER_SIZE <= octets.size:
                if load_u16(octets.p + at) == FRAME_MAGIC:
                    decode_header(octets.p + at, &h)
                    if (
                        h.position == pos + at and (not self.salt or h.salt == self.salt)
                        and FRAME_HEADER_SIZE <= h.size <= limit - h.position
                    ):
                        break
                at += FRAME_ALIGNMENT
        return pos + at if at + FRAME_HEADER_SIZE <= octets.size else None

    cdef int64_t _run(
        self, const uint8_t* p, int64_t size, int64_t pos, int64_t limit, int64_t* at,
        FrameHeader* h
    ) except -2 nogil:
        cdef int64_t here, frame_size
        cdef const uint8_t* frame
        while not self.is_full:
            here = pos + at[0]
            if here >= limit:
                return 0
            if size - at[0] < FRAME_HEADER_SIZE:
                return FRAME_HEADER_SIZE if limit - here >= FRAME_HEADER_SIZE else NOT_WHOLE
            frame = p + at[0]
            frame_size = load_i32(frame + AT_SIZE)
            if (
                load_u16(frame + AT_MAGIC) != FRAME_MAGIC
                or load_i64(frame + AT_PHYS_OFFSET) != here
                or frame_size < FRAME_HEADER_SIZE or frame_size > limit - here
                or (self.salt and load_u32(frame + AT_SALT) != self.salt)
            ):
                return NOT_WHOLE
            # Both decode the header.
            if frame[AT_KIND] == KIND_BLANK:
                if check_head(frame, size - at[0], limit - here, here, h) != FRAME_OK:
                    return NOT_WHOLE
            elif frame_size > size - at[0]:
                return frame_size
            elif check_frame(frame, frame_size, here, h, True) != FRAME_OK:
                return NOT_WHOLE
            self.last_pos = here
            self.last_crc = load_u32(frame + AT_CRC)
            if h.kind != KIND_BLANK and self._take(h, frame) == PACKED:
                return PACKED
            at[0] += h.size
        return 0

    cdef int _take(self, const FrameHeader* h, const uint8_t* p) except -1 nogil:
        """Take what is wanted from a frame; PACKED if its visible batch must be unpacked first."""
        return 0

    cdef int _visible(self, const FrameHeader* h, Cursor* c) except -1 nogil:
        """Take what is wanted from the visible records at `c`."""
        return 0

    cdef int _take_packed(self, const FrameHeader* h, const uint8_t* p) except -1:
        """Unpack the visible batch of a frame, and take what is wanted from its records."""
        cdef const uint8_t* batch = _visible_of(h, p)
        cdef Borrowed unpacked
        cdef Cursor c
        packed = PyMemoryView_FromMemory(
            <char*>batch + BATCH_HEADER_SIZE, h.visible_size - BATCH_HEADER_SIZE, PyBUF_READ
        )
        codec = load_i16(batch + BATCH_AT_ATTRIBUTES) & ATTRIBUTE_CODEC
        try:
            plain = self.decompress(codec, packed)
        except Exception as error:
            if not isinstance(error, ValueError) and not hasattr(error, "message"):
                raise
            self.unpacked_failures += 1
            return 0
        unpacked = Borrowed(plain)
        c = cursor_of(unpacked.p, unpacked.size)
        try:
            with nogil:
                self._visible(h, &c)
        finally:
            unpacked = None
            parts, plain = [plain], None
            free_all(parts)
        return 0


cdef inline int _open_visible(const FrameHeader* h, const uint8_t* p, Cursor* c) noexcept nogil:
    """Point `c` at the visible records. Returns 0 if there are none to take, PACKED or 1."""
    cdef const uint8_t* batch = _visible_of(h, p)
    cdef int attributes
    if not _has_records(h):
        return 0
    attributes = load_i16(batch + BATCH_AT_ATTRIBUTES)
    if attributes & ATTRIBUTE_CONTROL:
        return 0
    if attributes & ATTRIBUTE_CODEC:
        return PACKED
    c[0] = cursor_of(batch + BATCH_HEADER_SIZE, h.visible_size - BATCH_HEADER_SIZE)
    return 1


cdef inline Cursor _held_of(const FrameHeader* h, const uint8_t* p) noexcept nogil:
    return cursor_of(
        _visible_of(h, p) + h.visible_size + BATCH_HEADER_SIZE, h.held_size - BATCH_HEADER_SIZE
    )


cdef class KeyRows(FrameWalk):
    """Gathers a row for each key of a record and each id of a timer: its hash and the position."""

    def __cinit__(self, decompress, uint32_t salt, bytes secret not None, left_out=()):
        """Gather nothing yet.

        Args:
            decompress, salt: as for `FrameWalk`.
            secret: the 16 bytes that key the hash.
            left_out: ids of topics whose frames have no rows.

        Raises:
            ValueError: the secret has another size.
        """
        _read_secret(secret, self.secret)
        _put_numbers(&self.left_out, left_out)
        if self.left_out.size:
            extend_zero(&self.met, self.left_out.size // 4)
        self.first_stored = INT64_MAX
        self.last_stored = INT64_MIN

    def __dealloc__(self):
        release(&self.rows)
        release(&self.sorted)
        release(&self.left_out)
        release(&self.met)

    @property
    def row_count(self):
        """The number of rows gathered; a row that repeats counts again."""
        return self.rows.size // sizeof(Row)

    @property
    def stored(self):
        """The lowest and highest store time of the frames taken; None if there was none.

        Timers of carry frames count with the time at which they were accepted.
        """
        if self.first_stored > self.last_stored:
            return None
        return self.first_stored, self.last_stored

    @property
    def topics_left_out(self):
        """The ids of topics that were left out and of which a frame was taken, ascending."""
        cdef int64_t i
        return tuple([
            (<const int32_t*>self.left_out.data)[i]
            for i in range(self.left_out.size // 4) if self.met.data[i]
        ])

    def take(self):
        """Return the rows, ascending and without repetition, and forget them."""
        cdef int64_t count = self.rows.size // sizeof(Row), i, kept = 0
        cdef const Row* rows
        cdef uint8_t* out
        with nogil:
            self.sorted.size = 0
            reserve(&self.sorted, self.rows.size)
            rows = sort_rows(<Row*>self.rows.data, <Row*>self.sorted.data, count)
            # The other buffer is free: the rows of the file replace what it holds.
            out = self.rows.data if <const uint8_t*>rows == self.sorted.data else self.sorted.data
            for i in range(count):
                if i and rows[i].hash == rows[i - 1].hash and rows[i].pos == rows[i - 1].pos:
                    continue
                store_u64(out + kept, rows[i].hash)
                store_u64(out + kept + 8, <uint64_t>rows[i].pos)
                kept += KEY_ROW_SIZE
        taken = PyBytes_FromStringAndSize(<const char*>out, kept)
        self.rows.size = 0
        return taken

    cdef int64_t _place_of(self, int32_t topic_id) noexcept nogil:
        return _find_number(&self.left_out, topic_id) if self.left_out.size else -1

    cdef int _put(self, int kind, const uint8_t* p, int64_t size, int64_t pos) except -1 nogil:
        cdef Row row
        row.hash = _hash(self.secret, kind, p, size)
        row.pos = pos
        return append(&self.rows, &row, sizeof(Row))

    cdef int _take(self, const FrameHeader* h, const uint8_t* p) except -1 nogil:
        cdef const uint8_t* entry
        cdef const uint8_t* name
        cdef int64_t place
        cdef Cursor c
        cdef Record r
        cdef int64_t origin = -1
        cdef int opened
        cdef int32_t i
        self.first_stored = min(self.first_stored, h.store_time_ms)
        self.last_stored = max(self.last_stored, h.store_time_ms)
        if is_timer_carry(h):
            self._note_accepted(h, p)
        if not (timers_held(h) or h.kind == KIND_ACCEPT or completes(h) or _has_records(h)):
            return 0
        place = self._place_of(h.topic_id)
        if place >= 0:
            self.met.data[place] = 1
            return 0
        if timers_held(h):
            c = _held_of(h, p)
            entry = timer_entries(h, p)
            for i in range(timers_held(h)):
                if h.kind == KIND_CARRY and load_i64(entry + TIMER_AT_ACCEPT_POS) != origin:
                    origin = load_i64(entry + TIMER_AT_ACCEPT_POS)
                    self._put_origin(origin, h.position)
                if entry[TIMER_AT_ID_SIZE]:
                    name = p + load_u32(entry + TIMER_AT_ID_POS)
                    self._put(HASH_ID, name, entry[TIMER_AT_ID_SIZE], h.position)
                if next_record(&c, &r) and r.key.size >= 0:
                    self._put(HASH_KEY, r.key.data, r.key.size, h.position)
                entry += TIMER_ENTRY_SIZE
        if h.kind == KIND_ACCEPT:
            entry = p + FRAME_HEADER_SIZE + <int64_t>h.timer_count * TIMER_ENTRY_SIZE
            for i in range(h.cancel_count):
                name = p + load_u32(entry + CANCEL_AT_ID_POS)
                self._put(HASH_ID, name, entry[CANCEL_AT_ID_SIZE], h.position)
                entry += CANCEL_ENTRY_SIZE
        elif completes(h):
            entry = p + FRAME_HEADER_SIZE
            name = completed_names(h, p)
            for i in range(h.timer_count):
                if entry[COMPLETED_AT_ID_SIZE]:
                    self._put(HASH_ID, name, entry[COMPLETED_AT_ID_SIZE], h.position)
                    name += entry[COMPLETED_AT_ID_SIZE]
                entry += COMPLETED_ENTRY_SIZE
        elif h.kind == KIND_CARRIED_RECORDS:
            self._put_origin(original_pos(p), h.position)
        opened = _open_visible(h, p, &c)
        return self._visible(h, &c) if opened == 1 else opened

    cdef int _put_origin(self, int64_t origin, int64_t pos) except -1 nogil:
        cdef uint8_t name[8]
        store_u64(name, <uint64_t>origin)
        return self._put(HASH_ORIGIN, name, 8, pos)

    cdef int _note_accepted(self, const FrameHeader* h, const uint8_t* p) except -1 nogil:
        """Note when the timers of a carry frame were accepted."""
        cdef Cursor c = _held_of(h, p)
        cdef int64_t accepted_ms
        cdef Record r
        while next_record(&c, &r):
            accepted_ms = accepted_ms_of(&r)
            if accepted_ms >= 0:
                self.first_stored = min(self.first_stored, accepted_ms)
        return 0

    cdef int _visible(self, const FrameHeader* h, Cursor* c) except -1 nogil:
        cdef Record r
        cdef int32_t i
        for i in range(h.record_count):
            if not next_record(c, &r):
                break
            if r.key.size >= 0:
                self._put(HASH_KEY, r.key.data, r.key.size, h.position)
        return 0


cdef class KeyMatch(FrameWalk):
    """Finds the records and timers with one key or one id, or all of them."""

    def __cinit__(
        self, decompress, uint32_t salt, *, bytes key=None, bytes user_id=None, topics=None,
        int32_t partition=-1, int64_t offset=-1, int64_t origin=-1, stored=(None, None),
        int64_t hit_max=INT64_MAX
    ):
        """Find nothing yet.

        Args:
            decompress, salt: as for `FrameWalk`.
            key: that of the records; None takes any, unless `user_id` is given.
            user_id: that of the timers, of 1 to 255 bytes; finds their completions as well.
            topics: ids of the topics wanted, None for all.
            partition: the one wanted, -1 for all.
            offset: that of a visible record; -1 takes any.
            origin: where carried records and timers were first held; -1 takes any, others as well.
            stored: (from, to) store time of the frame, or when a carried timer was accepted, epoch
                ms; None for no bound.
            hit_max: the walk ends with the first frame that reaches this number of hits.
        """
        low, high = stored
        self.by_key = key is not None
        self.by_id = user_id is not None
        self.wanted = key if key is not None else user_id if user_id is not None else b""
        self.name = <const uint8_t*><const char*>self.wanted
        self.name_size = len(self.wanted)
        self.takes_all = topics is None
        if topics is not None:
            _put_numbers(&self.taken, topics)
        self.partition = partition
        self.offset = offset
        self.origin = origin
        self.stored_from = INT64_MIN if low is None else low
        self.stored_to = INT64_MAX if high is None else high
        self.hit_max = hit_max

    def __dealloc__(self):
        release(&self.hits)
        release(&self.taken)

    @property
    def hit_count(self):
        """The number of hits that were not taken yet."""
        return self.hits.size // sizeof(Hit)

    def take(self):
        """Return (position of the frame, PLACE_*, number) of each hit, and forget them."""
        cdef const Hit* hits = <const Hit*>self.hits.data
        cdef int64_t i
        found = [
            (hits[i].pos, hits[i].place, hits[i].number)
            for i in range(self.hits.size // <int64_t>sizeof(Hit))
        ]
        self.hits.size = 0
        self.is_full = False
        return found

    cdef int _hit(self, int64_t pos, int place, int number) except -1 nogil:
        cdef Hit hit
        hit.pos = pos
        hit.place = place
        hit.number = number
        append(&self.hits, &hit, sizeof(Hit))
        self.is_full = self.hits.size // <int64_t>sizeof(Hit) >= self.hit_max
        return 0

    cdef bint _is_record(self, const Record* r) noexcept nogil:
        if not self.by_key:
            return not self.by_id
        return r.key.size == self.name_size and memcmp(r.key.data, self.name, r.key.size) == 0

    cdef bint _is_id(self, const uint8_t* p, int size) noexcept nogil:
        return self.by_id and size == self.name_size and memcmp(p, self.name, size) == 0

    cdef int _take(self, const FrameHeader* h, const uint8_t* p) except -1 nogil:
        cdef const uint8_t* entry = p + FRAME_HEADER_SIZE
        cdef const uint8_t* name
        cdef Cursor c
        cdef int opened
        cdef int32_t i
        if not is_timer_carry(h) and not self._is_in_time(h.store_time_ms):
            return 0
        if self.partition >= 0 and h.partition != self.partition:
            return 0
        if not self.takes_all and _find_number(&self.taken, h.topic_id) < 0:
            return 0
        if self.offset >= 0:
            if not _has_records(h) or not 0 <= self.offset - h.base_offset <= h.last_delta:
                return 0
        elif self.origin >= 0 and not is_timer_carry(h):
            if h.kind != KIND_CARRIED_RECORDS or original_pos(p) != self.origin:
                return 0
        elif h.kind == KIND_ACCEPT or is_timer_carry(h):
            self._take_timers(h, p)
            entry = p + FRAME_HEADER_SIZE + <int64_t>h.timer_count * TIMER_ENTRY_SIZE
            for i in range(h.cancel_count):
                name = p + load_u32(entry + CANCEL_AT_ID_POS)
                if self._is_id(name, entry[CANCEL_AT_ID_SIZE]):
                    self._hit(h.position, PLACE_CANCEL, i)
                entry += CANCEL_ENTRY_SIZE
        elif completes(h):
            self._take_timers(h, p)
            name = completed_names(h, p)
            for i in range(h.timer_count):
                if self._is_id(name, entry[COMPLETED_AT_ID_SIZE]):
                    self._hit(h.position, PLACE_COMPLETED, i)
                name += entry[COMPLETED_AT_ID_SIZE]
                entry += COMPLETED_ENTRY_SIZE
        if self.by_id:
            return 0
        opened = _open_visible(h, p, &c)
        return self._visible(h, &c) if opened == 1 else opened

    cdef bint _is_in_time(self, int64_t stored_ms) noexcept nogil:
        return self.stored_from <= stored_ms < self.stored_to

    cdef int _take_timers(self, const FrameHeader* h, const uint8_t* p) except -1 nogil:
        """Take the timers wanted of a frame."""
        cdef const uint8_t* entry = timer_entries(h, p)
        cdef const uint8_t* name
        cdef int64_t accepted_ms
        cdef Cursor c
        cdef Record r
        cdef int32_t i
        if timers_held(h) == 0:
            return 0
        c = _held_of(h, p)
        for i in range(timers_held(h)):
            if not next_record(&c, &r):
                break
            name = p + load_u32(entry + TIMER_AT_ID_POS)
            accepted_ms = accepted_ms_of(&r) if h.kind == KIND_CARRY else -1
            if (
                (self._is_record(&r) or self._is_id(name, entry[TIMER_AT_ID_SIZE]))
                and self._is_in_time(accepted_ms if accepted_ms >= 0 else h.store_time_ms)
                and (self.origin < 0 or load_i64(entry + TIMER_AT_ACCEPT_POS) == self.origin)
            ):
                self._hit(h.position, PLACE_TIMER, i)
            entry += TIMER_ENTRY_SIZE
        return 0

    cdef int _visible(self, const FrameHeader* h, Cursor* c) except -1 nogil:
        cdef Record r
        cdef int32_t i
        for i in range(h.record_count):
            if not next_record(c, &r):
                break
            if self.offset >= 0 and h.base_offset + r.offset_delta != self.offset:
                continue
            if self._is_record(&r):
                self._hit(h.position, PLACE_RECORD, i)
        return 0


cdef int _read_secret(bytes secret, uint64_t* words) except -1:
    if len(secret) != 16:
        raise ValueError(f"the secret has 16 bytes, got {len(secret)}")
    words[0] = load_u64(<const char*>secret)
    words[1] = load_u64(<const char*>secret + 8)
    return 0


cdef inline uint64_t _hash(
    const uint64_t* secret, int kind, const uint8_t* p, int64_t size
) noexcept nogil:
    """Hash a key or an id; the two never share a hash by construction of the key."""
    cdef uint64_t words[2]
    cdef uint64_t keyed[2]
    keyed[0] = secret[0]
    keyed[1] = secret[1] ^ <uint64_t>kind
    siphash(keyed, p, size, words)
    return words[0]


def hash_of(bytes secret not None, int kind, bytes name not None):
    """Return the hash of a key or of an id, a 64-bit number.

    Args:
        secret: as for `KeyRows`.
        kind: HASH_KEY, HASH_ID or HASH_ORIGIN.
        name: the key, the id or the position.

    Raises:
        ValueError: the secret has another size.
    """
    cdef uint64_t words[2]
    _read_secret(secret, words)
    return _hash(words, kind, <const uint8_t*><const char*>name, len(name))
