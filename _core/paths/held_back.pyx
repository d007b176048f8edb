"""The due timers that are held back: their topic is paused, or bounds its deliveries.

Held timers are pending, but the due queue no longer has them. They are released in order, and only
those that are due before all timers of the due queue: so a partition keeps its order, whatever is
held, put back or accepted meanwhile.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t

from _core.log.view cimport LogView
from _core.queue.partition cimport Partition, Topic
from _core.state.projections cimport Projections
from _core.timers.due_queue cimport DueQueue, Timer
from _core.timers.moved_frames cimport MovedFrames
from _core.timers.held_timers cimport Bounds, HeldTimers

cdef enum:
    PASSED_MAX = 4096           # cancelled timers that are passed over in a turn
    SWEEP_COUNT_MIN = 1024      # fewer are not worth a sweep
    READ_COUNT = 256            # timers whose records are read at a time


cdef inline Bounds bounds_of(Topic topic) noexcept:
    if topic.deleted:
        return Bounds(-1, 0)
    return Bounds(topic.deliveries_per_s, topic.delivery_spread_ms)


cdef class HeldBack:
    """The timers that the topics of a broker hold back."""

    def __cinit__(self, Projections projections not None, LogView view not None):
        """Hold nothing back.

        Args:
            projections: has the due queue and the topics.
            view: the frame cache.
        """
        self.projections = projections
        self.view = view
        self.turn = []
        self.cold = set()

    cdef bint is_paused(self, int32_t handle) except -1:
        partition = self.projections.partitions[handle]
        return partition is not None and (<Partition>partition).topic.deliveries_per_s == 0

    cdef bint holds_back(self, int32_t handle) except -1:
        cdef Topic topic
        partition = self.projections.partitions[handle]
        if partition is None:
            return False
        topic = (<Partition>partition).topic
        return topic.bounds_deliveries or (
            topic.held_timers is not None and (<HeldTimers>topic.held_timers).heap.count > 0
        )

    cdef int hold(self, const Timer* timer) except -1:
        cdef Topic topic
        cdef HeldTimers held
        if not self.projections.due.keep(timer):
            return 0
        topic = (<Partition>self.projections.partitions[timer.partition]).topic
        if topic.held_timers is None:
            topic.held_timers = HeldTimers()
        held = topic.held_timers
        held.add(timer)
        if held.heap.count == 1:
            self.projections.due.held[topic] = held
        return 0

    cdef bint begin_turn(self) except -1:
        cdef DueQueue due = self.projections.due
        cdef int64_t cancelled = due.cancelled.cancelled_count + due.cancelled.orphan_count
        cdef HeldTimers held
        self.cold.clear()
        if not due.held:
            return False
        self.passed = 0
        self.turn = list(due.held)
        # Another topic comes first next time.
        topic = self.turn[len(self.turn) - 1]
        due.held = {topic: due.held.pop(topic), **due.held}
        for held in due.held.values():
            held.is_blocked = False
            if cancelled > SWEEP_COUNT_MIN and cancelled > due.pending:
                held.sweep(due.cancelled)
        return True

    cdef bint peek(self, Timer* timer, int64_t now_ms) except -1:
        cdef HeldTimers held
        while self.turn:
            topic = self.turn[len(self.turn) - 1]
            held = (<Topic>topic).held_timers
            if self._find_next(topic, held, timer, now_ms):
                return True
            if held.heap.count == 0:
                del self.projections.due.held[topic]
            self.turn.pop()
        return False

    cdef bint _find_next(
        self, Topic topic, HeldTimers held, Timer* timer, int64_t now_ms
    ) except -1:
        """Find the first timer of a topic that is not cancelled; return whether it may go."""
        cdef DueQueue due = self.projections.due
        cdef int64_t due_next_ms = due.next_due_ms()
        cdef Bounds bounds = bounds_of(topic)
        while self.passed < PASSED_MAX and held.heap.count and held.may_go(now_ms, &bounds):
            timer[0] = held.heap.timers[0]
            if 0 <= due_next_ms <= timer.due_ms:
                return False
            if not due.tree.is_cancelled(timer):
                return True
            due.take_kept(timer)
            held.drop_first()
            self.passed += 1
        return False

    cdef int release(self, const Timer* timer, int64_t now_ms) except -1:
        cdef Topic topic = self.turn[len(self.turn) - 1]
        cdef Bounds bounds = bounds_of(topic)
        (<HeldTimers>topic.held_timers).note_gone(now_ms, &bounds)
        return self.drop(timer)

    cdef int drop(self, const Timer* timer) except -1:
        cdef Topic topic = self.turn[len(self.turn) - 1]
        self.projections.due.take_kept(timer)
        (<HeldTimers>topic.held_timers).drop_first()
        return 0

    cdef int block(self) except -1:
        cdef HeldTimers held = (<Topic>self.turn.pop()).held_timers
        cdef MovedFrames moved = self.projections.moved
        cdef Py_ssize_t i
        cdef int64_t pos
        held.is_blocked = True
        # The first of the heap is the next one; most of those after it come soon.
        for i in range(min(held.heap.count, READ_COUNT)):
            pos = moved.place_of(held.heap.timers[i].position)
            if pos >= 0 and not self.view.holds(pos):
                self.cold.add(pos)
        return 0

    @property
    def is_blocked(self):
        """Whether a topic waits for a record that must be read from the disk."""
        cdef HeldTimers held
        for held in self.projections.due.held.values():
            if held.is_blocked:
                return True
        return False

    def next_release_ms(self, int64_t now_ms):
        """When the first timer that is held back may go, epoch ms; -1 if none may.

        Args:
            now_ms: epoch ms.
        """
        cdef int64_t found = -1
        cdef int64_t at_ms
        cdef HeldTimers held
        cdef Bounds bounds
        for topic, held in self.projections.due.held.items():
            bounds = bounds_of(topic)
            at_ms = -1
            if held.heap.count and not held.is_blocked:
                at_ms = held.next_ms(now_ms, &bounds)
            if at_ms >= 0:
                found = at_ms if found < 0 else min(found, at_ms)
        return found
