"""Columns in the memory layout of Apache Arrow, which grow by one value at a time.

The functions that append are in the .pxd, so that they are compiled into their callers. A finished
column is given away as objects with the buffer protocol; any Arrow library wraps them without a
copy. Layer 0: no I/O, and no Arrow library.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset

from _core.bytes.buffer cimport Buf, release


cdef class Memory:
    """Bytes that this object owns, for the buffer protocol. Read-only."""

    def __getbuffer__(self, Py_buffer* view, int flags):
        """Export the bytes. Some consumers refuse NULL, even for no bytes."""
        cdef void* data = <void*>self.buf.data if self.buf.size else <void*>&self.buf
        PyBuffer_FillInfo(view, self, data, self.buf.size, True, flags)

    def __len__(self):
        """The number of bytes."""
        return self.buf.size

    def __dealloc__(self):
        release(&self.buf)


cdef Memory _owned(Buf* buf):
    """Move the bytes of a buffer into an object; the buffer is empty afterwards."""
    cdef Memory memory = Memory()
    memory.buf = buf[0]
    buf.data = NULL
    buf.size = buf.capacity = 0
    return memory


cdef void _put_bit(ColumnData* c, bint is_set) noexcept nogil:
    """Append one bit of validity. The first null sets the bits of all values before it."""
    cdef int64_t i = c.length
    if c.null_count == 0:
        memset(c.validity.data, 0xFF, (i + 7) // 8)
        c.validity.size = (i + 7) // 8
        if i % 8:
            c.validity.data[i // 8] &= <uint8_t>((1 << (i % 8)) - 1)
    if i % 8 == 0:
        c.validity.data[i // 8] = 0
        c.validity.size += 1
    if is_set:
        c.validity.data[i // 8] |= <uint8_t>(1 << (i % 8))
    else:
        c.null_count += 1


cdef int refuse_size() except -1:
    raise ValueError("the rows of one frame have 2 GiB or more in a column")


cdef tuple take_column(ColumnData* c):
    """Give the column away, and empty it.

    Returns:
        (length, null count, validity or None, offsets or None, data), the last three as `Memory`.
    """
    validity = _owned(&c.validity) if c.null_count else None
    offsets = _owned(&c.offsets) if c.offsets.size else None
    taken = (c.length, c.null_count, validity, offsets, _owned(&c.data))
    release_column(c)    # room that was not used
    c.length = c.null_count = 0
    return taken


cdef void release_column(ColumnData* c) noexcept nogil:
    release(&c.validity)
    release(&c.offsets)
    release(&c.data)
