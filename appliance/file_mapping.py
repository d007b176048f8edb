"""A file mapped for reading, and whether its pages are in memory. A part of `fs`; layer 1."""

import ctypes
import mmap
from typing import Final

from appliance.units import MIB


class _PyBuffer(ctypes.Structure):
    """CPython's Py_buffer, part of its stable ABI since 3.11."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("owner", ctypes.c_void_p),
        ("size", ctypes.c_ssize_t),
        ("item_size", ctypes.c_ssize_t),
        ("is_read_only", ctypes.c_int),
        ("dimension_count", ctypes.c_int),
        ("format", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("sub_offsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


# PyDLL keeps the GIL: mincore never waits, and to give the GIL up and get it back costs more.
_mincore = ctypes.PyDLL(None).mincore
_mincore.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
_mincore.restype = ctypes.c_int
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.POINTER(_PyBuffer),)
_release_buffer.restype = None

_PAGE_SIZE: Final = mmap.PAGESIZE
_RESIDENCE_CHUNK_BYTES: Final = 64 * MIB
"""How much of a file one mincore call is asked about: one byte of answer for each page."""


class FileMapping:
    """A file mapped for reading. Unmapped when the last view of it is gone."""

    __slots__ = ("_address", "_answer", "_answer_address", "view")

    def __init__(self, fd: int, size: int) -> None:
        mapped = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self.view = memoryview(mapped)
        # ctypes cannot take the address of read-only memory by itself, the buffer protocol can.
        buffer = _PyBuffer()
        _get_buffer(mapped, ctypes.byref(buffer), 0)
        self._address: int = buffer.address
        _release_buffer(ctypes.byref(buffer))
        self._answer = bytearray(min(size, _RESIDENCE_CHUNK_BYTES) // _PAGE_SIZE + 2)
        answer = (ctypes.c_char * len(self._answer)).from_buffer(self._answer)
        self._answer_address = ctypes.addressof(answer)

    def is_resident(self, offset: int, size: int) -> bool:
        """Ask mincore. REQUIRES: 0 <= offset, 0 <= size, offset + size <= the mapped size."""
        assert offset >= 0
        assert offset + size <= len(self.view)
        answer = self._answer
        end = offset + size
        start = offset - offset % _PAGE_SIZE
        while start < end:
            length = min(end - start, _RESIDENCE_CHUNK_BYTES)
            if _mincore(self._address + start, length, self._answer_address) != 0:
                return False
            page_count = (length + _PAGE_SIZE - 1) // _PAGE_SIZE
            # Only bit 0 is defined; anything but exactly 1 is taken for cold, which is safe.
            if answer.count(1, 0, page_count) != page_count:
                return False
            start += length
        return True
