"""Finds an id in a run of ids: a filter says whether it may be there, the directory in which block.

It is a blocked Bloom filter: an id sets seven bits of one block of 512, so that a look-up costs one
cache miss. With 16 bits for each id, about one in 700 unknown ids seems to be there. F. Putze, P.
Sanders and J. Singler describe it in "Cache-, Hash- and Space-Efficient Bloom Filters", 2007. The
hash of an id is keyed, so nobody can construct ids that seem to be there.

Layer 0: no I/O.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from _core.bytes.layout cimport (
    RUN_ID_AT_COMPLETED_POS, RUN_ID_AT_HASH_HIGH, RUN_ID_AT_HASH_LOW, RUN_ID_AT_TOPIC_ID,
    RUN_ID_SIZE,
)
from _core.bytes.octets cimport load_i64, load_u32, load_u64

cdef enum:
    BITS_PER_ID = 16
    BLOCK_BITS = BLOCK_WORDS * 64
    BLOCK_BYTES = BLOCK_WORDS * 8
    KEY_SIZE = RUN_ID_AT_TOPIC_ID + 4    # what a row begins with; bytes are in the order of ids
    PLACE_SIZE = 28


@cython.final
@cython.no_gc    # it holds no objects
cdef class IdFilter:
    """The filter of one run.

    Attributes:
        size: bytes.
    """

    def __cinit__(self, int64_t row_count):
        """Start empty.

        Args:
            row_count: ids that will be added, about.

        Raises:
            MemoryError: there is no room for it.
        """
        cdef int64_t bits = row_count * BITS_PER_ID + BLOCK_BITS - 1
        cdef int64_t blocks = max(bits, BLOCK_BITS) // BLOCK_BITS
        assert 0 <= row_count < 1 << 36
        self.words = <uint64_t*>calloc(blocks, BLOCK_BYTES)
        if self.words == NULL:
            raise MemoryError("cannot allocate a filter of timer ids")
        self.view = FilterView(self.words, blocks)
        self.size = blocks * BLOCK_BYTES

    def __dealloc__(self):
        free(self.words)

    @staticmethod
    def decode(bytes octets not None):
        """Return the filter that `encode` has encoded; octets are a multiple of 64 bytes.

        Raises:
            MemoryError: there is no room for it.
        """
        cdef IdFilter made = IdFilter(len(octets) * 8 // BITS_PER_ID)
        assert made.size == len(octets)
        memcpy(made.words, <const char*>octets, len(octets))
        return made

    def encode(self):
        """Return its bytes. The words are little-endian, as on every machine that this runs on."""
        return (<const char*>self.words)[:self.size]

    def add_rows(self, bytes rows not None):
        """Add the ids of whole rows of a run; return how many are those of completed timers."""
        cdef const uint8_t* row = <const uint8_t*><const char*>rows
        cdef const uint8_t* end = row + len(rows)
        cdef uint64_t* block
        cdef uint64_t high, bits
        cdef int64_t completed = 0
        cdef int i
        with nogil:
            while row < end:
                high = load_u64(row + RUN_ID_AT_HASH_HIGH)
                bits = load_u32(row + RUN_ID_AT_HASH_LOW) | high >> 32 << 32
                block = self.words + (
                    (high & 0xFFFFFFFFULL) * self.view.block_count >> 32
                ) * BLOCK_WORDS
                for i in range(BIT_COUNT):
                    block[bits >> 6 & (BLOCK_WORDS - 1)] |= <uint64_t>1 << (bits & 63)
                    bits >>= BIT_SIZE
                completed += load_i64(row + RUN_ID_AT_COMPLETED_POS) != 0
                row += RUN_ID_SIZE
        return completed

    def has_all(self, bytes rows not None):
        """Return whether all ids of whole rows of a run were added."""
        cdef const uint8_t* row = <const uint8_t*><const char*>rows
        cdef const uint8_t* end = row + len(rows)
        while row < end:
            if not has_key(
                &self.view, load_u64(row + RUN_ID_AT_HASH_HIGH), load_u32(row + RUN_ID_AT_HASH_LOW)
            ):
                return False
            row += RUN_ID_SIZE
        return True

    def may_have(self, bytes key not None):
        """Return whether the run may have an id; `key` is what its row begins with, 16 bytes."""
        cdef const uint8_t* p = <const uint8_t*><const char*>key
        assert len(key) >= RUN_ID_AT_HASH_LOW + 4
        return has_key(
            &self.view, load_u64(p + RUN_ID_AT_HASH_HIGH), load_u32(p + RUN_ID_AT_HASH_LOW)
        )


cdef Py_ssize_t first_place(const uint8_t* places, Py_ssize_t count, uint64_t high, bint after) \
        noexcept nogil:
    """The number of the first place whose key is not below `high`, or `after` it."""
    cdef Py_ssize_t low = 0, end = count, middle
    cdef uint64_t key
    while low < end:
        middle = (low + end) // 2
        key = load_u64(places + middle * PLACE_SIZE)
        if key < high or (after and key == high):
            low = middle + 1
        else:
            end = middle
    return low


def blocks_with(bytes places not None, bytes key not None):
    """Return the blocks that may have an id, as the number of the first and that after the last.

    Args:
        places: those of the directory, each of which begins with the first word of the hash of the
            first row.
        key: what the row begins with, 16 bytes.
    """
    cdef const uint8_t* p = <const uint8_t*><const char*>places
    cdef Py_ssize_t count = len(places) // PLACE_SIZE
    cdef uint64_t high
    assert len(key) == KEY_SIZE
    high = load_u64(<const uint8_t*><const char*>key + RUN_ID_AT_HASH_HIGH)
    return max(first_place(p, count, high, False) - 1, 0), first_place(p, count, high, True)


def find_row(bytes block not None, bytes key not None):
    """Return the row of an id in a block, b"" if it has none.

    Args:
        block: whole rows in order.
        key: what the row begins with, 16 bytes.
    """
    cdef const uint8_t* rows = <const uint8_t*><const char*>block
    cdef const uint8_t* wanted = <const uint8_t*><const char*>key
    cdef Py_ssize_t low = 0, end = len(block) // RUN_ID_SIZE, middle
    cdef Py_ssize_t count = end
    assert len(key) == KEY_SIZE
    while low < end:
        middle = (low + end) // 2
        if memcmp(rows + middle * RUN_ID_SIZE, wanted, KEY_SIZE) < 0:
            low = middle + 1
        else:
            end = middle
    if low == count or memcmp(rows + low * RUN_ID_SIZE, wanted, KEY_SIZE) != 0:
        return b""
    return block[low * RUN_ID_SIZE:(low + 1) * RUN_ID_SIZE]
