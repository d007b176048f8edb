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
    RUN_BLOCK_SIZE_MAX, RUN_ID_AT_COMPLETED_POS, RUN_ID_AT_HASH_HIGH, RUN_ID_AT_HASH_LOW,
    RUN_ID_AT_TOPIC_ID, RUN_ID_SIZE,
)
from _core.bytes.crc32c cimport extend
from _core.bytes.octets cimport load_i64, load_u32, load_u64

cdef enum:
    BITS_PER_ID = 16
    BLOCK_BITS = BLOCK_WORDS * 64
    BLOCK_BYTES = BLOCK_WORDS * 8
    KEY_SIZE = RUN_ID_AT_TOPIC_ID + 4    # what a row begins with; bytes are in the order of ids
    PLACE_SIZE = 28
    HEAD_SIZE = 8                        # of a block


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

    def pick(self, list keys not None):
        """Return those of some ids that the run may have.

        Args:
            keys: what their rows begin with, 16 bytes each.
        """
        cdef bytes key
        cdef const uint8_t* p
        cdef list found = []
        for key in keys:
            p = <const uint8_t*><const char*>key
            assert len(key) == KEY_SIZE
            if has_key(
                &self.view, load_u64(p + RUN_ID_AT_HASH_HIGH), load_u32(p + RUN_ID_AT_HASH_LOW)
            ):
                found.append(key)
        return found


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


def find_rows(bytes places not None, list keys not None, read, uint32_t seed):
    """Find ids in the blocks of a file.

    Args:
        places: those of the directory: the first word of the hash of the first row of a block, its
            offset, bytes of rows, count of rows, CRC.
        keys: what the rows of the ids begin with, 16 bytes each.
        read: function of a size and an offset that returns bytes of the file.
        seed: the CRC of the head of the file.

    Returns:
        The rows that were found, by keys, and the number of a block that is damaged, -1 for none.

    Raises:
        what `read` raises.
    """
    cdef const uint8_t* first = <const uint8_t*><const char*>places
    cdef Py_ssize_t count = len(places) // PLACE_SIZE, number, end
    cdef const uint8_t* place
    cdef uint64_t high
    cdef uint32_t size
    cdef bytes key, block, row
    cdef dict found = {}
    for key in keys:
        assert len(key) == KEY_SIZE
        high = load_u64(<const uint8_t*><const char*>key + RUN_ID_AT_HASH_HIGH)
        # Ids whose hashes begin alike may be in two blocks.
        number = max(first_place(first, count, high, False) - 1, 0)
        end = first_place(first, count, high, True)
        for number in range(number, end):
            place = first + number * PLACE_SIZE
            size = load_u32(place + 16)
            if size > RUN_BLOCK_SIZE_MAX:
                return found, number
            block = read(HEAD_SIZE + size + 4, load_u64(place + 8))
            if not _is_whole(block, place, seed):
                return found, number
            row = _row_of(<const uint8_t*><const char*>block + HEAD_SIZE, size, key)
            if row is not None:
                found[key] = row
                break
    return found, -1


cdef bint _is_whole(bytes block, const uint8_t* place, uint32_t seed) noexcept:
    """Whether what was read is the block of a place."""
    cdef const uint8_t* p = <const uint8_t*><const char*>block
    cdef uint32_t size = load_u32(place + 16), crc = load_u32(place + 24)
    if len(block) != HEAD_SIZE + <Py_ssize_t>size + 4 or memcmp(p, place + 16, HEAD_SIZE) != 0:
        return False
    if load_u32(p + HEAD_SIZE + size) != crc:
        return False
    return extend(extend(seed, place + 8, 8), p, HEAD_SIZE + size) == crc


cdef bytes _row_of(const uint8_t* rows, Py_ssize_t size, bytes key):
    """The row of an id among some in order; None if there is none."""
    cdef const uint8_t* wanted = <const uint8_t*><const char*>key
    cdef Py_ssize_t low = 0, end = size // RUN_ID_SIZE, middle
    cdef Py_ssize_t count = end
    while low < end:
        middle = (low + end) // 2
        if memcmp(rows + middle * RUN_ID_SIZE, wanted, KEY_SIZE) < 0:
            low = middle + 1
        else:
            end = middle
    if low == count or memcmp(rows + low * RUN_ID_SIZE, wanted, KEY_SIZE) != 0:
        return None
    return (<const char*>rows)[low * RUN_ID_SIZE:(low + 1) * RUN_ID_SIZE]
