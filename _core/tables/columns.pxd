# Columns in the memory layout of Apache Arrow: a validity bitmap, offsets, data. Integers are in
# the byte order of the machine, as Arrow has them.
# Source: "Arrow Columnar Format", the chapter on the physical memory layout.

from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.buffer cimport Buf, append, reserve

cdef struct ColumnData:
    int64_t length
    int64_t null_count
    Buf validity              # empty while there are no nulls
    Buf offsets               # of variable-size values and of lists
    Buf data                  # the values; empty in a list


cdef class Memory:
    cdef Buf buf


cdef tuple take_column(ColumnData* c)
cdef void release_column(ColumnData* c) noexcept nogil
cdef int _put_bit(ColumnData* c, bint is_set) except -1 nogil


# Starts the bitmap at the first null: most columns have none.
cdef inline int _note_validity(ColumnData* c, bint is_valid) except -1 nogil:
    if c.null_count or not is_valid:
        _put_bit(c, is_valid)
    c.length += 1
    return 0


cdef inline int put_i64(ColumnData* c, int64_t value) except -1 nogil:
    (<int64_t*>reserve(&c.data, 8))[0] = value
    c.data.size += 8
    return _note_validity(c, True)


cdef inline int put_i32(ColumnData* c, int32_t value) except -1 nogil:
    (<int32_t*>reserve(&c.data, 4))[0] = value
    c.data.size += 4
    return _note_validity(c, True)


cdef inline int null_i64(ColumnData* c) except -1 nogil:
    (<int64_t*>reserve(&c.data, 8))[0] = 0
    c.data.size += 8
    return _note_validity(c, False)


# Appends the end of the value or list that has been appended last.
cdef inline int put_end(ColumnData* c, int64_t end) except -1 nogil:
    cdef int32_t* offsets = <int32_t*>reserve(&c.offsets, 8)
    if c.offsets.size == 0:
        offsets[0] = 0
        offsets += 1
        c.offsets.size = 4
    offsets[0] = <int32_t>end
    c.offsets.size += 4
    return 0


# Appends a value of `size` bytes; -1 is null.
cdef inline int put_octets(ColumnData* c, const uint8_t* p, int64_t size) except -1 nogil:
    if size > 0:
        append(&c.data, p, size)
    put_end(c, c.data.size)
    return _note_validity(c, size >= 0)


# Repeats a number, as the columns of a frame's own fields do.
cdef inline int repeat_i64(ColumnData* c, int64_t value, int64_t count) except -1 nogil:
    cdef int64_t i
    for i in range(count):
        put_i64(c, value)
    return 0


cdef inline int repeat_i32(ColumnData* c, int32_t value, int64_t count) except -1 nogil:
    cdef int64_t i
    for i in range(count):
        put_i32(c, value)
    return 0


cdef inline int repeat_octets(
    ColumnData* c, const uint8_t* p, int64_t size, int64_t count
) except -1 nogil:
    cdef int64_t i
    for i in range(count):
        put_octets(c, p, size)
    return 0
