"""Creates the topics GROUP.retry and GROUP.dlq when the first record goes there.

Layer 4; does no I/O of its own.
"""

from _core.paths.timer_quota import TimerQuota
from _core.queue.partition import Topic
from appliance.errors import DiskFullError, RequestError
from appliance.system.clock import Clock
from appliance.topics import NAMED_BURST, NAMED_PER_S, Topics
from appliance.units import NS_PER_MS

Made = tuple[Topic | None, str, bool]
"""The topic or None, why there is none, and whether a later call may succeed."""


class RetryTopics:
    """Creates topics within the allowance of the client whose request is handled.

    Args:
        topics: of the broker.
        clock: of the broker.
        quota: knows the address of the client.
    """

    def __init__(self, topics: Topics, clock: Clock, quota: TimerQuota) -> None:
        self._topics = topics
        self._clock = clock
        self._quota = quota

    def make(self, name: str, partition_count: int) -> Made:
        """Create a topic.

        Args:
            name: a valid name that no topic has.
            partition_count: as many as the topic of the record has.
        """
        now_ms = self._clock.monotonic_ns() // NS_PER_MS
        if not self._topics.may_name(partition_count, self._quota.address, now_ms):
            why = f"one address may create {NAMED_BURST} topics at once and {NAMED_PER_S} a second"
            return None, why, True
        try:
            return self._topics.create_named(name, partition_count), "", False
        except RequestError as error:
            return None, error.message, isinstance(error, DiskFullError)
