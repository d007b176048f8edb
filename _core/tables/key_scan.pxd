from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from _core.bytes.batch cimport Record
from _core.bytes.buffer cimport Buf
from _core.bytes.octets cimport Cursor
from _core.log.frames cimport FrameHeader

cdef class FrameWalk:
    cdef object decompress
    cdef uint32_t salt
    cdef bint is_full                 # take no more frames
    cdef readonly int64_t unpacked_failures
    cdef readonly int64_t last_pos
    cdef readonly uint32_t last_crc
    cdef int64_t _run(
        self, const uint8_t* p, int64_t size, int64_t pos, int64_t limit, int64_t* at,
        FrameHeader* h
    ) except -2 nogil
    cdef int _take(self, const FrameHeader* h, const uint8_t* p) except -1 nogil
    cdef int _visible(self, const FrameHeader* h, Cursor* c) except -1 nogil
    cdef int _take_packed(self, const FrameHeader* h, const uint8_t* p) except -1


cdef class KeyRows(FrameWalk):
    cdef uint64_t secret[2]
    cdef Buf rows
    cdef Buf sorted
    cdef Buf left_out                 # topic ids as int32_t, ascending
    cdef Buf met                      # a byte for each of them: whether a frame of it was met
    cdef int64_t first_stored
    cdef int64_t last_stored
    cdef int _put(self, int kind, const uint8_t* p, int64_t size, int64_t pos) except -1 nogil
    cdef int64_t _place_of(self, int32_t topic_id) noexcept nogil
    cdef int _note_accepted(self, const FrameHeader* h, const uint8_t* p) except -1 nogil
    cdef int _put_origin(self, int64_t origin, int64_t pos) except -1 nogil


cdef class KeyMatch(FrameWalk):
    cdef bytes wanted
    cdef const uint8_t* name
    cdef int64_t name_size
    cdef bint by_key
    cdef bint by_id
    cdef object topics
    cdef int32_t partition
    cdef int64_t offset
    cdef int64_t origin
    cdef int64_t stored_from
    cdef int64_t stored_to
    cdef int64_t hit_max
    cdef Buf hits
    cdef Buf taken                    # topic ids as int32_t, ascending
    cdef bint takes_all
    cdef int _hit(self, int64_t pos, int place, int number) except -1 nogil
    cdef int _take_timers(self, const FrameHeader* h, const uint8_t* p) except -1 nogil
    cdef bint _is_in_time(self, int64_t stored_ms) noexcept nogil
    cdef bint _is_record(self, const Record* r) noexcept nogil
    cdef bint _is_id(self, const uint8_t* p, int size) noexcept nogil
