"""Pages of a run of the key index: sorted rows, a filter, and the merge of several runs.

    page := content, zeros, tail        4096 bytes
    tail := u32 number of the page in its file, u32 bytes of content, u32 zero, u32 CRC

The CRC is the CRC32C of all bytes before it, begun with a seed that follows from the log and from
the range of the run. So a page of another place, file or log is refused.

The filter is a blocked Bloom filter: a hash belongs to one line of 64 bytes, by its high bits, and
sets some bits of it, by its low bits. Rows come in the order of their hashes, and so do the lines:
the filter of a run of any size is written page by page. docs/FORMAT.md has the format.

Layer 0: no I/O.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from _core.bytes.buffer cimport Buf, append, extend_zero, release
from _core.bytes.crc32c cimport extend
from _core.bytes.octets cimport load_u32, load_u64, store_u32, store_u64


cdef extern from *:
    """
    static inline uint64_t lmq_scaled(uint64_t digest, uint64_t count) {
        return (uint64_t)(((unsigned __int128)digest * count) >> 64);
    }
    """
    # The place of a hash among `count` equal parts of all hashes.
    uint64_t scaled "lmq_scaled"(uint64_t digest, uint64_t count) noexcept nogil


cpdef enum:
    PAGE_SIZE = 4096
    PAGE_USED_MAX = 4080
    KEY_ROWS_PER_PAGE = 255

cdef enum:
    TAIL_AT_NUMBER = 4080
    TAIL_AT_USED = 4084
    TAIL_AT_CRC = 4092
    ROW_SIZE = 16
    LINE_SIZE = 64
    LINES_PER_PAGE = 63
    LINE_BITS_LOG = 9
    FILTER_BITS_PER_ROW = 12    # with six bits each, one in 130 absent keys passes
    FILTER_HASHES = 6

cdef struct Place:
    const uint8_t* at
    const uint8_t* end

assert <int>KEY_ROWS_PER_PAGE * <int>ROW_SIZE == <int>PAGE_USED_MAX
assert <int>LINES_PER_PAGE * <int>LINE_SIZE <= <int>PAGE_USED_MAX


cdef inline void _seal(uint8_t* page, uint32_t number, uint32_t used, uint32_t seed) noexcept nogil:
    """Complete a page. REQUIRES: PAGE_SIZE bytes at `page`, whose content is there."""
    memset(page + used, 0, PAGE_SIZE - used)
    store_u32(page + TAIL_AT_NUMBER, number)
    store_u32(page + TAIL_AT_USED, used)
    store_u32(page + TAIL_AT_CRC, extend(seed, page, TAIL_AT_CRC))


def seal(uint32_t number, bytes content not None, uint32_t seed):
    """Return a page with some content.

    Args:
        number: of the page in its file.
        content: up to PAGE_USED_MAX bytes.
        seed: of the CRC.

    Raises:
        ValueError: the content is larger.
    """
    cdef Py_ssize_t size = PyBytes_GET_SIZE(content)
    cdef bytes page
    if size > PAGE_USED_MAX:
        raise ValueError(f"a page has up to {PAGE_USED_MAX} bytes of content, got {size}")
    page = PyBytes_FromStringAndSize(NULL, PAGE_SIZE)
    memcpy(PyBytes_AS_STRING(page), PyBytes_AS_STRING(content), size)
    _seal(<uint8_t*>PyBytes_AS_STRING(page), number, <uint32_t>size, seed)
    return page


def open_page(bytes page not None, uint32_t number, uint32_t seed):
    """Return the bytes of content of a page; -1 if it is not that page, or damaged."""
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(page)
    cdef uint32_t used
    if PyBytes_GET_SIZE(page) != PAGE_SIZE or load_u32(p + TAIL_AT_NUMBER) != number:
        return -1
    if load_u32(p + TAIL_AT_CRC) != extend(seed, p, TAIL_AT_CRC):
        return -1
    used = load_u32(p + TAIL_AT_USED)
    return <int64_t>used if used <= PAGE_USED_MAX else -1


def row_pages(bytes rows not None, uint32_t number, uint32_t seed):
    """Return rows as pages, of which only the last one may have room left.

    Args:
        rows: any number of rows.
        number: of the first page.
        seed: of the CRC.
    """
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(rows)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(rows), at = 0, used
    cdef Py_ssize_t count = (size + PAGE_USED_MAX - 1) // PAGE_USED_MAX
    cdef bytes pages = PyBytes_FromStringAndSize(NULL, count * PAGE_SIZE)
    cdef uint8_t* out = <uint8_t*>PyBytes_AS_STRING(pages)
    with nogil:
        while at < size:
            used = min(size - at, <Py_ssize_t>PAGE_USED_MAX)
            memcpy(out, p + at, used)
            _seal(out, number, <uint32_t>used, seed)
            out += PAGE_SIZE
            number += 1
            at += used
    return pages


def find_row(bytes rows not None, Py_ssize_t size, uint64_t digest, uint64_t position):
    """Return where in sorted rows the first one is that is not before (digest, position).

    Args:
        rows: sorted rows.
        size: bytes of them.

    Returns:
        A place in bytes; `size` if all are before it.

    Raises:
        ValueError: there are fewer bytes.
    """
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(rows)
    cdef Py_ssize_t low = 0, high = size // ROW_SIZE, middle
    cdef uint8_t wanted[ROW_SIZE]
    if not 0 <= size <= PyBytes_GET_SIZE(rows):
        raise ValueError(f"{size} bytes of rows of {PyBytes_GET_SIZE(rows)}")
    store_u64(wanted, digest)
    store_u64(wanted + 8, position)
    while low < high:
        middle = (low + high) // 2
        if memcmp(p + middle * ROW_SIZE, wanted, ROW_SIZE) < 0:
            low = middle + 1
        else:
            high = middle
    return low * ROW_SIZE if low < size // ROW_SIZE else size


def positions_of(bytes rows not None, Py_ssize_t size, Py_ssize_t at, uint64_t digest):
    """Return the positions in the rows from a place on that have a hash.

    Args:
        rows, size, digest: as for `find_row`.
        at: a place in bytes.
    """
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(rows)
    size = min(size, PyBytes_GET_SIZE(rows))
    found = []
    while 0 <= at <= size - ROW_SIZE and load_u64(p + at) == digest:
        found.append(<int64_t>load_u64(p + at + 8))
        at += ROW_SIZE
    return found


# The filter


cdef inline void _set_bits(uint8_t* line, uint64_t digest) noexcept nogil:
    cdef int i, bit
    for i in range(FILTER_HASHES):
        bit = digest & ((1 << LINE_BITS_LOG) - 1)
        line[bit >> 3] |= <uint8_t>(1 << (bit & 7))
        digest >>= LINE_BITS_LOG


def filter_lines(int64_t rows):
    """Return the number of lines of the filter for a number of rows."""
    return max(1, (rows * FILTER_BITS_PER_ROW + LINE_SIZE * 8 - 1) // (LINE_SIZE * 8))


def filter_place(uint64_t digest, uint64_t lines):
    """Return where a filter has the bits of a hash: (page from 0 on, byte in it)."""
    cdef uint64_t line = scaled(digest, lines)
    return line // LINES_PER_PAGE, line % LINES_PER_PAGE * LINE_SIZE


def filter_has(bytes page not None, Py_ssize_t at, uint64_t digest):
    """Return whether a line of a filter has all bits of a hash; if not, no row has it."""
    cdef const uint8_t* line = <const uint8_t*>PyBytes_AS_STRING(page) + at
    cdef int i, bit
    if not 0 <= at <= PyBytes_GET_SIZE(page) - LINE_SIZE:
        raise ValueError(f"no line begins at byte {at}")
    for i in range(FILTER_HASHES):
        bit = digest & ((1 << LINE_BITS_LOG) - 1)
        if not line[bit >> 3] & (1 << (bit & 7)):
            return False
        digest >>= LINE_BITS_LOG
    return True


cdef class FilterPages:
    """Makes the pages of a filter from sorted rows.

    Attributes:
        number: of the page that is not complete yet.
    """

    cdef uint64_t lines
    cdef uint64_t first_line          # of the current page
    cdef uint64_t last_hash
    cdef bint has_last
    cdef uint32_t seed
    cdef readonly uint32_t number
    cdef Buf done
    cdef uint8_t page[PAGE_SIZE]

    def __cinit__(self, uint64_t lines, uint32_t seed):
        """Begin with page 1 of the file; `lines` comes from `filter_lines`."""
        self.lines = lines
        self.seed = seed
        self.number = 1
        memset(self.page, 0, PAGE_SIZE)

    def __dealloc__(self):
        release(&self.done)

    def add(self, bytes rows not None):
        """Add the next rows; return the pages that are complete now."""
        cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(rows)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(rows), at = 0
        cdef uint64_t digest, line
        with nogil:
            while at + ROW_SIZE <= size:
                digest = load_u64(p + at)
                at += ROW_SIZE
                if self.has_last and digest == self.last_hash:
                    continue
                self.last_hash = digest
                self.has_last = True
                line = scaled(digest, self.lines)
                while line >= self.first_line + LINES_PER_PAGE:
                    self._complete()
                _set_bits(self.page + (line - self.first_line) * LINE_SIZE, digest)
        return self._taken()

    def finish(self):
        """Return the pages that are left."""
        while self.first_line < self.lines:
            self._complete()
        return self._taken()

    cdef int _complete(self) except -1 nogil:
        _seal(self.page, self.number, LINES_PER_PAGE * LINE_SIZE, self.seed)
        append(&self.done, self.page, PAGE_SIZE)
        memset(self.page, 0, PAGE_SIZE)
        self.number += 1
        self.first_line += LINES_PER_PAGE
        return 0

    cdef bytes _taken(self):
        taken = PyBytes_FromStringAndSize(<const char*>self.done.data, self.done.size)
        self.done.size = 0
        return taken


# The merge


cdef class RowMerge:
    """Merges sources of sorted rows; it holds one block of each in memory."""

    cdef list sources
    cdef list blocks                  # the block of each source that is being read
    cdef Buf places                   # Place of each source
    cdef Buf heap                     # numbers of the sources that have rows, as int64_t
    cdef Buf out

    def __cinit__(self, list sources not None):
        """Read nothing yet.

        Args:
            sources: iterators of blocks of sorted rows, each of whole rows.
        """
        cdef int64_t number
        self.sources = list(sources)
        self.blocks = [b""] * len(sources)
        if sources:
            extend_zero(&self.places, len(sources) * sizeof(Place))
        for number in range(len(sources)):
            if self._next_block(number):
                append(&self.heap, &number, 8)
        for number in reversed(range(self.heap.size // 8)):
            self._sink(number)

    def __dealloc__(self):
        release(&self.places)
        release(&self.heap)
        release(&self.out)

    def take(self, int64_t row_max):
        """Return the next rows, up to a number; none at the end."""
        cdef int64_t source = -1
        self.out.size = 0
        while self.heap.size and self.out.size < row_max * ROW_SIZE:
            with nogil:
                source = self._merge(row_max * ROW_SIZE)
            if source >= 0:
                if not self._next_block(source):
                    self.heap.size -= 8
                    (<int64_t*>self.heap.data)[0] = (<int64_t*>self.heap.data)[self.heap.size // 8]
                self._sink(0)
        return PyBytes_FromStringAndSize(<const char*>self.out.data, self.out.size)

    cdef bint _next_block(self, int64_t number) except -1:
        cdef Place* place = <Place*>self.places.data + number
        cdef bytes block = next(self.sources[number], b"")
        self.blocks[number] = block
        place.at = <const uint8_t*>PyBytes_AS_STRING(block)
        place.end = place.at + PyBytes_GET_SIZE(block) // ROW_SIZE * ROW_SIZE
        return place.at < place.end

    cdef int64_t _merge(self, int64_t size_max) except -2 nogil:
        """Merge until there is enough; return the source whose block is used up, or -1."""
        cdef Place* places = <Place*>self.places.data
        cdef int64_t source
        while self.out.size < size_max:
            source = (<int64_t*>self.heap.data)[0]
            append(&self.out, places[source].at, ROW_SIZE)
            places[source].at += ROW_SIZE
            if places[source].at == places[source].end:
                return source
            self._sink(0)
        return -1

    cdef void _sink(self, int64_t at) noexcept nogil:
        """Restore the order of the heap below a place."""
        cdef int64_t* heap = <int64_t*>self.heap.data
        cdef const Place* places = <const Place*>self.places.data
        cdef int64_t count = self.heap.size // 8, child, moved
        while 2 * at + 1 < count:
            child = 2 * at + 1
            if child + 1 < count and memcmp(
                places[heap[child + 1]].at, places[heap[child]].at, ROW_SIZE
            ) < 0:
                child += 1
            if memcmp(places[heap[at]].at, places[heap[child]].at, ROW_SIZE) <= 0:
                return
            moved = heap[at]
            heap[at] = heap[child]
            heap[child] = moved
            at = child
