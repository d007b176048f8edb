"""What the trace of a connection says of a request. Layer 0: no I/O."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.kafka_wire cimport take_string
from _core.bytes.octets cimport Cursor, cursor_of, take_i16, take_i32


cdef tuple traced_head(const uint8_t* p, Py_ssize_t size):
    """Return a request's API key, version and correlation id, and its client id or None."""
    cdef Cursor c = cursor_of(p, size)
    cdef int64_t client_id_size
    cdef const uint8_t* client_id
    cdef int key = take_i16(&c)
    cdef int version = take_i16(&c)
    cdef int32_t correlation = take_i32(&c)
    client_id = take_string(&c, False, &client_id_size)
    name = None
    if not c.failed and client_id_size >= 0:
        name = PyBytes_FromStringAndSize(<const char*>client_id, client_id_size)
    return key, version, correlation, name
