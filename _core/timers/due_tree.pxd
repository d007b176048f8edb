from libc.stdint cimport int64_t, uint64_t

from _core.timers.timer_heap cimport TimerHeap
from _core.timers.timer_list cimport ChunkPool, Timer, TimerList
from _core.timers.cancelled_timers cimport CancelledTimers

cdef enum:
    NODE_SLOTS = 64
    TREE_LEVELS = 8             # 6 bits of the due time each

cdef int64_t DUE_MS_END         # all due times are before it: the year 10889

cdef struct Node:
    uint64_t occupied           # slots that are not empty
    uint64_t branches           # slots that hold a node, whose address is in slot.head
    uint64_t unsorted           # leaves of one ms whose timers are not in order of arrival
    TimerList slots[NODE_SLOTS]

cdef class DueTree:
    cdef ChunkPool pool
    cdef TimerHeap heap
    cdef TimerList* run         # after ready(): the due timers of one ms, in order, or NULL
    cdef int64_t unready_ms     # after ready(): earliest due time in leaves other than `run`
    cdef CancelledTimers cancelled
    cdef Node* root
    cdef Node* free_nodes
    cdef int free_node_count
    cdef Node* path[TREE_LEVELS]
    cdef int path_slots[TREE_LEVELS]
    cdef int path_end           # level of the leaf that leaf_from found
    cdef bint sweeps_leaf
    cdef int64_t sweep_due_ms
    cdef int64_t sweep_leaf_end_ms
    cdef bint sweeps_heap       # after the leaves
    cdef int64_t sweep_heap_end # entries of the heap not swept yet
    cdef int push(self, const Timer* timer) except -1 nogil
    cdef int put_back(self, const Timer* timers, Py_ssize_t count) except -1 nogil
    # Moves the first timers due by now_ms to where they can be compared: the first one is then the
    # first of `run` or of the heap. False if there is no memory; no timer is lost.
    cdef bint ready(self, int64_t now_ms) noexcept nogil
    cdef void drop_run_if_empty(self) noexcept nogil
    cdef int64_t min_due_ms(self) noexcept nogil      # a lower bound; INT64_MAX when empty
    # The due time of the first timer that is not cancelled; a lower bound of it if `entry_max`
    # entries do not decide; INT64_MAX if there is none.
    cdef int64_t first_pending_ms(self, int64_t entry_max) noexcept nogil
    # The first leaf whose range ends after from_due_ms, NULL if there is none. It is valid until
    # the tree is changed, and so is its range, ms, until the next call.
    cdef TimerList* leaf_from(self, int64_t from_due_ms) noexcept nogil
    # The last leaf, whose path is noted too; NULL if there is none.
    cdef TimerList* last_leaf(self) noexcept nogil
    # Drops the timers of the last leaf, and those of the heap that are not due before it.
    cdef void drop_last_leaf(self, TimerList* leaf) noexcept nogil
    cdef int64_t leaf_begin(self) noexcept nogil
    cdef int64_t leaf_end(self) noexcept nogil
    # Whether its timers are all due in one ms, and in order of arrival.
    cdef void _forget(self, const Timer* timer) noexcept nogil
    cdef bint is_leaf_ordered(self) noexcept nogil
    cdef bint is_cancelled(self, const Timer* timer) noexcept nogil
    cdef void begin_sweep(self) noexcept nogil
    # One step; returns the number of entries examined, -1 at the end of the sweep.
    cdef int64_t sweep_step(self) noexcept nogil
    cdef Node* _take_node(self) noexcept nogil
    cdef void _free_node(self, Node* node) noexcept nogil
    cdef void _free_tree(self, Node* node) noexcept nogil
    cdef void _remove_leaf(self) noexcept nogil
    cdef bint _burst(self, Node* parent, int slot, int level) noexcept nogil
    cdef int _push_heap(self, const Timer* timer) except -1 nogil
    cdef bint _move_to_heap(self, TimerList* leaf) noexcept nogil
