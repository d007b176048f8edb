"""The due timers that are held back: their topic is paused, or bounds its deliveries.

Held timers are pending, but the due queue no longer has them. They are released in order, and only
those that are due before all timers of the due queue: so a partition keeps its order, whatever is
held, put back or accepted meanwhile.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t

from _core.queue.partition cimport Partition, Topic
from _core.state.projections cimport Projections
from _core.timers.due_queue cimport DueQueue, Timer
from _core.timers.held_timers cimport Bounds, HeldTimers

cdef enum:
    PASSED_MAX = 4096           # cancelled timers that are passed over in a turn
    SWEEP_COUNT_MIN = 1024      # fewer are not worth a sweep


cdef inline Bounds bounds_of(Topic topic) noexcept:
    if topic.deleted:
        return Bounds(-1, 0)
    return Bounds(topic.deliveries_per_s, topic.delivery_spread_ms)


cdef class HeldBack:
    """The timers that the topics of a broker hold back."""

    def __cinit__(self, Projections projections not None):
        """Hold nothing back; `projections` has the due queue and the topics."""
        self.projections = projections
        self.holds = {}
        self.turn = []

    cdef bint is_paused(self, int32_t handle) except -1:
        partition = self.projections.partitions[handle]
        return partition is not None and (<Partition>partition).topic.deliveries_per_s == 0

    cdef bint holds_back(self, int32_t handle) except -1:
        cdef Topic topic = (<Partition>self.projections.partitions[handle]).topic
        return topic.bounds_deliveries or (bool(self.holds) and topic in self.holds)

    cdef int hold(self, const Timer* timer) except -1:
        cdef Topic topic = (<Partition>self.projections.partitions[timer.partition]).topic
        cdef HeldTimers held = self.holds.get(topic)
        if held is None:
            self.holds[topic] = held = HeldTimers()
            self.projections.due.held.append(held)
        held.add(timer)
        if not self.projections.due.keep(timer):
            raise AssertionError("a popped timer belongs to a deleted topic")
        return 0

    cdef bint begin_turn(self) except -1:
        cdef DueQueue due = self.projections.due
        cdef int64_t cancelled = due.cancelled.cancelled_count + due.cancelled.orphan_count
        if not self.holds:
            return False
        self.passed = 0
        self.turn = list(self.holds)
        # Another topic comes first next time.
        topic = self.turn[len(self.turn) - 1]
        self.holds = {topic: self.holds.pop(topic), **self.holds}
        if cancelled > SWEEP_COUNT_MIN and cancelled > due.pending:
            for held in due.held:
                (<HeldTimers>held).sweep(due.cancelled)
        return True

    cdef bint take(self, Timer* timer, int64_t now_ms) except -1:
        while self.turn:
            if self._take_of(self.turn[len(self.turn) - 1], timer, now_ms):
                return True
            self.turn.pop()
        return False

    cdef bint _take_of(self, Topic topic, Timer* timer, int64_t now_ms) except -1:
        cdef DueQueue due = self.projections.due
        cdef HeldTimers held = self.holds[topic]
        cdef int64_t due_next_ms = due.next_due_ms()
        cdef Bounds bounds = bounds_of(topic)
        while self.passed < PASSED_MAX and held.heap.count and held.may_go(now_ms, &bounds):
            timer[0] = held.heap.timers[0]
            if 0 <= due_next_ms <= timer.due_ms:
                return False
            if due.take_kept(timer):
                held.note_gone(now_ms, &bounds)
                held.drop_first()
                return True
            held.drop_first()
            self.passed += 1
        if held.heap.count == 0 and (topic.deleted or not topic.bounds_deliveries):
            self._forget(topic)
        return False

    cdef int _forget(self, Topic topic) except -1:
        self.projections.due.held.remove(self.holds.pop(topic))
        return 0

    def next_release_ms(self, int64_t now_ms):
        """When the first timer that is held back may go, epoch ms; -1 if none may.

        Args:
            now_ms: epoch ms.
        """
        cdef int64_t found = -1
        cdef int64_t at_ms
        cdef HeldTimers held
        cdef Bounds bounds
        for topic, held in self.holds.items():
            bounds = bounds_of(topic)
            at_ms = held.next_ms(now_ms, &bounds) if held.heap.count else -1
            if at_ms >= 0:
                found = at_ms if found < 0 else min(found, at_ms)
        return found
