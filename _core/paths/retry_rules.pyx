"""The rules of consumer retry: how often a record is retried, when, and in which topic.

A consumer that cannot handle a record produces it back with `x-retry-group: GROUP`. The broker
delivers it to GROUP.retry, later each time. After the last attempt it goes to GROUP.dlq instead.

    attempt 1, 2, ... attempt_max      GROUP.retry, after the delay of the attempt
    after that                         GROUP.dlq, at once

The topic settings `retry.schedule` and `retry.max` of GROUP.retry are the rules of its group. While
that topic does not exist, the defaults apply: the delay levels from the third on, 16 attempts. Both
topics are created when the first record goes there.

Layer 0: no I/O, no clock.
"""

from libc.stdint cimport int32_t, int64_t

from _core.queue.partition cimport Partition, Topic
from _core.state.projections cimport Projections

RETRY_SUFFIX = b".retry"
DEAD_SUFFIX = b".dlq"
ATTEMPT_MAX_DEFAULT = 16

# As many as one topic name may have, with the longer suffix.
_NAME_SIZE_MAX = 249 - len(RETRY_SUFFIX)
_NAME_BYTES = frozenset(
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
)
# The first level of the default schedule, 10 s: `x-delay-level` counts from 1 on.
_FIRST_LEVEL = 3


cdef class RetryGroup:
    """The rules of one group, as of a moment.

    Attributes:
        name: its name.
        attempt_max: attempts before the record goes to GROUP.dlq.
    """

    cdef int64_t delay_of(self, int64_t attempt) noexcept nogil:
        return self.delays_ms[min(attempt, self.delay_count) - 1]


cdef class RetryRules:
    """The rules of all groups of a broker.

    Attributes:
        retried: records accepted for another attempt, since the start.
        dead: records accepted for a GROUP.dlq, since the start.
    """

    def __cinit__(
        self, Projections projections not None, list level_ms not None, make_topic not None
    ):
        """Look at the topics in `projections`.

        Args:
            projections: has the topics.
            level_ms: delay of each level in ms.
            make_topic: function of a name and a number of partitions that creates a topic. Returns
                it or None, why not, and whether a later call may succeed.
        """
        self.projections = projections
        first = min(_FIRST_LEVEL, len(level_ms)) - 1
        self.level_delays_ms = tuple(level_ms[first:SCHEDULE_MAX])
        self.make_topic = make_topic

    cdef RetryGroup find(self, bytes name):
        cdef RetryGroup found
        cdef Topic topic
        cdef tuple delays = self.level_delays_ms
        if not 1 <= len(name) <= _NAME_SIZE_MAX or not _NAME_BYTES.issuperset(name):
            return None
        found = RetryGroup()
        found.name = name
        found.attempt_max = ATTEMPT_MAX_DEFAULT
        topic = <Topic>self.projections.topics_by_name.get(name + RETRY_SUFFIX)
        if topic is not None:
            found.attempt_max = topic.retry_max
            delays = topic.retry_delays_ms or delays
        found.delay_count = len(delays)
        for i, delay_ms in enumerate(delays):
            found.delays_ms[i] = delay_ms
        return found

    cdef Partition target(self, bytes name, bint is_dead, Partition home):
        name += DEAD_SUFFIX if is_dead else RETRY_SUFFIX
        cdef Topic topic = <Topic>self.projections.topics_by_name.get(name)
        if topic is None:
            text = name.decode("ascii")
            topic, why, self.may_come_later = self.make_topic(text, len(home.topic.partitions))
            if topic is None:
                self.why_not = f"the topic {text} cannot be created: {why}"
                return None
        return <Partition>topic.partitions[home.index % len(topic.partitions)]
