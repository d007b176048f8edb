"""The carry path: appends visible records of the first segments again, before these are freed.

 frame in a Block -> still the place of its offsets? -> frame of carried records -> LogWriter

It walks frames in the order of the log, so each partition's records keep their order. A frame is
left where it is if its topic is deleted, if its records were deleted or have expired, or if they
were carried before and a later frame has them.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

from _core.bytes.layout cimport *
from _core.bytes.octets cimport store_u64
from _core.log.frames cimport (
    FrameHeader, blank_header, decode_header, frame_size, has_records, original_pos,
)
from _core.log.tail cimport ROOM_CONTROL, FrameBody
from _core.log.view cimport Block
from _core.queue.carried_parts cimport CarriedPart
from _core.queue.partition cimport Partition, Topic
from _core.state.writer cimport LogWriter


cdef enum:
    # What a frame costs besides its bytes: as much as copying so many.
    FRAME_COST_BYTES = 1024


cdef bint _is_place(const FrameHeader* h, Partition partition) noexcept:
    """Whether a frame is where its records are now. If that is not certain, it is."""
    cdef const CarriedPart* part = partition.carried.find(h.base_offset)
    if part == NULL:
        return True
    # A frame of carried records is older than the part if it lies below all of the part.
    return h.kind == KIND_CARRIED_RECORDS and part.place <= h.position


cdef class CarryPath:
    """Carries what is still needed of frames that the caller has read and checked.

    Attributes:
        is_full: the log had no room for the last frame; nothing more was carried.
        is_refused: the offsets of the last frame cannot be moved: other frames contradict it.
        carried_bytes: size of the frames appended since the start.
        moved_count: about how many saved units are wrong since `take_touched`.
    """

    def __cinit__(self, LogWriter writer not None):
        """Carry to the end of the log that `writer` writes."""
        self.writer = writer
        self.touched = {}

    def carry(
        self, Block block not None, int64_t pos, *, int64_t stop, int64_t bytes_max,
        int frames_max, int64_t now_ms
    ):
        """Carry the records of the frames from a log position on, within bounds.

        Args:
            block: holds whole frames.
            pos: where one of them begins, or the end of the block.
            stop: carry nothing from this log position on.
            bytes_max: end once this much was appended; a frame counts a KiB more than it has.
            frames_max: end after so many frames.
            now_ms: epoch ms.

        Returns:
            The log position after the last frame that was handled.
        """
        cdef FrameHeader h
        cdef int64_t end = min(stop, block.pos + block.size)
        cdef int64_t before = self.carried_bytes
        cdef const uint8_t* frame
        cdef Partition partition
        assert block.pos <= pos
        self.is_full = self.is_refused = False
        while pos < end and frames_max > 0 and self.carried_bytes - before < bytes_max:
            frame = block.data + (pos - block.pos)
            decode_header(frame, &h)
            if has_records(h.kind) and h.visible_size:
                partition = self._owner(&h)
                if partition is not None and _is_place(&h, partition):
                    if not self._append(partition, &h, frame, now_ms):
                        break
                    bytes_max -= FRAME_COST_BYTES
            pos += h.size
            frames_max -= 1
        return pos

    cdef Partition _owner(self, const FrameHeader* h):
        """The partition that keeps records of a frame; None if none does."""
        cdef Topic topic = <Topic>self.writer.projections.topics_by_id.get(h.topic_id)
        cdef Partition partition
        if topic is None or not 0 <= h.partition < len(topic.partitions):
            return None
        partition = <Partition>topic.partitions[h.partition]
        if not partition.start_offset <= h.base_offset + h.last_delta < partition.next_offset:
            return None
        return partition

    cdef bint _append(
        self, Partition partition, const FrameHeader* h, const uint8_t* frame, int64_t now_ms
    ) except -1:
        """Append a frame of carried records; False if it cannot."""
        cdef int64_t before = partition.carried_pos
        cdef uint8_t origin[CARRIED_ORIGIN_SIZE]
        cdef FrameHeader new
        cdef FrameBody body
        cdef int64_t size = frame_size(CARRIED_ORIGIN_SIZE, h.visible_size, 0)
        if not self.writer.prepare(partition.topic, size, ROOM_CONTROL, now_ms):
            self.is_full = True
            return False
        blank_header(&new, KIND_CARRIED_RECORDS)
        new.store_time_ms = h.store_time_ms
        new.base_offset = h.base_offset
        new.last_delta = h.last_delta
        new.record_count = h.record_count
        new.min_timestamp = h.min_timestamp
        new.max_timestamp = h.max_timestamp
        new.running_max = h.running_max
        new.tags = h.tags
        new.flags = h.flags & FRAME_FLAG_MIXED_TAGS
        store_u64(origin + ORIGIN_AT_ORIGINAL_POS, original_pos(frame))
        store_u64(origin + ORIGIN_AT_CARRY_TIME, now_ms)
        memset(&body, 0, sizeof(body))
        body.tables = origin
        body.tables_size = CARRIED_ORIGIN_SIZE
        body.visible = body.visible_patch = frame + FRAME_HEADER_SIZE + h.tables_size
        body.visible_size = h.visible_size
        body.visible_patch_size = BATCH_HEADER_SIZE
        self.writer.append(partition, &new, &body)
        self.carried_bytes += size
        if partition.moved.count:
            self.moved_count += 1
            self.touched[partition.handle] = partition
        self.is_refused = partition.carried_pos == before
        return not self.is_refused

    def take_touched(self):
        """Return the partitions whose saved units became wrong since the last call."""
        touched = list(self.touched.values())
        self.touched = {}
        self.moved_count = 0
        return touched
