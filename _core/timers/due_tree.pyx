"""A priority queue of timers with arbitrary due times: a radix tree and a heap.

The tree is keyed by the bits of the due time. A node splits its range into 64 slots. A slot is
empty, or a leaf (a list of timers, not ordered by due time), or a branch to a node one level below:

    level 7:  slots of 2^42 ms   root
    level 6:            2^36     2 years
    level 5:            2^30     12 days
    level 4:            2^24     4.7 hours
    level 3:            2^18     4.4 minutes
    level 2:            2^12     4 seconds
    level 1:            2^6
    level 0:            1 ms     leaves only, in order of arrival

A leaf bursts into a node when it grows beyond LEAF_COUNT_MAX, or when its first timer is due. A
timer therefore moves at most 8 times, usually 2 or 3 times, and *no call does more than a few
thousand moves*. The first choice was a radix heap. Its total cost is the same, but it sometimes
moves half of all timers at once. With ten million timers that stalls the broker for a tenth of a
second. The tree also does not depend on the clock: a timer may be due before timers that were
popped already.

The heap takes timers that would cost more in the tree: those of a small leaf that is due, those put
back after they were popped, and those that arrive out of order in their millisecond. The first
timer of all is therefore the first of the heap or is in the first leaf.

Layer 0: no I/O, no clock.
"""

cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint64_t
from libc.stdlib cimport free, malloc

from _core.timers.timer_heap cimport heap_push, heap_remove, heap_reserve, heap_sweep_step
from _core.timers.timer_list cimport (
    Chunk,
    Timer,
    TimerList,
    chunk_timers,
    is_before,
    list_add_chunk,
    list_append,
    list_clear,
    list_drop_chunk,
    list_init,
    list_last,
    list_sweep_chunk,
)
from _core.timers.cancelled_timers cimport CancelledTimers

cdef extern from *:
    int count_trailing_zeros "__builtin_ctzll"(unsigned long long) noexcept nogil
    int count_leading_zeros "__builtin_clzll"(unsigned long long) noexcept nogil

cdef enum:
    SLOT_BITS = 6
    LEAF_COUNT_MAX = 4096      # bounds the work of a burst to about 50 us
    HEAP_LEAF_COUNT = 48       # up to this size a heap is cheaper than nodes that are used once
    FREE_NODES_MAX = 16        # more than the nodes of one path, which are freed together

DUE_MS_END = 1LL << (SLOT_BITS * TREE_LEVELS)

assert NODE_SLOTS == 1 << SLOT_BITS
assert sizeof(Timer) == 24


cdef inline int slot_of(int64_t due_ms, int level) noexcept nogil:
    return (due_ms >> (SLOT_BITS * level)) & (NODE_SLOTS - 1)


@cython.final
@cython.no_gc    # no cycle can go through it
cdef class DueTree:
    """The tree and the heap of a `DueQueue`. It has no Python API."""

    def __cinit__(self, CancelledTimers cancelled not None):
        self.cancelled = cancelled
        self.root = self._take_node()
        if self.root == NULL:
            raise MemoryError("cannot allocate the root of the due tree")

    def __dealloc__(self):
        cdef Node* node
        if self.root != NULL:
            self._free_tree(self.root)
        while self.free_nodes != NULL:
            node = self.free_nodes
            self.free_nodes = <Node*>node.slots[0].head
            free(node)
        free(self.heap.timers)

    # Nodes

    cdef Node* _take_node(self) noexcept nogil:
        cdef Node* node = self.free_nodes
        if node != NULL:
            self.free_nodes = <Node*>node.slots[0].head
            self.free_node_count -= 1
        else:
            node = <Node*>malloc(sizeof(Node))
            if node == NULL:
                return NULL
            self.pool.allocated_bytes += <int64_t>sizeof(Node)
        # A slot is initialised when it becomes occupied.
        node.occupied = node.branches = node.unsorted = 0
        return node

    cdef void _free_node(self, Node* node) noexcept nogil:
        if self.free_node_count < FREE_NODES_MAX:
            node.slots[0].head = <Chunk*>self.free_nodes
            self.free_nodes = node
            self.free_node_count += 1
        else:
            free(node)
            self.pool.allocated_bytes -= <int64_t>sizeof(Node)

    cdef void _free_tree(self, Node* node) noexcept nogil:
        """Free a node with its subtree and timers. The recursion is at most TREE_LEVELS deep."""
        cdef int slot
        while node.occupied:
            slot = count_trailing_zeros(node.occupied)
            if node.branches >> slot & 1:
                self._free_tree(<Node*>node.slots[slot].head)
            else:
                list_clear(&self.pool, &node.slots[slot])
            node.occupied &= node.occupied - 1
        self._free_node(node)

    cdef TimerList* leaf_from(self, int64_t from_due_ms) noexcept nogil:
        cdef Node* node = self.root
        cdef int level = TREE_LEVELS - 1
        cdef int slot = slot_of(from_due_ms, level)
        cdef bint is_on_edge = True     # the node's range holds from_due_ms
        cdef uint64_t candidates
        if from_due_ms >= DUE_MS_END:
            return NULL
        while True:
            candidates = node.occupied & (~0ULL << slot) if slot < NODE_SLOTS else 0
            if candidates == 0:
                # This happens only along the edge, because an empty node is removed at once.
                level += 1
                if level == TREE_LEVELS:
                    return NULL
                node = self.path[level]
                slot = self.path_slots[level] + 1
                is_on_edge = False
                continue
            is_on_edge = is_on_edge and candidates >> slot & 1
            slot = count_trailing_zeros(candidates)
            self.path[level] = node
            self.path_slots[level] = slot
            if not node.branches >> slot & 1:
                self.path_end = level
                return &node.slots[slot]
            node = <Node*>node.slots[slot].head
            level -= 1
            slot = slot_of(from_due_ms, level) if is_on_edge else 0

    cdef TimerList* last_leaf(self) noexcept nogil:
        cdef Node* node = self.root
        cdef int level = TREE_LEVELS - 1
        cdef int slot
        while node.occupied:
            slot = NODE_SLOTS - 1 - count_leading_zeros(node.occupied)
            self.path[level] = node
            self.path_slots[level] = slot
            if not node.branches >> slot & 1:
                self.path_end = level
                return &node.slots[slot]
            node = <Node*>node.slots[slot].head
            level -= 1
        return NULL

    cdef void drop_last_leaf(self, TimerList* leaf) noexcept nogil:
        cdef int64_t begin_ms = self.leaf_begin()
        cdef Chunk* chunk = leaf.head
        cdef int64_t i
        cdef bint has_later = True
        self.run = NULL
        while chunk != NULL:
            for i in range(chunk.begin, chunk.end):
                self._forget(&chunk_timers(chunk)[i])
            chunk = chunk.next
        list_clear(&self.pool, leaf)
        self._remove_leaf()
        while has_later:    # a removal may move another one to a place that was looked at
            has_later = False
            for i in range(self.heap.count - 1, -1, -1):
                if i < self.heap.count and self.heap.timers[i].due_ms >= begin_ms:
                    self._forget(&self.heap.timers[i])
                    heap_remove(&self.heap, i)
                    has_later = True

    cdef void _forget(self, const Timer* timer) noexcept nogil:
        """Drop what says that a timer is cancelled: it leaves the tree."""
        self.cancelled.claim(timer.position, timer.record_index, timer.partition)

    cdef int64_t leaf_begin(self) noexcept nogil:
        cdef int64_t begin = 0
        cdef int level
        for level in range(self.path_end, TREE_LEVELS):
            begin |= <int64_t>self.path_slots[level] << (SLOT_BITS * level)
        return begin

    cdef int64_t leaf_end(self) noexcept nogil:
        return self.leaf_begin() + (1LL << (SLOT_BITS * self.path_end))

    cdef bint is_leaf_ordered(self) noexcept nogil:
        cdef int slot = self.path_slots[0]
        return self.path_end == 0 and not self.path[0].unsorted >> slot & 1

    cdef void _remove_leaf(self) noexcept nogil:
        """Remove the leaf on the path, and the nodes that become empty. REQUIRES: it is empty."""
        cdef int level = self.path_end
        cdef Node* node = self.path[level]
        cdef uint64_t bit
        while True:
            bit = 1ULL << self.path_slots[level]
            node.occupied &= ~bit
            node.branches &= ~bit
            node.unsorted &= ~bit
            if node.occupied or level == TREE_LEVELS - 1:
                break
            self._free_node(node)
            level += 1
            node = self.path[level]

    cdef bint _burst(self, Node* parent, int slot, int level) noexcept nogil:
        """Replace a leaf by a node. False if there is no memory; nothing has changed then.

        REQUIRES: the leaf is above level 0.
        """
        cdef TimerList* leaf = &parent.slots[slot]
        cdef TimerList* child
        cdef Node* node = self._take_node()
        cdef Chunk* chunk
        cdef Timer* timer
        cdef int32_t counts[NODE_SLOTS]
        cdef int i, at
        if node == NULL:
            return False
        for i in range(NODE_SLOTS):
            counts[i] = 0
        chunk = leaf.head
        while chunk != NULL:
            for i in range(chunk.begin, chunk.end):
                counts[slot_of(chunk_timers(chunk)[i].due_ms, level - 1)] += 1
            chunk = chunk.next
        for i in range(NODE_SLOTS):
            if counts[i] == 0:
                continue
            child = &node.slots[i]
            list_init(child)
            node.occupied |= 1ULL << i
            if not list_add_chunk(&self.pool, child, counts[i] + (counts[i] >> 3) + 1):
                self._free_tree(node)
                return False
        chunk = leaf.head
        while chunk != NULL:
            for i in range(chunk.begin, chunk.end):
                timer = &chunk_timers(chunk)[i]
                at = slot_of(timer.due_ms, level - 1)
                child = &node.slots[at]
                if level == 1 and child.count and is_before(timer, list_last(child)):
                    node.unsorted |= 1ULL << at
                list_append(&self.pool, child, timer)    # cannot fail: there is room
            chunk = chunk.next
        list_clear(&self.pool, leaf)
        parent.slots[slot].head = <Chunk*>node
        parent.branches |= 1ULL << slot
        return True

    # Timers

    cdef int push(self, const Timer* timer) except -1 nogil:
        cdef Node* node = self.root
        cdef int level = TREE_LEVELS - 1
        cdef int slot
        cdef TimerList* leaf
        if timer.due_ms < 0 or timer.due_ms >= DUE_MS_END:
            raise ValueError("due_ms is out of range: use a time between 1970 and 10889")
        slot = slot_of(timer.due_ms, level)
        while node.branches >> slot & 1:
            node = <Node*>node.slots[slot].head
            level -= 1
            slot = slot_of(timer.due_ms, level)
        leaf = &node.slots[slot]
        if not node.occupied >> slot & 1:
            list_init(leaf)
        elif level == 0 and is_before(timer, list_last(leaf)):
            return self._push_heap(timer)
        if not list_append(&self.pool, leaf, timer):
            raise MemoryError("cannot allocate a timer")
        node.occupied |= 1ULL << slot
        if leaf.count > LEAF_COUNT_MAX and level > 0:
            # Without memory it stays an oversized leaf, and the next push tries again.
            self._burst(node, slot, level)
        return 0

    cdef int _push_heap(self, const Timer* timer) except -1 nogil:
        if not heap_reserve(&self.pool, &self.heap, 1):
            raise MemoryError("cannot allocate a timer")
        heap_push(&self.heap, timer)
        return 0

    cdef int put_back(self, const Timer* timers, Py_ssize_t count) except -1 nogil:
        """Add timers that will be popped again soon: all of them, or none on MemoryError."""
        cdef Py_ssize_t i
        if not heap_reserve(&self.pool, &self.heap, count):
            raise MemoryError("cannot allocate timers that are put back")
        for i in range(count):
            if not self.cancelled.is_forgotten(timers[i].partition):
                heap_push(&self.heap, &timers[i])
        return 0

    cdef bint _move_to_heap(self, TimerList* leaf) noexcept nogil:
        cdef Chunk* chunk
        cdef int32_t i
        if not heap_reserve(&self.pool, &self.heap, leaf.count):
            return False
        while leaf.head != NULL:
            chunk = leaf.head
            for i in range(chunk.begin, chunk.end):
                heap_push(&self.heap, &chunk_timers(chunk)[i])
            list_drop_chunk(&self.pool, leaf)
        self._remove_leaf()
        return True

    cdef bint ready(self, int64_t now_ms) noexcept nogil:
        cdef TimerList* leaf
        cdef Node* node
        cdef int slot
        self.run = NULL
        while True:
            leaf = self.leaf_from(0)
            self.unready_ms = leaf.min_due_ms if leaf != NULL else INT64_MAX
            if self.unready_ms > now_ms or leaf == NULL:
                return True
            if self.heap.count and self.heap.timers[0].due_ms < self.unready_ms:
                return True
            node = self.path[self.path_end]
            slot = self.path_slots[self.path_end]
            if self.path_end == 0 and not node.unsorted >> slot & 1:
                self.run = leaf
                self.unready_ms += 1
                return True
            if self.path_end == 0 or leaf.count <= HEAP_LEAF_COUNT:
                if not self._move_to_heap(leaf):
                    return False
            elif not self._burst(node, slot, self.path_end):
                return False

    cdef void drop_run_if_empty(self) noexcept nogil:
        """REQUIRES: nothing was pushed or swept since ready()."""
        if self.run != NULL and self.run.count == 0:
            self._remove_leaf()
            self.run = NULL

    cdef int64_t min_due_ms(self) noexcept nogil:
        cdef TimerList* leaf = self.leaf_from(0)
        cdef int64_t due_ms = leaf.min_due_ms if leaf != NULL else INT64_MAX
        if self.heap.count:
            due_ms = min(due_ms, self.heap.timers[0].due_ms)
        return due_ms

    cdef int64_t first_pending_ms(self, int64_t entry_max) noexcept nogil:
        cdef int64_t found = INT64_MAX
        cdef int64_t from_ms = 0
        cdef int64_t left = entry_max - self.heap.count
        cdef int64_t at
        cdef TimerList* leaf
        cdef Chunk* chunk
        cdef Timer* timer
        if left < 0:
            return self.min_due_ms()
        for at in range(self.heap.count):
            timer = &self.heap.timers[at]
            if timer.due_ms < found and not self.is_cancelled(timer):
                found = timer.due_ms
        while True:
            leaf = self.leaf_from(from_ms)
            if leaf == NULL or leaf.min_due_ms >= found:
                return found
            from_ms = self.leaf_end()
            chunk = leaf.head
            while chunk != NULL:
                for at in range(chunk.begin, chunk.end):
                    if left == 0:
                        return min(found, leaf.min_due_ms)
                    left -= 1
                    timer = &chunk_timers(chunk)[at]
                    if timer.due_ms < found and not self.is_cancelled(timer):
                        found = timer.due_ms
                        if found == leaf.min_due_ms:
                            return found
                chunk = chunk.next
            if found < from_ms:
                return found  # all other leaves are later

    cdef bint is_cancelled(self, const Timer* timer) noexcept nogil:
        return (
            self.cancelled.holds(timer.position, timer.record_index)
            or self.cancelled.is_forgotten(timer.partition)
        )

    # Sweep

    cdef void begin_sweep(self) noexcept nogil:
        self.sweeps_leaf = False
        self.sweeps_heap = False
        self.sweep_due_ms = 0

    cdef int64_t sweep_step(self) noexcept nogil:
        cdef TimerList* leaf
        cdef int64_t examined
        if self.sweeps_leaf and self.pool.sweep_next == NULL:
            # The leaf is swept to its end, or it was popped, burst or moved to the heap.
            self.sweeps_leaf = False
            self.sweep_due_ms = self.sweep_leaf_end_ms
        leaf = self.leaf_from(self.sweep_due_ms)
        if leaf == NULL:
            if not self.sweeps_heap:
                self.sweeps_heap = True
                self.sweep_heap_end = self.heap.count
            if self.sweep_heap_end == 0:
                return -1
            return heap_sweep_step(&self.pool, &self.heap, self.cancelled, &self.sweep_heap_end)
        if not self.sweeps_leaf:
            self.sweeps_leaf = True
            self.sweep_due_ms = self.leaf_begin()
            self.sweep_leaf_end_ms = self.leaf_end()
            self.pool.swept = NULL
            self.pool.sweep_next = leaf.head
        examined = list_sweep_chunk(&self.pool, leaf, self.cancelled)
        if leaf.count == 0:
            self._remove_leaf()
        return examined
