"""CRC32C, the checksum of Kafka's record batches and of the frames of the log.

This implementation exists because the hot paths compute the checksum without the GIL and without a
Python object per call. The tests compare it with the published vectors and with a bitwise model.
Layer 0: no I/O.
"""

from libc.stdint cimport uint8_t, uint32_t

from _core.bytes.borrowed cimport Borrowed


cdef extern from "_core/bytes/crc32c_kernel.h":
    ctypedef uint32_t crc32c_form(uint32_t crc, const uint8_t* p, size_t n) noexcept nogil
    void crc32c_setup() noexcept nogil
    crc32c_form* crc32c_fastest
    crc32c_form* crc32c_forms[4]


crc32c_setup()

cdef tuple _NAMES = ("table", "instruction", "256", "512")

FORMS = tuple(name for i, name in enumerate(_NAMES) if crc32c_forms[i] != NULL)


cdef uint32_t extend(uint32_t crc, const uint8_t* p, Py_ssize_t size) noexcept nogil:
    return ~crc32c_fastest(~crc, p, <size_t>size)


def crc32c(data, uint32_t crc=0):
    """Extend a CRC32C over `data`.

    Args:
        data: any contiguous buffer of bytes.
        crc: the finished checksum of the preceding bytes; 0 to begin.

    Returns:
        The checksum, 0 .. 2**32 - 1.
    """
    cdef Borrowed octets = Borrowed(data)
    cdef uint32_t result
    with nogil:
        result = extend(crc, octets.p, octets.size)
    return result


def crc32c_by(str form not None, data, uint32_t crc=0):
    """Like `crc32c`, computed by the given implementation.

    Args:
        form: one of `FORMS`, the implementations that this processor supports.
        data: any contiguous buffer of bytes.
        crc: the finished checksum of the preceding bytes; 0 to begin.

    Raises:
        ValueError: this processor does not support `form`.
    """
    cdef Borrowed octets = Borrowed(data)
    if form not in FORMS:
        raise ValueError(f"form {form!r} is not supported: use one of {', '.join(FORMS)}")
    return <uint32_t>~crc32c_forms[_NAMES.index(form)](~crc, octets.p, <size_t>octets.size)
