"""The due timers that are held back: their topic is paused, or delivers only so many a second.

Held timers are pending, but the due queue no longer has them. They are released in order, and only
those that are due before all timers of the due queue: so a partition keeps its order, whatever is
held, put back or accepted meanwhile.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t

from _core.queue.partition cimport Partition, Topic
from _core.state.projections cimport Projections
from _core.timers.due_queue cimport DueQueue, Timer
from _core.timers.held_timers cimport HeldTimers

cdef enum:
    PASSED_MAX = 4096           # cancelled timers that are passed over in a turn
    SWEEP_COUNT_MIN = 1024      # fewer are not worth a sweep


cdef class HeldBack:
    """The timers that the topics of a broker hold back."""

    def __cinit__(self, Projections projections not None):
        """Hold nothing back; `projections` has the due queue and the topics."""
        self.projections = projections
        self.holds = {}
        self.turn = []

    cdef bint is_paused(self, int32_t handle) except -1:
        return (<Partition>self.projections.partitions[handle]).topic.deliveries_per_s == 0

    cdef bint holds_back(self, int32_t handle) except -1:
        cdef Topic topic = (<Partition>self.projections.partitions[handle]).topic
        return topic.deliveries_per_s >= 0 or (bool(self.holds) and topic in self.holds)

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
        while self.passed < PASSED_MAX and self._may_release(topic, held, now_ms):
            timer[0] = held.heap.timers[0]
            if 0 <= due_next_ms <= timer.due_ms:
                return False
            held.drop_first()
            if due.take_kept(timer):
                if topic.deliveries_per_s > 0:
                    held.note_gone(now_ms, topic.deliveries_per_s)
                return True
            self.passed += 1
        if held.heap.count == 0 and (topic.deleted or topic.deliveries_per_s < 0):
            self._forget(topic)
        return False

    cdef bint _may_release(self, Topic topic, HeldTimers held, int64_t now_ms) except -1:
        if held.heap.count == 0:
            return False
        if topic.deleted or topic.deliveries_per_s < 0:
            return True
        return topic.deliveries_per_s > 0 and held.may_go(now_ms, topic.deliveries_per_s)

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
        cdef Topic topic
        cdef HeldTimers held
        for topic, held in self.holds.items():
            at_ms = now_ms
            if held.heap.count == 0 or (topic.deliveries_per_s == 0 and not topic.deleted):
                continue
            if topic.deliveries_per_s > 0 and not topic.deleted:
                at_ms = held.next_ms(now_ms, topic.deliveries_per_s)
            found = at_ms if found < 0 else min(found, at_ms)
        return found
