"""An LRU cache of ConsumeQueue units that were read from files, in blocks of 500 units.

Files are not mapped, so a bad sector cannot raise SIGBUS. On a miss the cache calls `load`, which
belongs to the store, reads from the page cache, and never waits for the disk. If that is not
enough, a thread reads the block and the event loop adds it with `put`.

Layer 0: no I/O.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.bytes.layout cimport UNIT_SIZE

# Divides the number of units of a file, so that no block crosses a file boundary.
UNITS_PER_BLOCK = 500

cdef enum:
    BLOCK = 500
    # Memory of a block besides its bytes: object, key and dict entry.
    OVERHEAD_BYTES = 160


cdef int64_t key_of(int32_t handle, int64_t offset) noexcept nogil:
    return (<int64_t>handle << 40) + offset // BLOCK


cdef class UnitBlocks:
    """Cached blocks of units of all partitions.

    Attributes:
        size_max: capacity of the cache, bytes.
        size: bytes used.
        load: function (handle, offset of the first unit, count) that returns the bytes of these
            units, or None if it would have to wait for the disk. None if there is no function.
    """

    def __cinit__(self, *, int64_t size_max):
        """Start empty.

        Args:
            size_max: capacity of the cache, bytes. The latest block stays even if it is larger.
        """
        self.size_max = size_max
        self.blocks = {}
        self.last_key = -1

    cdef int find(
        self, int32_t handle, int64_t offset, int64_t saved, const uint8_t** unit
    ) except -1:
        cdef int64_t key = key_of(handle, offset)
        cdef int64_t first = offset - offset % BLOCK
        cdef Py_ssize_t at = (offset - first) * UNIT_SIZE
        if key != self.last_key or at + UNIT_SIZE > len(self.last):
            data = self.blocks.get(key)
            # Read a block again if it was read before its last units were written.
            if data is None or at + UNIT_SIZE > len(<bytes>data):
                if self.load is None:
                    return 0
                data = self.load(handle, first, min(<int64_t>BLOCK, saved - first))
                if data is None or at + UNIT_SIZE > len(<bytes>data):
                    return 0
            self._keep(key, <bytes>data)
        unit[0] = <const uint8_t*><const char*>self.last + at
        return 1

    cdef int _keep(self, int64_t key, bytes data) except -1:
        """Make this the most recently used block, and evict the least recently used ones."""
        known = self.blocks.pop(key, None)
        if known is not None:
            self.size -= len(<bytes>known) + OVERHEAD_BYTES
        self.blocks[key] = data
        self.size += len(data) + OVERHEAD_BYTES
        self.last_key = key
        self.last = data
        while self.size > self.size_max and len(self.blocks) > 1:
            oldest = next(iter(self.blocks))
            self.size -= len(<bytes>self.blocks.pop(oldest)) + OVERHEAD_BYTES
        return 0

    def put(self, int32_t handle, int64_t first, bytes data not None):
        """Add a block that was read by a thread.

        Args:
            handle: partition handle.
            first: offset of its first unit, a multiple of UNITS_PER_BLOCK.
            data: its units from there on, at most UNITS_PER_BLOCK.
        """
        assert first % BLOCK == 0 and len(data) <= BLOCK * UNIT_SIZE
        self._keep(key_of(handle, first), data)

    def drop(self, int32_t handle, int64_t start, int64_t stop):
        """Drop the blocks that contain units `start` to before `stop` of a partition."""
        cdef int64_t offset = start - start % BLOCK
        if (stop - offset) // BLOCK > len(self.blocks):
            # The range spans more blocks than the cache holds: iterate over the cache.
            low, high = key_of(handle, offset), key_of(handle, stop - 1)
            for key in [key for key in self.blocks if low <= key <= high]:
                self.size -= len(<bytes>self.blocks.pop(key)) + OVERHEAD_BYTES
            offset = stop
        while offset < stop:
            data = self.blocks.pop(key_of(handle, offset), None)
            if data is not None:
                self.size -= len(<bytes>data) + OVERHEAD_BYTES
            offset += BLOCK
        self.last_key = -1
