from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from _core.bytes.buffer cimport Buf
from _core.log.frames cimport FrameHeader
from _core.log.pointers cimport Pointers

# A run of bytes to write. It is staged (`offset` into the staging buffer), or outside (in a buffer
# of the caller that lives until `taken`).
cdef struct Part:
    const uint8_t* outside
    Py_ssize_t offset
    Py_ssize_t size

# The parts of a frame. The `visible_patch` bytes replace the start of the visible batch.
cdef struct FrameBody:
    const uint8_t* tables
    int32_t tables_size
    const uint8_t* visible
    int32_t visible_size
    const uint8_t* visible_patch
    int32_t visible_patch_size
    bint visible_stays        # the visible bytes stay in place until `taken`, so no copy is needed
    const uint8_t* held
    int32_t held_size
    bint held_stays           # the same of the held bytes: see `LogTail.keep`

# How deep a frame may reach into the reserve at the end of the last segment.
cpdef enum:
    ROOM_RECORDS = 0          # not at all, and not while writes are refused
    ROOM_CONTROL = 1          # its first half: cancels, committed offsets, groups, deletions
    ROOM_DELIVERY = 2         # all of it

cdef class LogTail:
    cdef readonly Pointers pointers
    cdef readonly int64_t segment_end
    cdef readonly int64_t reserve_bytes
    cdef public bint is_refusing  # no frame of new records, whatever room there is
    cdef public str full_text     # why there is no room, for clients
    cdef readonly int32_t epoch
    cdef readonly uint32_t salt
    cdef public object roll
    cdef public object prepare_spare
    cdef public bint has_spare
    cdef readonly bint has_held   # an unwritten frame has a held batch
    cdef public int64_t last_pos
    cdef public uint32_t last_crc
    cdef readonly int64_t unapplied_pos
    cdef Buf staging
    cdef Part* parts
    cdef Py_ssize_t part_count
    cdef Py_ssize_t part_capacity
    cdef Py_ssize_t staged_from   # start of the staged part that is still growing
    cdef list kept                # owners of bytes that stay in place
    # Keeps the owner of bytes outside until they are written.
    cdef int keep(self, owner) except -1
    cdef int room_for(self, int64_t size, int room) except -1
    cdef void _push_part(
        self, const uint8_t* outside, Py_ssize_t offset, Py_ssize_t size
    ) noexcept nogil
    cdef void _close_staged(self) noexcept nogil
    cdef int _reserve(self, Py_ssize_t staged_size) except -1 nogil
    # Appends a whole frame, or raises MemoryError and appends nothing. Returns the offset of its
    # header and tables in the staging buffer. The caller applies the frame to the state in memory,
    # then sets unapplied_pos to -1.
    cdef Py_ssize_t append(self, FrameHeader* h, const FrameBody* body) except -1
