"""The growing end of the CommitLog: encodes frames and hands out the bytes to write.

 append -> staging buffer + parts -> take -> pwritev (the store) -> taken

Frames are encoded into a staging buffer. The body of a large batch stays in the buffer that the
socket filled and becomes a part of its own, so that only pwritev copies it. The store gets the
parts from `take`, writes them in one pwritev, and confirms the write with `taken`.

A frame never crosses a segment boundary. If it does not fit, `roll` writes the pending parts, ends
the segment with a blank frame and opens the next segment.

Layer 0: no I/O. `prepare_spare` and `roll` belong to the store and are called once per segment.
"""

from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_READ
from libc.stdlib cimport free, realloc
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from _core.bytes.buffer cimport Buf, append as buf_append, extend_zero, release, reserve, shrink
from _core.bytes.crc32c cimport extend
from _core.log.frames cimport FrameHeader, encode_header, frame_size, blank_header
from _core.bytes.layout cimport *
from _core.bytes.octets cimport store_u32

# Up to this size a copy costs less than one more entry of the iovec.
cdef enum:
    COPY_MAX_BYTES = 4096
    # The staged bytes before each body that stays in place, and these two.
    PARTS_PER_FRAME = 4
    # Between two writes: more than the delayed batches of one turn usually take.
    STAGING_KEEP_BYTES = 4 << 20


cdef class LogTail:
    """The end of the log, where frames are appended.

    Attributes:
        pointers: wrote, committed, flushed.
        segment_end: log position at which the current segment ends.
        is_refusing: the disk is fuller than the operator permits: no frame of ROOM_RECORDS.
        full_text: why there is no room, with what to do, for those who are refused.
        epoch: epoch of new frames.
        salt: salt of new frames. It is a random number that clients never see, so that no record of
            theirs can look like a frame of this log.
        roll: function of a frame size that opens the next segment; False if none is available.
        prepare_spare: function that ensures the next segment is allocated; False if the disk is
            full.
        has_spare: whether the next segment is allocated.
        has_held: whether an unwritten frame has a held batch.
        last_pos, last_crc: log position and CRC of the last frame; -1 and 0 if there is none.
        unapplied_pos: log position of a change that is appended but not yet applied to the state in
            memory, -1 for none. It stays set only after an error. Memory and log then differ:
            nothing more may be appended or written, and the process must end.
    """

    def __cinit__(self, Pointers pointers not None, *, int64_t reserve_bytes):
        """Start at `pointers.wrote`. The store calls `enter_segment` before the first frame.

        Args:
            pointers: the log's pointers.
            reserve_bytes: size of the end of each segment that no new record may use while the
                next segment is not allocated. Half of it is for deliveries alone.
        """
        self.pointers = pointers
        self.reserve_bytes = reserve_bytes
        self.full_text = "the disk is full"
        self.last_pos = -1
        self.unapplied_pos = -1
        self.kept = []

    def __dealloc__(self):
        release(&self.staging)
        free(self.parts)

    def enter_segment(self, int64_t end):
        """Append the next frames to a segment that ends at log position `end`."""
        assert end > self.pointers.wrote
        self.segment_end = end

    cdef int keep(self, owner) except -1:
        self.kept.append(owner)
        return 0

    cdef int room_for(self, int64_t size, int room) except -1:
        """Make room for a frame of `size` bytes. Returns 1, or 0 if the disk is full.

        `room` (ROOM_*) says how much of the reserve the frame may use, so that due messages still
        go out when the disk is full, and cancels, commits and deletions still come in.
        """
        cdef int64_t rest = self.segment_end - self.pointers.wrote
        cdef int64_t kept = 0
        if room == ROOM_RECORDS:
            if self.is_refusing:
                return 0
            kept = self.reserve_bytes
        elif room == ROOM_CONTROL:
            kept = self.reserve_bytes // 2
        # The rest after the frame must be empty or hold a blank frame.
        if size <= rest and (size == rest or rest - size >= FRAME_HEADER_SIZE):
            if rest - size >= kept or self.has_spare:
                return 1
            return 1 if self.prepare_spare() else 0
        if not self.roll(size):
            return 0
        # Callers keep a frame at least a header smaller than a segment, so that a blank frame can
        # always fill the rest.
        rest = self.segment_end - self.pointers.wrote
        assert size == rest or rest - size >= FRAME_HEADER_SIZE
        return 1

    def has_room(self, int64_t payload_size, int room):
        """Whether a control frame fits.

        Rolls to the next segment if that is necessary.

        Args:
            payload_size: bytes of the encoded state.
            room: ROOM_*: how much of the reserve it may use.
        """
        cdef int64_t tables_size = payload_size + (-payload_size & (FRAME_ALIGNMENT - 1))
        return self.room_for(frame_size(tables_size, 0, 0), room) == 1

    cdef void _push_part(
        self, const uint8_t* outside, Py_ssize_t offset, Py_ssize_t size
    ) noexcept nogil:
        # REQUIRES: room for a part (`_reserve`).
        self.parts[self.part_count] = Part(outside, offset, size)
        self.part_count += 1

    cdef void _close_staged(self) noexcept nogil:
        # REQUIRES: room for a part (`_reserve`).
        if self.staging.size > self.staged_from:
            self._push_part(NULL, self.staged_from, self.staging.size - self.staged_from)
            self.staged_from = self.staging.size

    cdef int _reserve(self, Py_ssize_t staged_size) except -1 nogil:
        """Reserve `staged_size` staged bytes and the parts of a frame, so that later steps cannot
        fail.
        """
        cdef Part* moved
        reserve(&self.staging, staged_size)
        if self.part_count + PARTS_PER_FRAME > self.part_capacity:
            moved = <Part*>realloc(self.parts, (self.part_capacity * 2 + 64) * sizeof(Part))
            if moved == NULL:
                with gil:
                    raise MemoryError("cannot allocate the list of parts to write")
            self.parts = moved
            self.part_capacity = self.part_capacity * 2 + 64
        return 0

    def begin_epoch(self, int32_t epoch, uint32_t salt):
        """Append the frames that follow in a new epoch. It is higher than any in the log.

        Args:
            epoch: 0 or more.
            salt: of the log, not 0.
        """
        assert epoch > self.epoch  # I5
        self.epoch, self.salt = epoch, salt

    def begin_change(self):
        """Mark the start of a change in memory whose frame follows, or of the log's files alone."""
        assert self.unapplied_pos < 0  # I7
        self.unapplied_pos = self.pointers.wrote

    def end_change(self):
        """Mark the change as applied: memory and log agree again."""
        self.unapplied_pos = -1

    cdef Py_ssize_t append(self, FrameHeader* h, const FrameBody* body) except -1:
        cdef Py_ssize_t start = self.staging.size
        cdef Py_ssize_t patch = body.visible_patch_size
        cdef const uint8_t* rest = body.visible + patch
        cdef Py_ssize_t rest_size = body.visible_size - patch
        cdef int64_t size = frame_size(body.tables_size, body.visible_size, body.held_size)
        cdef Py_ssize_t padding = (
            size - FRAME_HEADER_SIZE - body.tables_size - body.visible_size - body.held_size
        )
        cdef bint stays = body.visible_stays and rest_size > COPY_MAX_BYTES
        cdef bint held_stays = body.held_stays and body.held_size > COPY_MAX_BYTES
        cdef uint8_t* p
        cdef uint32_t crc
        assert size <= self.segment_end - self.pointers.wrote
        assert body.visible_size == 0 or patch >= BATCH_CRC_START
        h.size = <int32_t>size
        h.epoch = self.epoch
        h.position = self.pointers.wrote
        h.flushed = self.pointers.flushed
        h.salt = self.salt
        h.tables_size = body.tables_size
        h.visible_size = body.visible_size
        h.held_size = body.held_size
        # Everything that can fail comes first, so that a frame is staged and counted or neither.
        self._reserve(
            size - (rest_size if stays else 0) - (body.held_size if held_stays else 0)
        )
        if self.unapplied_pos < 0:
            self.unapplied_pos = h.position
        p = self.staging.data + start
        encode_header(h, p)
        memcpy(p + FRAME_HEADER_SIZE, body.tables, body.tables_size)
        memcpy(p + FRAME_HEADER_SIZE + body.tables_size, body.visible_patch, patch)
        crc = extend(extend(0, p, AT_CRC), p + FRAME_HEADER_SIZE, body.tables_size)
        if body.visible_size:
            crc = extend(crc, body.visible_patch, BATCH_CRC_START)
        if body.held_size:
            crc = extend(crc, body.held, BATCH_CRC_START)
        store_u32(p + AT_CRC, crc)
        self.last_pos = h.position
        self.last_crc = crc
        self.staging.size += FRAME_HEADER_SIZE + body.tables_size + patch
        if stays:
            self._close_staged()
            self._push_part(rest, 0, rest_size)
        else:
            buf_append(&self.staging, rest, rest_size)
        if held_stays:
            self._close_staged()
            self._push_part(body.held, 0, body.held_size)
        else:
            buf_append(&self.staging, body.held, body.held_size)
        self.has_held |= body.held_size > 0
        extend_zero(&self.staging, padding)
        self.pointers.wrote += size
        return start

    def append_control(
        self, int kind, *, int topic_id, int64_t store_time_ms, bytes payload not None,
        int flags=0
    ):
        """Append a frame of control state (topic, offset, producer, group, epoch, carry).

        Args:
            kind: KIND_* of `_core.bytes.layout`.
            topic_id: the topic concerned, 0 for none.
            store_time_ms: now, epoch ms.
            payload: the encoded state. With two headers and padding it fits into a segment.
            flags: FRAME_FLAG_*.

        Returns:
            The log position of the frame, or -1 if the disk is full.
        """
        cdef FrameHeader h
        cdef FrameBody body
        cdef Buf tables
        memset(&body, 0, sizeof(body))
        memset(&tables, 0, sizeof(tables))
        blank_header(&h, kind)
        h.topic_id = topic_id
        h.store_time_ms = store_time_ms
        h.flags = <uint16_t>flags
        try:
            buf_append(&tables, <const char*>payload, len(payload))
            extend_zero(&tables, -len(payload) & (FRAME_ALIGNMENT - 1))
            body.tables = tables.data
            body.tables_size = <int32_t>tables.size
            if not self.room_for(frame_size(tables.size, 0, 0), ROOM_DELIVERY):
                return -1
            self.append(&h, &body)
        finally:
            release(&tables)
        return h.position

    def append_blank(self):
        """End the segment: fill the rest of it with a blank frame, unless it is full."""
        cdef FrameHeader h
        cdef uint8_t* p
        cdef int64_t rest = self.segment_end - self.pointers.wrote
        if rest == 0:
            return
        blank_header(&h, KIND_BLANK)
        h.size = <int32_t>rest
        h.epoch = self.epoch
        h.position = self.pointers.wrote
        h.flushed = self.pointers.flushed
        h.salt = self.salt
        self._reserve(FRAME_HEADER_SIZE)
        p = self.staging.data + self.staging.size
        encode_header(&h, p)
        self.last_pos = h.position
        self.last_crc = extend(0, p, AT_CRC)
        store_u32(p + AT_CRC, self.last_crc)
        self.staging.size += FRAME_HEADER_SIZE
        self.pointers.wrote += rest

    def take(self):
        """Return the bytes to write at `pointers.committed`, in order and without a copy.

        The memoryviews are valid until `taken`.
        """
        cdef Py_ssize_t i
        cdef Part* part
        cdef const uint8_t* start
        self._reserve(0)
        self._close_staged()
        result = []
        for i in range(self.part_count):
            part = &self.parts[i]
            start = part.outside if part.outside != NULL else self.staging.data + part.offset
            result.append(PyMemoryView_FromMemory(<char*>start, part.size, PyBUF_READ))
        return result

    def taken(self):
        """Confirm that everything `take` returned is written, and advance `pointers.committed`."""
        self.part_count = 0
        self.staged_from = 0
        self.has_held = False
        self.kept = []
        shrink(&self.staging, STAGING_KEEP_BYTES)
        self.pointers.advance_committed(self.pointers.wrote)

    @property
    def has_pending(self):
        """Whether encoded bytes are not yet written."""
        return self.staging.size > 0 or self.part_count > 0
