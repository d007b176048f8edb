"""The retried records of one batch: their groups, and the topics that they point to.

    split     resolve        counts the attempt, and leaves a mark in the timer entry
    loop      find_targets   the topics GROUP.retry and GROUP.dlq, created on first use
              point          the target in place of the mark

A thread may split a large batch. The topics are looked up, and created, on the event loop.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memset

from _core.bytes.batch cimport Slice
from _core.bytes.layout cimport (
    TIMER_AT_TARGET_PARTITION, TIMER_AT_TARGET_TOPIC, TIMER_ENTRY_SIZE,
)
from _core.bytes.octets cimport load_u32, store_u32
from _core.paths.delay_ask cimport DelayAsk
from _core.paths.delay_fault_codes cimport SPLIT_OK, SPLIT_RETRY_GROUP, SPLIT_TOO_MANY_GROUPS
from _core.paths.retry_rules cimport RetryGroup, RetryRules
from _core.queue.partition cimport Partition, Topic

cdef enum:
    INVALID_NAME = -1


cdef class Retries:
    """The groups of one batch after the other. It has no Python API."""

    def __cinit__(self, RetryRules rules):
        self.rules = rules
        self.groups = []
        self.targets, self.topics = [], []

    cdef int resolve(self, const Slice* name, int64_t before, DelayAsk* ask) except -1 nogil:
        with gil:
            return self._resolve(name, before, ask)

    cdef int _resolve(self, const Slice* name, int64_t before, DelayAsk* ask) except -1:
        cdef int number
        cdef RetryGroup group
        if self.count == 0:
            self.groups = []
            memset(self.used, 0, sizeof(self.used))
        number = self._find(name)
        if number == INVALID_NAME:
            return SPLIT_RETRY_GROUP
        if number == GROUPS_MAX:
            return SPLIT_TOO_MANY_GROUPS
        group = <RetryGroup>self.groups[number]
        ask.group = number
        ask.is_dead = before >= group.attempt_max
        ask.attempt = before if ask.is_dead else before + 1
        if not ask.is_dead:
            ask.retry_delay_ms = group.delay_of(ask.attempt)
        self.used[retry_mark(ask) - 1] += 1
        self.count += 1
        return SPLIT_OK

    cdef int _find(self, const Slice* name) except -2:
        """The number of a group; INVALID_NAME, or GROUPS_MAX if it is one too many."""
        cdef RetryGroup group
        if name.size < 0 or self.rules is None:
            return INVALID_NAME
        text = (<const char*>name.data)[:name.size]
        if name.size > 1 and name.data[0] == name.data[name.size - 1] == c'"':
            text = text[1:name.size - 1]    # as Spring and Connect's JsonConverter write it
        # Most batches have one group.
        for i, group in enumerate(self.groups):
            if group.name == text:
                return <int>i
        group = self.rules.find(text)
        if group is None:
            return INVALID_NAME
        if len(self.groups) < GROUPS_MAX:
            self.groups.append(group)
            return <int>len(self.groups) - 1
        return GROUPS_MAX

    cdef str find_targets(self, Partition home):
        cdef Partition target
        cdef Py_ssize_t i
        self.targets, self.topics = [], []
        if self.count == 0:
            return None
        for i in range(2 * len(self.groups)):
            target = None
            if self.used[i]:
                name = (<RetryGroup>self.groups[i >> 1]).name
                target = self.rules.target(name, i & 1, home)
                if target is None:
                    return self.rules.why_not
                if target.topic is not home.topic:
                    self.topics.append(target.topic)
            self.targets.append(target)
        return None

    cdef int count_by_topic(self, dict counts) except -1:
        cdef Partition target
        cdef Py_ssize_t i
        for i, target in enumerate(self.targets):
            if target is not None:
                counts[target.topic] = counts.get(target.topic, 0) + self.used[i]
        return 0

    cdef int point(self, uint8_t* entries, int32_t count, Partition home) except -1:
        cdef uint8_t* e = entries
        cdef Partition target
        cdef uint32_t mark
        cdef int32_t i
        if self.count == 0:
            return 0
        for i in range(count):
            mark = load_u32(e + TIMER_AT_TARGET_TOPIC)
            if mark:
                target = <Partition>self.targets[mark - 1]
                store_u32(e + TIMER_AT_TARGET_TOPIC, 0)
                if target is not home:
                    store_u32(e + TIMER_AT_TARGET_TOPIC, <uint32_t>target.topic.topic_id)
                    store_u32(e + TIMER_AT_TARGET_PARTITION, <uint32_t>target.index)
                if (mark - 1) & 1:
                    self.rules.dead += 1
                else:
                    self.rules.retried += 1
            e += TIMER_ENTRY_SIZE
        return 0
