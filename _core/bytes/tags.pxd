"""Tags: the code of a record's `tags` header, and the summary that a frame header has of them.

The rules are in docs/FORMAT.md, "Tags". The code of a tag is Java's String.hashCode, as RocketMQ
computes it, so that RocketMQ's tools find records by it.

Layer 0: no I/O. Header only: these functions are compiled into the modules that cimport them.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcmp

from _core.bytes.batch cimport Slice, next_header
from _core.bytes.layout cimport FRAME_FLAG_MIXED_TAGS
from _core.bytes.octets cimport Cursor, cursor_of, take, take_varint

cdef enum:
    TAGS_NAME_SIZE = 4
    MASK_BITS = 62

# Summary of the tags of some records; all zeros before the first record.
cdef struct TagSum:
    int64_t tagged        # records with a tag
    int64_t code          # code of the first tag
    int64_t mask
    bint differ           # a later tag has another code


cdef inline bint is_tags(const Slice* key) noexcept nogil:
    return key.size == TAGS_NAME_SIZE and memcmp(key.data, b"tags", TAGS_NAME_SIZE) == 0


cdef inline int64_t tag_code(const Slice* value) noexcept nogil:
    """Java's hashCode of a text, over its UTF-16 units; 0 if it is empty, null or not UTF-8."""
    cdef int64_t i = 0, size = value.size
    cdef uint32_t code = 0, point, least
    cdef int more, k
    while i < size:
        point = value.data[i]
        i += 1
        if point < 0x80:
            code = code * 31 + point
            continue
        if 0xC2 <= point < 0xE0:
            more, least, point = 1, 0x80, point & 0x1F
        elif 0xE0 <= point < 0xF0:
            more, least, point = 2, 0x800, point & 0x0F
        elif 0xF0 <= point < 0xF5:
            more, least, point = 3, 0x10000, point & 0x07
        else:
            return 0
        if i + more > size:
            return 0
        for k in range(more):
            if value.data[i] & 0xC0 != 0x80:
                return 0
            point = point << 6 | (value.data[i] & 0x3F)
            i += 1
        if point < least or point > 0x10FFFF or 0xD800 <= point < 0xE000:
            return 0
        if point >= 0x10000:
            code = code * 31 + (0xD800 + ((point - 0x10000) >> 10))
            point = 0xDC00 + ((point - 0x10000) & 0x3FF)
        code = code * 31 + point
    return <int32_t>code


cdef inline void note_tag(TagSum* tags, int64_t code) noexcept nogil:
    """Add a record whose tag has this code, 0 for none."""
    if code == 0:
        return
    if tags.tagged == 0:
        tags.code = code
    elif tags.code != code:
        tags.differ = True
    tags.tagged += 1
    tags.mask |= <int64_t>1 << (<uint32_t>code % MASK_BITS)


cdef inline int64_t tag_of_tail(const uint8_t* tail, int64_t size) noexcept nogil:
    """The code of a record's tag. REQUIRES: key, value and headers of a well-formed record."""
    cdef Cursor c = cursor_of(tail, size)
    cdef Slice key, value
    cdef int64_t code = 0, k, left
    for k in range(2):
        left = take_varint(&c)
        if left > 0:
            take(&c, left)
    left = take_varint(&c)
    for k in range(left):
        if not next_header(&c, &key, &value):
            return 0
        if is_tags(&key):
            code = tag_code(&value)
    return code


cdef inline int64_t seal_tags(const TagSum* tags, int64_t count, uint16_t* flags) noexcept nogil:
    """The tags field of a frame with `count` visible records. Sets FRAME_FLAG_MIXED_TAGS in `flags`
    if the records do not all have the same tag.
    """
    if tags.tagged == 0:
        return 0
    if tags.tagged == count and not tags.differ:
        return tags.code
    flags[0] |= FRAME_FLAG_MIXED_TAGS
    return tags.mask | <int64_t>1 << MASK_BITS
