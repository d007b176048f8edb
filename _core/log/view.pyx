"""The frame cache: the part of the log that is in memory, as whole frames with checked CRCs.

 read into a Block -> `Block.check` -> `LogView.put` -> `frame_at`: fetch, search, delivery
                                            |
                                            '-> beyond `size_max`, evict least recently used

While the broker serves, this is the only way to read the log. Every frame that is answered or
delivered was whole when it entered the cache. No page of it can vanish or raise a signal, because
a block is memory of this process or a locked window of a segment. A slice that a socket still holds
keeps its block alive, even after the block is evicted.

`frame_at` finds a frame by its position, and only at the start of a frame. On a miss it calls
`fill`, which belongs to the store and reads only what does not wait for the disk. A thread reads
the rest into blocks of its own, and the event loop puts them into the cache.

Layer 0: no I/O.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

from _core.bytes.borrowed cimport Borrowed
from _core.log.frames cimport FRAME_BAD_SIZE, FRAME_OK, FrameHeader, check_frame
from _core.bytes.layout cimport *
from _core.bytes.octets cimport load_i32

from _core.log.frames import FAULTS

cdef enum:
    SPARE_BYTES_MAX = 8 << 20    # per size class
    HOLD_BYTES = 64 << 10        # room for consecutive small writes
    HOLD_MAX_BYTES = 4 << 20     # more is not cached, but read again when it is due
    READ = 0                     # kinds of blocks: read into memory of this process,
    OWN = 1                      # recently written by this process,
    LOCKED = 2                   # a locked window of a segment
    OWN_PART = 4                 # recently written frames may take 1/4 of the cache
    STARTS_MIN = 64


@cython.no_gc
cdef class BlockMemory:
    """Allocator of block memory. It reuses freed memory, which is still in the processor's cache.

    Attributes:
        size: bytes of all live blocks.
        locked_size: bytes of the locked windows among them.
    """

    def __dealloc__(self):
        cdef Py_ssize_t i, k
        for k in range(SIZE_CLASSES):
            for i in range(self.spare_count[k]):
                free(self.spares[k][i])

    cdef uint8_t* take(self, Py_ssize_t capacity) except NULL:
        """REQUIRES: `capacity` comes from `_rounded`."""
        cdef Py_ssize_t k = capacity // WINDOW_BYTES
        cdef uint8_t* data
        if k < SIZE_CLASSES and self.spare_count[k]:
            self.spare_count[k] -= 1
            data = <uint8_t*>self.spares[k][self.spare_count[k]]
        else:
            data = <uint8_t*>malloc(capacity)
        if data == NULL:
            raise MemoryError(f"cannot allocate {capacity} bytes for frames of the log")
        self.size += capacity
        return data

    cdef void give_back(self, uint8_t* data, Py_ssize_t capacity) noexcept:
        cdef Py_ssize_t k = capacity // WINDOW_BYTES
        self.size -= capacity
        if (
            k < SIZE_CLASSES and self.spare_count[k] < SPARES_MAX
            and self.spare_count[k] * capacity < SPARE_BYTES_MAX
        ):
            self.spares[k][self.spare_count[k]] = data
            self.spare_count[k] += 1
        else:
            free(data)


cdef Py_ssize_t _rounded(Py_ssize_t size) noexcept nogil:
    """The capacity of a block of `size` bytes, rounded so that there are few sizes to reuse."""
    if size <= LONE_BYTES:
        return LONE_BYTES
    return (size + WINDOW_BYTES - 1) // WINDOW_BYTES * WINDOW_BYTES


@cython.no_gc
cdef class Block:
    """A buffer of consecutive frames.

    Attributes:
        pos: log position of the first frame.
        size: total bytes of the whole frames.
        fault: what is wrong with the frame after them; None if that frame only extends beyond the
            bytes read.
        wanted: size of that frame by its header; 0 if the header was not read.
    """

    def __cinit__(
        self, BlockMemory memory not None, int64_t pos, Py_ssize_t capacity, locked=None
    ):
        """Allocate memory for a part of the log. Any thread may create a block.

        Args:
            memory: the allocator.
            pos: log position of the first byte.
            capacity: bytes, > 0.
            locked: a buffer of exactly these bytes, used instead of new memory. It does not change
                as long as it lives.
        """
        assert capacity > 0
        if locked is not None:
            PyObject_GetBuffer(locked, &self.window, PyBUF_SIMPLE)
            assert self.window.len == capacity
            self.data = <uint8_t*>self.window.buf
            self.capacity = capacity
            self.kind = LOCKED
            memory.size += capacity
            memory.locked_size += capacity
        else:
            self.capacity = _rounded(capacity)
            self.data = memory.take(self.capacity)
        self.memory = memory
        self.pos = pos
        self.room_size = capacity

    def __dealloc__(self):
        free(self.starts)
        if self.kind == LOCKED:
            PyBuffer_Release(&self.window)
            self.memory.size -= self.capacity
            self.memory.locked_size -= self.capacity
        elif self.data != NULL:
            self.memory.give_back(self.data, self.capacity)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.size, 1, flags)

    @property
    def room(self):
        """Writable memory to read bytes of the log into. Invalid once the block is freed."""
        assert self.kind != LOCKED
        return PyMemoryView_FromMemory(<char*>self.data, self.room_size, PyBUF_WRITE)

    def check(self, Py_ssize_t size):
        """Check the frames in the first `size` bytes and keep those that are whole.

        Any thread may call it. Sets `size`, `fault` and `wanted`.

        Args:
            size: bytes that were read, 0 to the capacity.
        """
        cdef int fault
        assert 0 <= size <= self.capacity
        with nogil:
            fault = self._take(size)
        self.fault = None if fault == FRAME_OK else FAULTS[fault]

    cdef int _note_start(self) except -1 nogil:
        """Record that a frame begins at `size`."""
        cdef int32_t* grown
        if self.count == self.start_capacity:
            grown = <int32_t*>realloc(
                self.starts, (self.start_capacity * 2 + STARTS_MIN) * sizeof(int32_t)
            )
            if grown == NULL:
                with gil:
                    raise MemoryError("cannot allocate the index of frames in a block")
            self.starts = grown
            self.start_capacity = self.start_capacity * 2 + STARTS_MIN
        self.starts[self.count] = <int32_t>self.size
        self.count += 1
        return 0

    cdef int _trust(self, Py_ssize_t end) except -1 nogil:
        """Add the frames up to `end` without a check: this process has just encoded them."""
        while self.size < end:
            self._note_start()
            self.size += load_i32(self.data + self.size + AT_SIZE)
        if self.size > end:
            # A blank frame: only its header is written, not the space that it fills.
            self.count -= 1
            self.size = self.starts[self.count]
        return 0

    cdef int _take(self, Py_ssize_t size) except -1 nogil:
        """Keep the whole frames. Returns the fault of the next one, FRAME_OK if it is cut off."""
        cdef FrameHeader h
        cdef int fault
        self.size = self.count = self.last = 0
        self.wanted = 0
        while size - self.size >= FRAME_HEADER_SIZE:
            fault = check_frame(
                self.data + self.size, size - self.size, self.pos + self.size, &h, True
            )
            if fault == FRAME_BAD_SIZE and h.size > size - self.size:
                self.wanted = h.size
                return FRAME_OK
            if fault != FRAME_OK:
                return fault
            self._note_start()
            self.size += h.size
        return FRAME_OK

    cdef void _cut(self, int64_t end) noexcept nogil:
        """Drop frames that end after log position `end`."""
        while self.count and self.pos + self.size > end:
            self.count -= 1
            self.size = self.starts[self.count]
        self.last = 0

    cdef const uint8_t* frame_at(self, int64_t pos, int32_t* size) noexcept nogil:
        cdef int64_t at = pos - self.pos
        cdef Py_ssize_t low = 0, high = self.count, middle
        if at < 0 or at >= self.size:
            return NULL
        # Usually it is the frame found last, or the next one.
        if self.starts[self.last] <= at:
            low = self.last
            if low + 2 >= high or at < self.starts[low + 2]:
                high = min(low + 2, high)
        while high - low > 1:
            middle = (low + high) // 2
            if self.starts[middle] <= at:
                low = middle
            else:
                high = middle
        if self.starts[low] != at:
            return NULL
        self.last = low
        size[0] = <int32_t>(
            (self.starts[low + 1] if low + 1 < self.count else self.size) - at
        )
        return self.data + at

    cdef bint note_user(self, int64_t user, list blocks) except -1:
        """Append this block to a user's list; False if the list already has it."""
        if self.user == user:
            return False
        self.user = user
        self.user_index = len(blocks)
        blocks.append(self)
        return True

    cdef object slice(self, const uint8_t* data, Py_ssize_t size):
        """A memoryview of bytes in this block; it keeps the block alive."""
        cdef Py_ssize_t at = data - self.data
        return memoryview(self)[at:at + size]


cdef class LogView:
    """The cached blocks, ordered by position and by time of last use.

    Attributes:
        memory: the allocator of all blocks, including evicted ones that slices keep alive.
        size_max: capacity of the cache in bytes. The newest block stays even if it is larger.
        cached_bytes: bytes of the cached blocks.
        reads, read_bytes: number of blocks put since the start, and the bytes of their frames.
        fill: function of a log position and of the least number of bytes needed there (0 if
            unknown). It calls `put` if it can read them without waiting for the disk.
    """

    def __cinit__(self, *, int64_t size_max):
        """Start empty, with a capacity of `size_max` bytes."""
        self.memory = BlockMemory()
        self.damaged = set()
        self.size_max = size_max

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            Py_XDECREF(<PyObject*>self.slots[i].block)
        free(self.slots)

    @property
    def evicted_bytes(self):
        """Bytes of blocks that the cache has dropped, but that slices of them keep alive."""
        return max(0, self.memory.size - self.cached_bytes)

    # Look up

    cdef const uint8_t* frame_at(self, int64_t pos, int32_t* size) except? NULL:
        """The whole frame that begins at log position `pos`, and its size; NULL if not in memory.

        The frame stays valid until the next call, or longer if the caller keeps a reference to
        `block`.
        """
        cdef const uint8_t* found = self._find(pos, size)
        if found == NULL and self.fill is not None and not self.is_damaged(pos):
            self.fill(pos, size[0])
            found = self._find(pos, size)
        return found

    cdef const uint8_t* _find(self, int64_t pos, int32_t* size) noexcept:
        cdef Py_ssize_t i = self.last_slot
        cdef const uint8_t* found
        cdef Block block
        if i >= self.count or not self.slots[i].pos <= pos < self.slots[i].end:
            i = self._slot_behind(pos) - 1
            if i < 0 or pos >= self.slots[i].end:
                return NULL
            self.last_slot = i
        self._use(self.slots[i].block)
        block = <Block>self.slots[i].block
        found = block.frame_at(pos, size)
        if found != NULL:
            self.block = block
        return found

    cdef Py_ssize_t _slot_behind(self, int64_t pos) noexcept nogil:
        """Index of the first slot that begins after `pos`."""
        cdef Py_ssize_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) // 2
            if self.slots[middle].pos <= pos:
                low = middle + 1
            else:
                high = middle
        return low

    def window(self, int64_t pos):
        """How many bytes to read from `pos` on; 0 if a cached block covers `pos`.

        A frame close after a cached one is probably part of a sequential read, so more is read.
        """
        cdef Py_ssize_t i = self._slot_behind(pos)
        cdef int64_t size = LONE_BYTES
        if i:
            if self.slots[i - 1].end > pos:
                return 0
            if self.slots[i - 1].end + NEAR_BYTES >= pos:
                size = WINDOW_BYTES
        return min(size, self.slots[i].pos - pos) if i < self.count else size

    def holds(self, int64_t pos):
        """Whether the frame that begins at log position `pos` is in memory."""
        cdef int32_t size
        return self._find(pos, &size) != NULL

    def read_hot(self, int64_t frame_pos, int64_t pos, int64_t size):
        """Copy bytes of a whole frame, or return None if that would wait for the disk.

        Args:
            frame_pos: log position of the frame.
            pos, size: log position and number of the bytes, all inside the frame.
        """
        cdef int32_t frame_size = 0
        cdef const uint8_t* frame = self.frame_at(frame_pos, &frame_size)
        if frame == NULL:
            return None
        assert frame_pos <= pos and 0 <= size and pos + size <= frame_pos + frame_size
        return (<const char*>frame + (pos - frame_pos))[:size]

    # Take in

    def put(self, Block block not None):
        """Cache the frames that `Block.check` found whole, except those cached already.

        Only the event loop may call it.
        """
        cdef int64_t pos = block.pos
        cdef Py_ssize_t i = self._slot_behind(pos)
        if i < self.count:
            block._cut(self.slots[i].pos)
        if i:
            pos = max(pos, self.slots[i - 1].end)
        if pos >= block.pos + block.size:
            return
        self._insert(i, pos, block.pos + block.size, block)
        self.reads += 1
        self.read_bytes += block.size
        self._evict(<void*>block)

    cdef int _evict(self, void* kept) except -1:
        """Evict the least recently used blocks; recently written ones have a share of their own."""
        cdef void* block
        while self.cached_bytes > self.size_max:
            block = self.oldest[self._kind_to_drop(kept)]
            if block == kept or block == NULL:
                break
            self._remove(self._slot_behind((<Block>block).held_from) - 1)
        return 0

    cdef int _kind_to_drop(self, void* kept) noexcept:
        """OWN if recently written blocks exceed their share, else the larger of the other kinds."""
        cdef int larger = LOCKED if self.bytes_of[LOCKED] > self.bytes_of[READ] else READ
        if self.oldest[larger] == kept:
            larger = LOCKED if larger == READ else READ
        if self.bytes_of[OWN] > self.size_max // OWN_PART or self.oldest[larger] == NULL:
            return OWN
        return larger

    def unlock(self, int64_t size):
        """Drop at least `size` bytes of locked windows, the least recently used first."""
        cdef int64_t left = self.bytes_of[LOCKED] - size
        self.block = None
        while self.bytes_of[LOCKED] > max(left, 0):
            self._remove(self._slot_behind((<Block>self.oldest[LOCKED]).held_from) - 1)

    def hold(self, int64_t pos, list parts not None):
        """Cache frames that this process has just encoded and written, unless they are many MB.

        Args:
            pos: log position of the first frame.
            parts: the bytes of the frames, as memoryviews.
        """
        cdef Py_ssize_t size = sum(map(len, parts)), i
        cdef Borrowed part
        cdef Block block = self.growing
        if size > HOLD_MAX_BYTES:
            self.growing = None
            return
        if block is None or block.pos + block.size != pos or block.capacity - block.size < size:
            self.growing = block = Block(self.memory, pos, max(size, HOLD_BYTES))
            block.kind = OWN
        i = block.size
        for frames in parts:
            part = Borrowed(frames)
            if part.size:
                memcpy(block.data + i, part.p, part.size)
                i += part.size
        block._trust(i)
        i = self._slot_behind(pos) - 1
        if block.pos == pos or i < 0 or self.slots[i].block != <void*>block:
            self.put(block)
        else:
            self.slots[i].end = block.pos + block.size
            self._use(<void*>block)

    def unlock_between(self, int64_t start, int64_t end):
        """Drop the locked windows that overlap log positions from `start` to `end`."""
        cdef Py_ssize_t i
        cdef Block block
        self.block = None
        for i in range(self.count - 1, -1, -1):
            block = <Block>self.slots[i].block
            if block.kind == LOCKED and block.pos < end and block.pos + block.capacity > start:
                self._remove(i)

    cdef int _insert(self, Py_ssize_t i, int64_t pos, int64_t end, Block block) except -1:
        cdef Slot* grown
        if self.count == self.slot_capacity:
            grown = <Slot*>realloc(self.slots, (self.slot_capacity * 2 + 64) * sizeof(Slot))
            if grown == NULL:
                raise MemoryError("cannot allocate the index of cached frames")
            self.slots = grown
            self.slot_capacity = self.slot_capacity * 2 + 64
        memmove(&self.slots[i + 1], &self.slots[i], (self.count - i) * sizeof(Slot))
        self.slots[i] = Slot(pos, end, <void*>block)
        Py_INCREF(block)
        block.held_from = pos
        self.count += 1
        self.cached_bytes += block.capacity
        self.bytes_of[block.kind] += block.capacity
        self._link(<void*>block)
        return 0

    cdef int _remove(self, Py_ssize_t i) except -1:
        cdef void* block = self.slots[i].block
        self._unlink(block)
        self.cached_bytes -= (<Block>block).capacity
        self.bytes_of[(<Block>block).kind] -= (<Block>block).capacity
        self.count -= 1
        memmove(&self.slots[i], &self.slots[i + 1], (self.count - i) * sizeof(Slot))
        Py_XDECREF(<PyObject*>block)
        return 0

    def clear(self):
        """Drop all cached blocks. The set of damaged frames stays."""
        self.block = self.growing = None
        while self.count:
            self._remove(self.count - 1)

    cdef void _use(self, void* block) noexcept:
        if block != self.newest[(<Block>block).kind]:
            self._unlink(block)
            self._link(block)

    cdef void _link(self, void* block) noexcept:
        cdef int kind = (<Block>block).kind
        (<Block>block).newer = NULL
        (<Block>block).older = self.newest[kind]
        if self.newest[kind] != NULL:
            (<Block>self.newest[kind]).newer = block
        else:
            self.oldest[kind] = block
        self.newest[kind] = block

    cdef void _unlink(self, void* block) noexcept:
        cdef int kind = (<Block>block).kind
        cdef void* newer = (<Block>block).newer
        cdef void* older = (<Block>block).older
        if newer != NULL:
            (<Block>newer).older = older
        else:
            self.newest[kind] = older
        if older != NULL:
            (<Block>older).newer = newer
        else:
            self.oldest[kind] = newer

    # Damage

    def mark_damaged(self, int64_t pos):
        """Record that the frame at `pos` failed its check, so that `fill` is not called for it."""
        self.damaged.add(pos)

    def forget_damaged(self, int64_t pos):
        """Allow the frame at `pos` to be read again: the disk may have recovered."""
        self.damaged.discard(pos)

    cdef bint is_damaged(self, int64_t pos) except -1:
        return bool(self.damaged) and pos in self.damaged
