"""Columns in the memory layout of Apache Arrow, which grow by one value at a time.

The functions that append are in the .pxd, so that they are compiled into their callers. A finished
column is given away as objects with the buffer protocol; any Arrow library wraps them without a
copy. Layer 0: no I/O, and no Arrow library.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset

from _core.bytes.buffer cimport Buf, release


cdef enum:
    SPARE_MIN_BYTES = 1 << 16    # smaller ones come from malloc without the kernel


cdef class Spares:
    """Memory of columns that nobody reads any more, for the next batches.

    The kernel would clear new memory for each batch, which takes longer than to fill it. Each
    column has as many as the caller held at once, up to SPARES_DEPTH: who writes row groups holds
    some batches, anyone else two.
    """

    cdef int give(self, int place, Buf* buf) except -1:
        """Give spare memory of a column to an empty buffer, if there is some."""
        if buf.data == NULL and self.counts[place]:
            self.counts[place] -= 1
            buf[0] = self.bufs[place][self.counts[place]]
            buf.size = 0
        return 0

    cdef int keep(self, int place, Buf* buf) except -1:
        """Keep the memory of a buffer, unless there is enough; the buffer is empty afterwards."""
        if self.counts[place] < SPARES_DEPTH and buf.capacity >= SPARE_MIN_BYTES:
            self.bufs[place][self.counts[place]] = buf[0]
            self.counts[place] += 1
            buf.data = NULL
            buf.size = buf.capacity = 0
        release(buf)
        return 0

    def __dealloc__(self):
        cdef int i, k
        for i in range(SPARES_MAX):
            for k in range(self.counts[i]):
                release(&self.bufs[i][k])


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
        if self.spares is not None:
            self.spares.keep(self.place, &self.buf)
        release(&self.buf)


cdef Memory _owned(Buf* buf, Spares spares, int place):
    """Move the bytes of a buffer into an object; the buffer is empty afterwards."""
    cdef Memory memory = Memory()
    memory.buf = buf[0]
    memory.spares = spares
    memory.place = place
    buf.data = NULL
    buf.size = buf.capacity = 0
    return memory


cdef void _begin_validity(ColumnData* c) noexcept nogil:
    """Set the bits of all values so far, before the first null."""
    cdef int64_t i = c.length
    memset(c.validity.data, 0xFF, (i + 7) // 8)
    c.validity.size = (i + 7) // 8
    if i % 8:
        c.validity.data[i // 8] &= <uint8_t>((1 << (i % 8)) - 1)


cdef int refuse_size() except -1:
    raise ValueError("the rows of one frame have 2 GiB or more in a column")


cdef tuple take_column(ColumnData* c, Spares spares, int place):
    """Give the column away, and empty it.

    Args:
        spares: has the memory of its data, at `place`, when the caller has dropped the result.

    Returns:
        (length, null count, validity or None, offsets or None, data), the last three as `Memory`.
    """
    validity = _owned(&c.validity, None, 0) if c.null_count else None
    offsets = _owned(&c.offsets, None, 0) if c.offsets.size else None
    taken = (c.length, c.null_count, validity, offsets, _owned(&c.data, spares, place))
    release_column(c)    # room that was not used
    c.length = c.null_count = 0
    return taken


cdef void release_column(ColumnData* c) noexcept nogil:
    release(&c.validity)
    release(&c.offsets)
    release(&c.data)
