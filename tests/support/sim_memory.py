"""What a simulated file holds, mapped: maps see later writes, and do not let bad pages be touched.

The bytes lie in shared memory, of which each map is another view by the processor's page table. To
touch a page there that the disk cannot read ends the process by a signal, as a real mapping does.
"""

import ctypes
import mmap
import weakref
from typing import Final

from appliance.units import MIB, PAGE_SIZE_BYTES

ROOM_BYTES: Final = 16 * MIB
"""Address space for a file to grow; memory is taken when it is touched."""

MAP_NORESERVE: Final = 0x4000
MREMAP_MAYMOVE: Final = 1
PROT_NONE: Final = 0
FAILED: Final = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class _Map:
    """Where one map is; it goes when the last view of it does."""

    __slots__ = ("__weakref__", "address", "page_count")

    def __init__(self, address: int, page_count: int) -> None:
        self.address = address
        self.page_count = page_count

    def protect(self, page: int, access: int) -> None:
        if page < self.page_count:
            place = self.address + page * PAGE_SIZE_BYTES
            assert _libc.mprotect(place, PAGE_SIZE_BYTES, access) == 0


class SimMemory:
    """Bytes of a file that was mapped.

    Args:
        data: what they are now.
    """

    def __init__(self, data: bytes | bytearray) -> None:
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self._room = 2 * len(data) + ROOM_BYTES
        self._memory = mmap.mmap(-1, self._room, flags=flags)
        self._memory[: len(data)] = data
        self._size = len(data)
        self._bad: frozenset[int] = frozenset()
        self._maps: weakref.WeakSet[_Map] = weakref.WeakSet()

    @property
    def data(self) -> memoryview:
        """All of it, to be read and written."""
        return memoryview(self._memory)[: self._size]

    def resize(self, size: int) -> None:
        assert size <= self._room, "a simulated file that is mapped cannot grow so far"
        if size < self._size:
            self._memory[size : self._size] = bytes(self._size - size)
        self._size = size

    def map(self) -> memoryview:
        """A view of the whole, for reading."""
        if self._size == 0:
            return memoryview(b"")
        page_count = (self._size + PAGE_SIZE_BYTES - 1) // PAGE_SIZE_BYTES
        length = page_count * PAGE_SIZE_BYTES
        whole = (ctypes.c_char * self._room).from_buffer(self._memory)
        # An old size of 0 makes a second view of shared memory.
        address = _libc.mremap(ctypes.addressof(whole), 0, length, MREMAP_MAYMOVE)
        assert address != FAILED, ctypes.get_errno()
        place = _Map(address, page_count)
        view = (ctypes.c_ubyte * self._size).from_address(address)
        # Bound to the array, which every slice of the view keeps alive.
        weakref.finalize(view, _unmap, place, length)
        self._maps.add(place)
        for page in self._bad:
            place.protect(page, PROT_NONE)
        return memoryview(view).cast("B").toreadonly()

    def forbid(self, bad: frozenset[int]) -> None:
        """Let exactly these pages be untouchable in every map."""
        for place in self._maps:
            for page in bad - self._bad:
                place.protect(page, PROT_NONE)
            for page in self._bad - bad:
                place.protect(page, mmap.PROT_READ)
        self._bad = bad


def _unmap(place: _Map, length: int) -> None:
    _libc.munmap(place.address, length)
