"""Gives dead records back to their group, inside the broker. Layer 4; on the event loop.

Whoever asks reads the records first, which may wait for the disk. The records and the offsets that
say how far a replay has come are appended to one log in that order: no crash keeps an offset and
loses a record before it.
"""

from collections.abc import Mapping
from typing import Any

from _core.paths.own_batch import accept_own, encode_own
from _core.paths.produce import ProducePath
from _core.queue.partition import Partition, Topic
from appliance.dead_letters import (
    REMEMBERED_MS,
    can_have_dead_letters,
    replay_group,
    replayed_headers,
    retry_topic,
)
from appliance.errors import DiskFullError, FindError, RequestError
from appliance.store.state.group_frames import OFFSET_COMMITTED, OffsetEntry
from appliance.store.state.group_store import GroupStore
from appliance.system.clock import Clock
from appliance.timer_moves import ERROR_DISK_FULL, ERROR_TOO_LARGE
from appliance.topics import Topics


class DeadReplay:
    """Appends records to the retry topic of a group.

    Args:
        produce: the way of all produced records.
        topics, groups: those of the broker.
        clock: of the broker.
    """

    def __init__(
        self, produce: ProducePath, topics: Topics, groups: GroupStore, clock: Clock
    ) -> None:
        self._produce = produce
        self._topics = topics
        self._groups = groups
        self._clock = clock

    def ensure_topic(self, group: str, partition_count: int) -> Topic:
        """Return the retry topic of a group; make it with that many partitions if there is none.

        Raises:
            FindError: no topic can have that name.
            RequestError: a limit forbids it, or the disk is full.
        """
        name = retry_topic(group)
        topic = self._topics.find(name)
        if topic is not None:
            return topic
        if not can_have_dead_letters(group):
            raise FindError("request", f"the name {name!r} is too long for a topic")
        return self._topics.create(name, partition_count, {})

    def replay(self, topic: Topic, index: int, record: Mapping[str, Any]) -> int:
        """Append a record; it is durable once the log is, up to its end.

        Args:
            topic: the retry topic; it exists.
            index: the partition of the dead record.
            record: key, value, headers and timestamp, as `Frame.records` returns them.

        Returns:
            The bytes that were appended, about.

        Raises:
            DiskFullError: the disk is full.
            RequestError: the topic does not take the record; the error says what to change.
        """
        given = [(name, value) for name, value in record.get("headers", ())]
        headers = replayed_headers(given)
        batch = encode_own(record["key"], record["value"], headers, record["timestamp"])
        partition = topic.partitions[index % len(topic.partitions)]
        error, message = accept_own(self._produce, partition, batch, self._clock.wall_ns())
        if error == ERROR_DISK_FULL:
            raise DiskFullError(message or "the disk is full")
        if error == ERROR_TOO_LARGE:
            raise RequestError(
                f"the record is larger than max.message.bytes of {topic.name} allows: raise it"
            )
        if error:
            raise RequestError(message or f"the record is refused with Kafka's error {error}")
        return len(batch)

    def begin_of(self, group: str, partition: Partition) -> int:
        """Return the offset at which the next replay of all records of a partition begins."""
        key = partition.topic.topic_id, partition.index
        known = self._groups.offsets(replay_group(group)).get(key)
        return max(partition.start_offset, -1 if known is None else known.offset)

    def commit(self, group: str, partition: Partition, offset: int) -> None:
        """Note that all records of a partition below an offset were replayed.

        Raises:
            RequestError: the disk is full, or there are too many offsets.
        """
        entry = OffsetEntry(
            op=OFFSET_COMMITTED,
            group=replay_group(group),
            topic_id=partition.topic.topic_id,
            partition=partition.index,
            offset=offset,
            metadata="",
            commit_ms=self._clock.wall_ms(),
            retention_ms=REMEMBERED_MS,
        )
        self._groups.commit_offsets([entry])
