"""ConsumeQueue units that were read from files: a bounded number of blocks, the latest used ones.

Nothing is mapped, so a bad sector cannot raise SIGBUS. What is not here is asked of the store's
`load`, which reads what the kernel has in memory and never waits for the disk; what that has not is
read by a thread and `put` here. Layer 0: no I/O.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from _core.layout cimport UNIT_SIZE

# Divides the units of a file, so that a block lies in one.
UNITS_PER_BLOCK = 500

cdef enum:
    BLOCK = 500
    # What a block costs beside its bytes: object, key and place in the table.
    OVERHEAD_BYTES = 160


cdef int64_t key_of(int32_t handle, int64_t offset) noexcept nogil:
    return (<int64_t>handle << 40) + offset // BLOCK


cdef class UnitBlocks:
    """Blocks of units of all partitions.

    Attributes:
        size_max: bytes that they may take in all.
        size: bytes that they take.
        load: function (handle, offset of the first unit, count) -> their bytes, or None if the disk
            would have to be waited for; None while there is no such function.
    """

    def __cinit__(self, *, int64_t size_max):
        """Begin empty.

        Args:
            size_max: bytes that the blocks may take.
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
            # A block that was read before its end was written is read again.
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
        """Make it the block that was used last, and drop those that were not for longest."""
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
        """Take up a block.

        Args:
            handle: the partition's.
            first: offset of its first unit, a multiple of UNITS_PER_BLOCK.
            data: its units from there on, UNITS_PER_BLOCK at most.
        """
        assert first % BLOCK == 0 and len(data) <= BLOCK * UNIT_SIZE
        self._keep(key_of(handle, first), data)

    def drop(self, int32_t handle, int64_t start, int64_t stop):
        """Forget what is known of units `start` to before `stop` of a partition."""
        cdef int64_t offset = start - start % BLOCK
        if (stop - offset) // BLOCK > len(self.blocks):
            # Fewer blocks are there than the range has places.
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
