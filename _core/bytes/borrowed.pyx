"""The bytes of a Python object, borrowed for a call.

Cython's own typed memoryviews do the same, but each module that uses them compiles 400 KB of C for
strides and element types, which nobody needs for plain bytes. Layer 0: no I/O.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer


cdef class Borrowed:
    """Keeps the bytes of `data` where they are until this object is released.

    In C, `p` is their address and `size` their number. `p` may be NULL if `size` is 0.
    """

    def __cinit__(self, data):
        """Borrow the bytes of any object with the buffer protocol.

        Raises:
            TypeError: `data` has no bytes to borrow, for example None.
            BufferError: its bytes are not contiguous.
        """
        PyObject_GetBuffer(data, &self.buffer, PyBUF_SIMPLE)
        self.p = <const uint8_t*>self.buffer.buf
        self.size = self.buffer.len

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)
