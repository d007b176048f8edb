"""Makes the topics of consumer retry, GROUP.retry and GROUP.dlq, when the first record goes there.

A consumer that asks for a retry names the group, so it can have as many topics made as it likes: an
address has an allowance, as for topics that are created because a request for metadata names them.
Layer 4; does no I/O of its own.
"""

from typing import Final

from _core.paths.timer_quota import TimerQuota
from _core.queue.partition import Topic
from appliance.allowance import Allowance
from appliance.errors import DiskFullError, RequestError
from appliance.system.clock import Clock
from appliance.topics import Topics
from appliance.units import NS_PER_MS

BURST: Final = 100
"""Topics that an address may have made at once."""

PER_S: Final = 5
"""Topics a second that it may have made for ever."""

PARTITIONS_COUNTED: Final = 16
"""A topic with more partitions counts as several."""

Made = tuple[Topic | None, str, bool]
"""The topic or None, why there is none, and whether that may be gone when it is asked again."""


class RetryTopics:
    """Makes topics within the allowance of the client whose request is handled.

    Args:
        topics: of the broker.
        clock: of the broker.
        quota: knows the address of the client.
    """

    def __init__(self, topics: Topics, clock: Clock, quota: TimerQuota) -> None:
        self._topics = topics
        self._clock = clock
        self._quota = quota
        self._allowance = Allowance(BURST, PER_S)

    def make(self, name: str, partition_count: int) -> Made:
        """Make a topic.

        Args:
            name: a valid name that no topic has.
            partition_count: as many as the topic of the record has.
        """
        now_ms = self._clock.monotonic_ns() // NS_PER_MS
        for _ in range(1 + (partition_count - 1) // PARTITIONS_COUNTED):
            if not self._allowance.take(self._quota.address, now_ms):
                why = f"of one address, {BURST} at once and {PER_S} a second are made"
                return None, why, True
        try:
            return self._topics.create_named(name, partition_count), "", False
        except RequestError as error:
            return None, error.message, isinstance(error, DiskFullError)
