# Columns in the memory layout of Apache Arrow: a validity bitmap, offsets, data. Integers are in
# the byte order of the machine, as Arrow has them.
# Source: "Arrow Columnar Format", the chapter on the physical memory layout.

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from _core.bytes.buffer cimport Buf, reserve

cdef struct ColumnData:
    int64_t length
    int64_t null_count
    Buf validity              # empty while there are no nulls
    Buf offsets               # of variable-size values and of lists
    Buf data                  # the values; empty in a list


cdef enum:
    SPARES_MAX = 64      # columns
    SPARES_DEPTH = 12    # of each


cdef class Spares:
    cdef Buf bufs[SPARES_MAX][SPARES_DEPTH]
    cdef int counts[SPARES_MAX]
    cdef int give(self, int place, Buf* buf) except -1
    cdef int keep(self, int place, Buf* buf) except -1


cdef class Memory:
    cdef Buf buf
    cdef Spares spares
    cdef int place


cdef tuple take_column(ColumnData* c, Spares spares, int place)
cdef void release_column(ColumnData* c) noexcept nogil
cdef void _begin_validity(ColumnData* c) noexcept nogil


# Raises ValueError: Arrow's offsets have 32 bits.
cdef int refuse_size() except -1


# Makes room for `rows` values, which together have up to `octets` bytes if they are octets. The
# functions below that put a value REQUIRE that room. Raises ValueError if an offset would overflow.
cdef inline int make_room(ColumnData* c, int64_t rows, int64_t octets) except -1 nogil:
    if octets and octets > INT32_MAX - c.data.size:
        with gil:
            refuse_size()
    reserve(&c.offsets, 4 * (rows + 1))
    reserve(&c.data, 8 * rows + octets)
    reserve(&c.validity, (c.length + rows) // 8 + 1)
    return 0


cdef inline void _put_bit(ColumnData* c, bint is_set) noexcept nogil:
    cdef uint64_t i = <uint64_t>c.length
    if c.null_count == 0:
        _begin_validity(c)
    if i & 7 == 0:
        c.validity.data[i >> 3] = 0
        c.validity.size += 1
    c.validity.data[i >> 3] |= <uint8_t>(is_set << (i & 7))
    c.null_count += not is_set


# Starts the bitmap at the first null: most columns have none.
cdef inline void note_validity(ColumnData* c, bint is_valid) noexcept nogil:
    if c.null_count or not is_valid:
        _put_bit(c, is_valid)
    c.length += 1


# As `note_validity`, for as many values.
cdef inline void note_valid(ColumnData* c, int64_t count) noexcept nogil:
    cdef int64_t i
    if c.null_count == 0:
        c.length += count
        return
    for i in range(count):
        note_validity(c, True)


# As `note_validity` of as many nulls. REQUIRES: count > 0.
cdef inline void note_nulls(ColumnData* c, int64_t count) noexcept nogil:
    cdef int64_t size = (c.length + count + 7) // 8
    if c.null_count == 0:
        _begin_validity(c)
    # The bits of the last byte so far that are behind its values are clear.
    memset(c.validity.data + c.validity.size, 0, size - c.validity.size)
    c.validity.size = size
    c.null_count += count
    c.length += count


cdef inline void put_i64(ColumnData* c, int64_t value) noexcept nogil:
    (<int64_t*>(c.data.data + c.data.size))[0] = value
    c.data.size += 8
    note_validity(c, True)


# Overwrites the value that has been appended last.
cdef inline void replace_i64(ColumnData* c, int64_t value) noexcept nogil:
    (<int64_t*>(c.data.data + c.data.size - 8))[0] = value


cdef inline void put_i32(ColumnData* c, int32_t value) noexcept nogil:
    (<int32_t*>(c.data.data + c.data.size))[0] = value
    c.data.size += 4
    note_validity(c, True)


cdef inline void null_i64(ColumnData* c) noexcept nogil:
    (<int64_t*>(c.data.data + c.data.size))[0] = 0
    c.data.size += 8
    note_validity(c, False)


# Puts as many values, which the caller writes to the place returned.
cdef inline int64_t* room_i64s(ColumnData* c, int64_t count) noexcept nogil:
    cdef int64_t* data = <int64_t*>(c.data.data + c.data.size)
    c.data.size += 8 * count
    note_valid(c, count)
    return data


# Puts where the first value begins, if there is none so far.
cdef inline void put_first_end(ColumnData* c) noexcept nogil:
    if c.offsets.size == 0:
        (<int32_t*>c.offsets.data)[0] = 0
        c.offsets.size = 4


# Appends the end of the value or list that has been appended last.
cdef inline void put_end(ColumnData* c, int64_t end) noexcept nogil:
    put_first_end(c)
    (<int32_t*>(c.offsets.data + c.offsets.size))[0] = <int32_t>end
    c.offsets.size += 4


# Appends a value of `size` bytes; -1 is null.
cdef inline void put_octets(ColumnData* c, const uint8_t* p, int64_t size) noexcept nogil:
    if size > 0:
        memcpy(c.data.data + c.data.size, p, size)
        c.data.size += size
    put_end(c, c.data.size)
    note_validity(c, size >= 0)


# Repeats a value, as the columns of a frame's own fields do.
cdef inline void repeat_i64(ColumnData* c, int64_t value, int64_t count) noexcept nogil:
    cdef int64_t* p = <int64_t*>(c.data.data + c.data.size)
    cdef int64_t i
    for i in range(count):
        p[i] = value
    c.data.size += 8 * count
    note_valid(c, count)


cdef inline void repeat_i32(ColumnData* c, int32_t value, int64_t count) noexcept nogil:
    cdef int32_t* p = <int32_t*>(c.data.data + c.data.size)
    cdef int64_t i
    for i in range(count):
        p[i] = value
    c.data.size += 4 * count
    note_valid(c, count)


cdef inline int repeat_octets(
    ColumnData* c, const uint8_t* p, int64_t size, int64_t count
) except -1 nogil:
    cdef int64_t i, done, end
    cdef uint8_t* data
    cdef int32_t* ends
    if size <= 0:
        for i in range(count):
            put_octets(c, p, size)
        return 0
    if count <= 0:
        return 0
    if count > (INT32_MAX - c.data.size) // size:
        with gil:
            refuse_size()
    data = reserve(&c.data, size * count)
    memcpy(data, p, size)
    done = size
    while done < size * count:    # twice as many with each copy
        end = min(done, size * count - done)
        memcpy(data + done, data, end)
        done += end
    put_first_end(c)
    ends = <int32_t*>(c.offsets.data + c.offsets.size)
    for i in range(count):
        ends[i] = <int32_t>(c.data.size + (i + 1) * size)
    c.offsets.size += 4 * count
    c.data.size += size * count
    note_valid(c, count)
    return 0
