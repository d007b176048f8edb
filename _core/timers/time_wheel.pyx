"""A time wheel of counts: how many timers are due in each slot of time.

    slots of 256:  [ page ] [ page ]          [ page ]
                    found by number in a hash table

RocketMQ's TimerWheel has a slot for each second of its horizon, and each refers to a list. Here the
timers are in the due tree, and a slot is a count of 4 bytes. Only stretches of time that have
timers have pages, so the horizon costs nothing. A page whose timers are gone is freed.

The counts are exact for the timers from a time on and before a timer that it is given, in the order
of delivery. All others are not counted: `DueWheels` walks the due tree to move that bound.

Layer 0: no I/O, no clock. Used by the event loop thread.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from _core.bytes.layout cimport RUN_TIMER_AT_DUE, RUN_TIMER_SIZE
from _core.bytes.octets cimport load_u32, load_u64, store_u32, store_u64
from _core.timers.timer_list cimport Timer, is_before

cdef enum:
    CAPACITY_MIN = 16
    SAVED_PAGE_SIZE = 12    # i64 number, u32 how many slots follow
    SAVED_SLOT_SIZE = 5     # u8 slot, u32 count


cdef inline int64_t home_of(int64_t number, int64_t capacity) noexcept nogil:
    """The place where probing begins, by Fibonacci hashing."""
    return <int64_t>((<uint64_t>number * 0x9E3779B97F4A7C15ULL) >> 32) & (capacity - 1)


cdef int slots_taken(const WheelPage* page) noexcept nogil:
    cdef int slot, taken = 0
    for slot in range(PAGE_SLOTS):
        taken += page.counts[slot] != 0
    return taken


@cython.final
@cython.no_gc    # it holds no objects
cdef class TimeWheel:
    """Counts of timers by slots of their due times.

    Attributes:
        slot_ms: length of a slot, ms.
        from_ms: timers due before it are not counted, epoch ms.
        total: all that are counted.
        allocated_bytes: memory of the counts.
    """

    def __cinit__(self, int64_t slot_ms):
        """Count nothing.

        Args:
            slot_ms: length of a slot, from 1 on.
        """
        assert slot_ms >= 1
        self.slot_ms = slot_ms
        self.until = Timer(0, -1, -1, 0)

    def __dealloc__(self):
        self._clear()
        free(self.pages)

    cdef void begin(self, int64_t from_ms) noexcept nogil:
        self._clear()
        self.from_ms = from_ms
        self.until = Timer(from_ms, -1, -1, 0)
        self.is_open = False

    cdef bint counts(self, const Timer* timer) noexcept nogil:
        return timer.due_ms >= self.from_ms and is_before(timer, &self.until)

    # Pages

    cdef WheelPage* _find(self, int64_t number) noexcept nogil:
        cdef int64_t at
        if self.last != NULL and self.last.number == number:
            return self.last
        if self.capacity == 0:
            return NULL
        at = home_of(number, self.capacity)
        while self.pages[at] != NULL:
            if self.pages[at].number == number:
                self.last = self.pages[at]
                return self.last
            at = (at + 1) & (self.capacity - 1)
        return NULL

    cdef bint _grow(self) noexcept nogil:
        cdef int64_t capacity = max(self.capacity * 2, CAPACITY_MIN)
        cdef WheelPage** grown = <WheelPage**>calloc(capacity, sizeof(WheelPage*))
        cdef int64_t i, at
        if grown == NULL:
            return False
        for i in range(self.capacity):
            if self.pages[i] != NULL:
                at = home_of(self.pages[i].number, capacity)
                while grown[at] != NULL:
                    at = (at + 1) & (capacity - 1)
                grown[at] = self.pages[i]
        self.allocated_bytes += (capacity - self.capacity) * <int64_t>sizeof(WheelPage*)
        free(self.pages)
        self.pages = grown
        self.capacity = capacity
        return True

    cdef WheelPage* _make(self, int64_t number) noexcept nogil:
        """Add an empty page; NULL if there is no memory."""
        cdef WheelPage* page
        cdef int64_t at
        # At most half full: a search that fails looks at few places.
        if (self.page_count + 1) * 2 > self.capacity and not self._grow():
            return NULL
        page = <WheelPage*>calloc(1, sizeof(WheelPage))
        if page == NULL:
            return NULL
        page.number = number
        at = home_of(number, self.capacity)
        while self.pages[at] != NULL:
            at = (at + 1) & (self.capacity - 1)
        self.pages[at] = page
        self.page_count += 1
        self.allocated_bytes += <int64_t>sizeof(WheelPage)
        return page

    cdef void _drop(self, WheelPage* page) noexcept nogil:
        """Free a page, and move later ones back so that no search ends too early."""
        cdef int64_t mask = self.capacity - 1
        cdef int64_t hole = home_of(page.number, self.capacity)
        cdef int64_t at, home
        while self.pages[hole] != page:
            hole = (hole + 1) & mask
        at = hole
        while True:
            at = (at + 1) & mask
            if self.pages[at] == NULL:
                break
            home = home_of(self.pages[at].number, self.capacity)
            # A page whose home is cyclically after the hole stays.
            if ((at - home) & mask) < ((at - hole) & mask):
                continue
            self.pages[hole] = self.pages[at]
            hole = at
        self.pages[hole] = NULL
        if self.last == page:
            self.last = NULL
        free(page)
        self.page_count -= 1
        self.allocated_bytes -= <int64_t>sizeof(WheelPage)

    cdef void _clear(self) noexcept nogil:
        cdef int64_t i
        for i in range(self.capacity):
            free(self.pages[i])
            self.pages[i] = NULL
        self.allocated_bytes -= self.page_count * <int64_t>sizeof(WheelPage)
        self.page_count = self.total = 0
        self.last = NULL

    # Saved and restored

    def save(self):
        """Encode all counts: docs/FORMAT.md, due minutes."""
        cdef Py_ssize_t size = 8
        cdef bytes saved
        cdef uint8_t* p
        cdef const WheelPage* page
        cdef int64_t i
        cdef int slot, taken
        for i in range(self.capacity):
            if self.pages[i] != NULL:
                size += SAVED_PAGE_SIZE + SAVED_SLOT_SIZE * slots_taken(self.pages[i])
        saved = PyBytes_FromStringAndSize(NULL, size)
        p = <uint8_t*><char*>saved
        store_u64(p, <uint64_t>self.from_ms)
        p += 8
        for i in range(self.capacity):
            page = self.pages[i]
            if page == NULL:
                continue
            store_u64(p, <uint64_t>page.number)
            taken = slots_taken(page)
            store_u32(p + 8, taken)
            p += SAVED_PAGE_SIZE
            for slot in range(PAGE_SLOTS):
                if page.counts[slot]:
                    p[0] = <uint8_t>slot
                    store_u32(p + 1, page.counts[slot])
                    p += SAVED_SLOT_SIZE
        return saved

    def restore(self, bytes saved not None):
        """Replace all counts by those that `save` encoded.

        Raises:
            ValueError: it is not the result of `save`; not all is counted.
            MemoryError: not all is counted.
        """
        cdef const uint8_t* p = <const uint8_t*><const char*>saved
        cdef const uint8_t* end = p + len(saved)
        cdef int64_t page_ms
        cdef uint32_t taken
        self.begin(0)
        if end - p < 8:
            raise ValueError("the counts of a time wheel are cut off")
        self.begin(<int64_t>load_u64(p))
        p += 8
        while p < end:
            if end - p < SAVED_PAGE_SIZE:
                raise ValueError("the counts of a time wheel are cut off")
            page_ms = (<int64_t>load_u64(p) << PAGE_BITS) * self.slot_ms
            taken = load_u32(p + 8)
            p += SAVED_PAGE_SIZE
            if taken > PAGE_SLOTS or end - p < taken * SAVED_SLOT_SIZE:
                raise ValueError("the counts of a time wheel are cut off")
            while taken:
                if not self.add(page_ms + p[0] * self.slot_ms, load_u32(p + 1)):
                    raise MemoryError("cannot allocate the counts of a time wheel")
                p += SAVED_SLOT_SIZE
                taken -= 1

    def count_rows(self, bytes rows not None, int64_t from_ms):
        """Count pending timers of a run that are due from a time on; on any thread.

        Args:
            rows: as a whole merge returns them.
            from_ms: epoch ms.

        Raises:
            MemoryError: not all are counted.
        """
        cdef const uint8_t* row = <const uint8_t*><const char*>rows
        cdef const uint8_t* end = row + len(rows)
        cdef int64_t due_ms
        cdef bint has_memory = True
        with nogil:
            while row < end and has_memory:
                due_ms = <int64_t>load_u64(row + RUN_TIMER_AT_DUE)
                if due_ms >= from_ms:
                    has_memory = self.add(due_ms, 1)
                row += RUN_TIMER_SIZE
        if not has_memory:
            raise MemoryError("cannot allocate the counts of a time wheel")

    cdef bint close(self, TimeWheel counted) noexcept nogil:
        cdef const WheelPage* page
        cdef WheelPage* own
        cdef int64_t i
        cdef int slot
        for i in range(counted.capacity):
            page = counted.pages[i]
            if page == NULL:
                continue
            own = self._find(page.number)
            if own == NULL:
                own = self._make(page.number)
                if own == NULL:
                    return False
            for slot in range(PAGE_SLOTS):
                own.counts[slot] += page.counts[slot]    # modulo 2^32, as the differences are
            own.total += page.total
            self.total += page.total
        self.is_open = False
        i = 0
        while i < self.capacity:
            own = self.pages[i]
            if own != NULL and own.total == 0:
                self._drop(own)    # may move another one here
            else:
                i += 1
        return True

    def first_ms(self):
        """Where the first slot begins that has a timer, epoch ms; -1 if none has."""
        cdef const WheelPage* first = NULL
        cdef int64_t i
        cdef int slot
        for i in range(self.capacity):
            if self.pages[i] != NULL and (first == NULL or self.pages[i].number < first.number):
                first = self.pages[i]
        if first == NULL:
            return -1
        for slot in range(PAGE_SLOTS):
            if first.counts[slot]:
                return ((first.number << PAGE_BITS) + slot) * self.slot_ms

    def count_before(self, int64_t due_ms):
        """How many timers are counted in slots that begin before a time, epoch ms."""
        return self.tally(due_ms, self.slot_ms, NULL, 0)

    def reach(self, int64_t count):
        """Where the slot ends with which that many timers are counted, epoch ms; -1: no slot does.

        Args:
            count: from 1 on.
        """
        cdef const WheelPage* page
        cdef int64_t i
        cdef int slot
        numbers = []
        for i in range(self.capacity):
            if self.pages[i] != NULL:
                numbers.append(self.pages[i].number)
        for number in sorted(numbers):
            page = self._find(number)
            if page.total < count:
                count -= page.total
                continue
            for slot in range(PAGE_SLOTS):
                count -= page.counts[slot]
                if count <= 0:
                    return ((page.number << PAGE_BITS) + slot + 1) * self.slot_ms
        return -1

    # Counts

    cdef bint add(self, int64_t due_ms, int64_t count) noexcept nogil:
        cdef int64_t slot = due_ms // self.slot_ms
        cdef WheelPage* page = self._find(slot >> PAGE_BITS)
        if page == NULL:
            page = self._make(slot >> PAGE_BITS)
            if page == NULL:
                return False
        page.counts[slot & (PAGE_SLOTS - 1)] += count
        page.total += count
        self.total += count
        return True

    cdef bint take(self, int64_t due_ms) noexcept nogil:
        cdef int64_t slot = due_ms // self.slot_ms
        cdef WheelPage* page = self._find(slot >> PAGE_BITS)
        if self.is_open and page == NULL:
            page = self._make(slot >> PAGE_BITS)
        if page == NULL or (page.counts[slot & (PAGE_SLOTS - 1)] == 0 and not self.is_open):
            return False
        page.counts[slot & (PAGE_SLOTS - 1)] -= 1
        page.total -= 1
        self.total -= 1
        if page.total == 0 and not self.is_open:
            self._drop(page)
        return True

    cdef int64_t count_at(self, int64_t due_ms) noexcept nogil:
        cdef int64_t slot = due_ms // self.slot_ms
        cdef const WheelPage* page = self._find(slot >> PAGE_BITS)
        return 0 if page == NULL else page.counts[slot & (PAGE_SLOTS - 1)]

    cdef int64_t tally(
        self, int64_t begin_ms, int64_t step_ms, int64_t* counts, int64_t size
    ) noexcept nogil:
        cdef int64_t first = begin_ms // self.slot_ms
        cdef int64_t step = step_ms // self.slot_ms
        cdef int64_t page_first, at, before = 0
        cdef const WheelPage* page
        cdef int64_t i, slot
        for i in range(self.capacity):
            page = self.pages[i]
            if page == NULL:
                continue
            page_first = page.number << PAGE_BITS
            if page_first + PAGE_SLOTS <= first:
                before += page.total
                continue
            # Divided first: the end of the intervals may be beyond 64 bits.
            if page_first >= first and (size == 0 or (page_first - first) // step >= size):
                continue
            for slot in range(PAGE_SLOTS):
                if page.counts[slot] == 0:
                    continue
                at = page_first + slot - first
                if at < 0:
                    before += page.counts[slot]
                elif at // step < size:
                    counts[at // step] += page.counts[slot]
        return before
